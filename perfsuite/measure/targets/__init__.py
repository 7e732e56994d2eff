"""TODO room perfsuite/measure/targets."""
