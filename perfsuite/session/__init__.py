"""TODO room perfsuite/session."""
