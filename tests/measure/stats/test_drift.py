"""`measure.stats.drift`: a ratio that moves while it is sampled, and a machine that does."""

import math

import numpy as np
import pytest
from promise.simulation import MODELS, quiet, sides

from perfsuite.measure.measurement import Interval
from perfsuite.measure.stats.drift import LEAST_WINDOWS, trend


def in_logs(candidate, reference):
    return np.log(candidate).reshape(-1, 5), np.log(reference).reshape(-1, 5)


def moving(by, pairs=400, seed=0):
    """Both sides, the candidate slower by `by(t)` at the time t from 0 to 1."""
    rng = np.random.default_rng(seed)
    candidate, reference = sides(rng, quiet(rng, 2 * pairs))
    return in_logs(candidate * (1 + by(np.linspace(0, 1, pairs))), reference)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_a_machine_that_drifts_is_no_trend(model):
    rng = np.random.default_rng(1)
    for slowdown in (1.0, 1.05):
        assert not any(trend(in_logs(*sides(rng, model(rng, 400), slowdown))) for _ in range(200))


@pytest.mark.parametrize("sign", [1, -1])
def test_a_ratio_that_drifts_is_reported_with_both_ends(sign):
    logs = moving(lambda t: 0.1 + sign * 0.09 * t, pairs=2000)
    found = trend(logs)
    early, late = 1.1 + sign * 0.015, 1.1 + sign * 0.075
    assert found.early_ratio == pytest.approx(early, abs=0.004)
    assert found.late_ratio == pytest.approx(late, abs=0.004)
    assert f"drifted from {found.early_ratio:.4g} in the first third" in str(found)
    assert "changes with every call" in str(found)
    middle = math.log((early + late) / 2)
    widened = found.widened(Interval(middle, middle), logs, 0.001)
    low, high = sorted((math.log(early), math.log(late)))
    assert low - 0.012 < widened.low < low < high < widened.high < high + 0.012


@pytest.mark.parametrize("sign", [1, -1])
def test_a_side_that_is_not_warm_at_the_start_is_not_called_drift(sign):
    found = trend(moving(lambda t: sign * 0.2 * np.exp(-30 * t)))
    assert "had not settled" in str(found)
    assert "not warm yet" in str(found)
    assert sign * (found.early_ratio - 1) > 0.03
    assert found.late_ratio == pytest.approx(1, abs=0.01)


def test_the_interval_is_never_made_narrower():
    logs = moving(lambda t: 0.03 * t)
    assert trend(logs).widened(Interval(-1.0, 1.0), logs, 0.001) == Interval(-1.0, 1.0)


def test_parts_too_short_for_an_interval_give_all_that_they_saw():
    logs = moving(lambda t: np.where(t < 0.5, 1.0, 0.0), pairs=60)
    found = trend(logs)
    widened = found.widened(Interval(0.3, 0.4), logs, 1e-9)
    assert widened.low < 0 < math.log(2) < widened.high


def test_few_windows_have_no_trend():
    logs = moving(lambda t: 0.5 * t)
    short = tuple(side[: LEAST_WINDOWS - 1] for side in logs)
    assert trend(short) is None
    assert trend(logs) is not None


def test_a_constant_ratio_has_none():
    times = np.full((40, 5), 2.0)
    assert trend((times, times)) is None
