"""`measure.timing.comparison` over simulated noise: the rates of false alarms and of regressions that it misses."""

import numpy as np
import pytest
from support.fakes import FakeBlocks

from perfsuite.measure.call import call
from perfsuite.measure.timing import comparison
from perfsuite.measure.timing.block import Sample
from perfsuite.measure.timing.comparison import compare_calls


def simulated(monkeypatch, candidate, reference, *, seed, **arguments):
    blocks = FakeBlocks().install(monkeypatch, comparison, bare=True)
    moment = iter(range(1_000_000))

    def side(stream):
        return call(lambda: Sample(*[1e6 * stream(next(moment))] * 2))

    return compare_calls(side(candidate), side(reference), seed=seed, **arguments), blocks


def excludes_one(ratio, overhead):
    return not ratio.interval.low <= 1 <= ratio.interval.high


def lognormal(rng):
    draws = iter(np.exp(0.02 * rng.normal(size=10_000)).tolist())
    return lambda moment: next(draws)


def heavy_tailed(rng):
    """Stalls without a mean: one in a hundred blocks takes many times as long."""
    draws = iter((1 + 0.01 * np.abs(rng.standard_cauchy(size=10_000))).tolist())
    return lambda moment: next(draws)


def drifting(rng):
    """Every block is 1 % slower than the one before it, whichever side it is of: who comes second always loses."""
    draws = iter(np.exp(0.002 * rng.normal(size=10_000)).tolist())
    return lambda moment: 1.01 ** (moment % 100) * next(draws)


def test_comparisons_of_the_same_code_raise_no_alarm(monkeypatch):
    """`tests/promise/test_simulated_gates.py` has the rates; this one samples as `compare_calls` does."""
    for seed, noise in enumerate([lognormal, heavy_tailed, drifting] * 40):
        rng = np.random.default_rng(seed)
        compared, _ = simulated(monkeypatch, noise(rng), noise(rng), settled=excludes_one, seconds=0.5, seed=seed)
        assert not excludes_one(compared.ratio, compared.overhead_us)


@pytest.mark.parametrize(("noise", "seconds"), [(lognormal, 1), (heavy_tailed, 1), (drifting, 4)])
def test_a_planted_slowdown_is_found_and_its_size_is_inside_the_interval(monkeypatch, noise, seconds):
    rng = np.random.default_rng(13)
    found = covered = 0
    for seed in range(40):
        slow = noise(rng)
        compared, _ = simulated(
            monkeypatch,
            lambda moment, slow=slow: 1.03 * slow(moment),
            noise(rng),
            settled=excludes_one,
            seconds=seconds,
            seed=seed,
        )
        found += compared.ratio.interval.low > 1
        covered += compared.ratio.interval.low <= 1.03 <= compared.ratio.interval.high
    assert found == 40
    assert covered >= 38
