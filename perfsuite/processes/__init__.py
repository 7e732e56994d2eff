"""TODO room perfsuite/processes."""
