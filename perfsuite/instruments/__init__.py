"""TODO room perfsuite/instruments."""
