"""TODO room perfsuite/report/terminal."""
