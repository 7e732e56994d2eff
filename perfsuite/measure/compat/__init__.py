"""TODO room perfsuite/measure/compat."""
