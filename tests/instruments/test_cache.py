"""`perf.cache_key` and `perf.cache_hits`: what they make of what fresh processes return. No process starts here."""

import contextlib

import jax
import jax.numpy as jnp
import pytest

from perfsuite import Budget, BudgetExceeded, call
from perfsuite.measure.private.persistent_cache import CachedProgram, ProgramKey
from perfsuite.measure.serialise import plain

STEP = call(jax.jit(lambda x: x + 1), jnp.ones(3))


def key(value):
    return ProgramKey("step", value, {"XLA flags": value}, "")


@pytest.fixture
def perf_with(bare_perf):
    """A `Perf` to which fresh processes return these values."""

    def perf_with(values):
        bare_perf._state.session.mode.elsewhere = lambda asked: plain(values)
        return bare_perf

    return perf_with


def unless(passes):
    return contextlib.nullcontext() if passes else pytest.raises(BudgetExceeded)


@pytest.mark.parametrize(
    ("keys", "budget", "passes"),
    [
        ("aaa", {}, True),
        ("aab", {}, False),
        ("aab", {"budget": Budget(cache_keys=2)}, True),
        ("aab", {"budget": Budget()}, True),
    ],
)
def test_keys_are_equal_but_for_those_that_a_budget_allows(perf_with, keys, budget, passes):
    perf = perf_with([key(each) for each in keys])
    with unless(passes):
        assert perf.cache_key(STEP, **budget).keys == tuple(keys)
    (metric,) = perf._state.recorder.metrics.values()
    assert (metric.id, metric.value, metric.unit, metric.kind) == (
        "cache_key cache keys",
        len(set(keys)),
        "keys",
        "count",
    )
    assert ("the part 'XLA flags' of the key differs" in str(perf._state.recorder.results)) is not passes


def test_where_no_process_starts_a_test_goes_on_until_it_reads_a_number_that_is_not_known(perf_with, monkeypatch):
    perf = perf_with(None)
    keys, hits = perf.cache_key(STEP), perf.cache_hits(STEP)
    assert (keys.distinct, keys.keys, hits.missed, hits.misses) == (1, (), 0, ())
    assert perf._state.recorder.metrics == {}
    monkeypatch.setattr("perfsuite.instruments.instructions.why_no_instructions", lambda: "")
    counted = perf.instructions(STEP)
    with pytest.raises(pytest.skip.Exception, match=r"^perf\.instructions measures nothing in this process"):
        assert counted.total


@pytest.mark.parametrize(
    ("budget", "passes"), [({}, False), ({"budget": Budget(cache_misses=1)}, True), ({"budget": Budget()}, True)]
)
def test_a_miss_fails_and_a_budget_allows_it(perf_with, budget, passes):
    miss = CachedProgram(key("a"), "step", False, "it uses host callbacks")
    perf = perf_with([[miss], [miss]])
    with unless(passes):
        assert perf.cache_hits(STEP, **budget).missed == 1
    assert {metric.id: metric.value for metric in perf._state.recorder.metrics.values()} == {
        "cache_hits cache misses": 1,
        "cache_hits": 0,
    }
