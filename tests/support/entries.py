"""Entries of baseline files, of every provenance."""

import dataclasses

from perfsuite.gate.baseline import Entry
from perfsuite.gate.environment import Environment
from perfsuite.measure.metric import Interval

HERE = Environment("cpu", 1, "Xeon", "3.11.7", "0.10.2", "0.10.2")
UPGRADED = dataclasses.replace(HERE, jax="0.11.0")
OTHER_HOST = dataclasses.replace(HERE, processor="EPYC")


def count(value=3, environment=HERE, **fields):
    return Entry(value, "compiles", "count", "measured", environment, **fields)


def ratio(value, low=None, high=None, environment=HERE, samples=100, **fields):
    interval = None if low is None else Interval(low, high)
    return Entry(value, "x", "ratio", "measured", environment, interval, samples, **fields)


def compiled(value=3, **fields):
    return Entry(value, "compiles", "count", "compiled", **fields)


def reported(value=3, source="a paper"):
    return Entry(value, "compiles", "count", "reported", source=source)
