"""TODO room perfsuite/measure/stats."""
