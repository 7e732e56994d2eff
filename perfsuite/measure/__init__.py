"""What is true: instruments that turn a call into metrics.

Nothing here knows of pytest, baselines or reports, so every instrument can be used from a notebook:

    from perfsuite.measure.timing.timing import time_call

One instrument, one file. This package imports nothing by itself, because `perfsuite.plugin` loads it in every
pytest session and an idle plugin must not import jax.
"""
