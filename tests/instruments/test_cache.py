"""`perf.cache_key` and `perf.cache_hits`: what they ask of fresh processes, and what they refuse. No process starts here."""

from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from perfsuite import Budget, call
from perfsuite.gate.budget import BudgetExceeded
from perfsuite.instruments.base import TestState
from perfsuite.instruments.cache import CacheInstrument
from perfsuite.measure.private.persistent_cache import CachedProgram, ProgramKey
from perfsuite.measure.serialise import plain

STEP = call(jax.jit(lambda x: x + 1), jnp.ones(3))


def key(value):
    return ProgramKey("step", value, {"XLA flags": value}, {"XLA flags": f"--{value}"}, "")


@pytest.fixture
def made():
    """An instrument whose processes see these, or None; and what it asked for."""

    def make(seen):
        asked = []

        def seen_elsewhere(elsewhere):
            asked.append((elsewhere.metric, elsewhere.processes, elsewhere.given))
            return seen if seen is None else plain(seen)

        mode = SimpleNamespace(
            seen_elsewhere=seen_elsewhere,
            fails=lambda result: result.failed,
            gates=True,
            seconds=float,
            seconds_to_know=float,
        )
        session = SimpleNamespace(
            mode=mode,
            check=lambda method, needs: None,
            options=SimpleNamespace(strict=(), save=()),
        )
        item = SimpleNamespace(nodeid="test_step", parent=None)
        return CacheInstrument(TestState(session, item, tolerance=None, seconds=1.0)), asked

    return make


def test_equal_keys_pass_and_are_a_metric(made):
    instrument, asked = made([key("a"), key("a"), key("a")])
    found = instrument.cache_key(STEP)
    assert (found.keys, found.distinct) == (("a", "a", "a"), 1)
    assert asked == [("cache_key", 3, {})]
    (metric,) = instrument._recorder.metrics.values()
    assert (metric.name, metric.value, metric.unit, metric.kind) == ("lambda cache keys", 1, "keys", "count")
    assert metric.id == "cache_key cache keys"


def test_other_keys_fail_and_name_the_first_process_that_differs(made):
    instrument, _ = made([key("a"), key("a"), key("b")])
    with pytest.raises(BudgetExceeded) as raised:
        instrument.cache_key(STEP, name="step")
    assert str(raised.value).splitlines() == [
        "lambda has 2 keys in 3 processes: JAX's persistent cache gives a process only what one with the same key compiled",
        "likely cause: the part 'XLA flags' of the key differs",
        "  process 1: --a",
        "  process 3: --b",
    ]


def program(found=False, not_kept=""):
    return CachedProgram(key("a"), "step", found, not_kept)


def test_a_miss_fails_and_a_budget_allows_it(made):
    seen = [[program(not_kept="it uses host callbacks")], [program()]]
    instrument, _ = made(seen)
    with pytest.raises(
        BudgetExceeded,
        match=r"^lambda: the second process compiled 1 program, and found 0 in the cache\nlikely cause: step: it uses",
    ):
        instrument.cache_hits(STEP)
    instrument, asked = made(seen)
    assert instrument.cache_hits(STEP, budget=Budget(cache_misses=1)).missed == 1
    ((metric, processes, given),) = asked
    assert (metric, processes) == ("cache_hits", 2)
    assert not Path(given["folder"]).exists(), "a temporary folder is gone"
