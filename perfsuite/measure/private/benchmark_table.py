"""Samples in pytest-benchmark's table: it has no public way to add a benchmark that it did not run itself, nor two in
one test. So the samples are replayed through a copy of its fixture, with a clock that returns them.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from perfsuite.measure.private.names import Attribute

_DISABLED = Attribute("pytest_benchmark.fixture", "disabled")
_SKIPPED = Attribute("pytest_benchmark.fixture", "skipped")
_MODE = Attribute("pytest_benchmark.fixture", "_mode")
"""How the fixture was used, which it can be once."""
_TIMER = Attribute("pytest_benchmark.fixture", "_timer")


def add(fixture: Any, seconds: Sequence[float], *, name: str, fullname: str, extra_info: Mapping[str, float]) -> None:
    """Add a benchmark with these samples, by the fixture `benchmark` of a test."""
    if _DISABLED.of(fixture):
        return
    readings = iter([reading for duration in seconds for reading in (0.0, duration)])
    replay = copy.copy(fixture)
    _MODE.put(replay, None)
    _TIMER.put(replay, lambda: next(readings))
    replay.name, replay.fullname, replay.extra_info = name, fullname, dict(extra_info)
    replay.pedantic(lambda: None, rounds=len(seconds))


def leave_unused(fixture: Any) -> None:
    """Have the fixture not warn, at the end of the test, that nobody used it."""
    _SKIPPED.put(fixture, True)
