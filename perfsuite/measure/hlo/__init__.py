"""TODO room perfsuite/measure/hlo."""
