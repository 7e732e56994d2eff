"""TODO room perfsuite/measure/timing."""
