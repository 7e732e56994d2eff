"""TODO room perfsuite/measure/profiler."""
