"""What is true: instruments that turn a call into metrics. Nothing here knows of pytest, baselines or reports, so every
instrument works in a notebook: `from perfsuite.measure.timing.timing import time_call`.

This file imports nothing: `perfsuite.plugin` loads it in every pytest session, and an idle plugin must not import jax.
"""
