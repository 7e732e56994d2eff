"""TODO room perfsuite/measure/program."""
