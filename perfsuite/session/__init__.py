"""One pytest session with --perf, from a metric to a failed test: docs/how_it_works.md follows one comparison.

`Judge` and `Recorder` know nothing of pytest. `PerfSession` holds the judge, the mode and the records. `group` is
imported only where several processes measure together.
"""
