"""Hand a timing to pytest-benchmark, so that it stands in its table and in --benchmark-json.

pytest-benchmark has no public way to add a benchmark that it did not run itself, nor two in one test. So the timing's
samples are replayed through a copy of its fixture, with a clock that returns them. The private names used are in
`_replaying`; `tests/integration/test_benchmark_table.py` fails when they move.
"""

import copy

import pytest

from perfsuite.measure.timing.timing import Timing


def add_to_table(item: pytest.Item, name: str, timing: Timing) -> None:
    """Add `timing` as the benchmark `test:name` of pytest-benchmark, when that plugin is there and not disabled."""
    if not item.config.pluginmanager.hasplugin("benchmark"):
        return
    request: pytest.FixtureRequest = item._request  # type: ignore[attr-defined]
    fixture = request.getfixturevalue("benchmark")
    if "benchmark" not in item.fixturenames:  # type: ignore[attr-defined]
        fixture.skipped = True  # or it warns, at the end, that nobody used it
    if fixture.disabled:
        return
    replay = _replaying(fixture, [us / 1e6 for us in timing.samples_us])
    replay.name = f"{item.name}:{name}"
    replay.fullname = f"{item.nodeid}:{name}"
    replay.extra_info = {
        "to_return_median_us": timing.to_return.median_us,
        "to_ready_median_us": timing.to_ready.median_us,
        "to_ready_p99_us": timing.to_ready.p99_us,
        "calls_per_block": timing.calls_per_block,
        "harness_us": timing.harness_us,
    }
    replay.pedantic(_nothing, rounds=len(timing.samples_us))


def _nothing() -> None:
    pass


def _replaying(fixture, seconds: list[float]):
    """A copy of pytest-benchmark's fixture, unused as yet, whose clock ticks by the next of `seconds` in each round."""
    readings = iter([reading for duration in seconds for reading in (0.0, duration)])
    replay = copy.copy(fixture)
    replay._mode = None
    replay._timer = lambda: next(readings)
    return replay
