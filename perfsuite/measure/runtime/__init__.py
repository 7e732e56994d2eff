"""TODO room perfsuite/measure/runtime."""
