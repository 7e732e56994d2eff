"""TODO room perfsuite/hooks."""
