"""TODO room perfsuite/measure/compiles."""
