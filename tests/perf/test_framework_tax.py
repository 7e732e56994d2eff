"""One model and one train step in the ways of Equinox and Flax, beside the same arrays in a list: what the host pays.

`workloads/framework_tax.py` says what each is, and `tests/workloads/training/test_framework_tax.py` holds that they compute the same.
"""

import functools

import numpy as np
import pytest

from perfsuite import call
from perfsuite.workloads.training.framework_tax import FLOOR, VARIANTS, leaves_of, random_weights

from .conftest import UNLIKE

LAYERS = 100
"""602 arrays: about as many as BERT-base has with its AdamW state."""
SIZES = (2, 5, LAYERS)

each_variant = pytest.mark.parametrize("variant", VARIANTS)


@functools.cache
def taxed(variant, layers=LAYERS):
    """The call of one step. The same for the same arguments, so that it is compiled once for all tests."""
    made = VARIANTS[variant](random_weights(layers))
    return call(made.step, *made.args, carry=made.carry)


@each_variant
def test_host_calls_of_a_step(perf, variant):
    counted = perf.host_calls(taxed(variant), name=variant)
    perf.record(f"{variant} host calls a leaf", counted.total / leaves_of(LAYERS), unit="calls", kind="info")


@pytest.fixture
def of_each_size(variant):
    """Makes the call of a model with so many layers, and counts its leaves."""
    return lambda layers: (taxed(variant, layers), leaves_of(layers))


@each_variant
def test_host_calls_are_linear_in_the_leaves(perf, variant, of_each_size):
    fit = perf.scaling(of_each_size, SIZES, metric="host_calls", name=variant)
    assert fit.r_squared > 0.9999 or not fit.per_unit.value


# The tolerance is that of the other slopes of host time. In 0.3 s a slope is known well enough for it.
@pytest.mark.perf(seconds=0.3, tolerance=2.0)
@each_variant
def test_time_grows_with_the_leaves(perf, variant, of_each_size):
    perf.scaling(of_each_size, SIZES, name=variant)


@pytest.mark.perf(seconds=0.6, tolerance=UNLIKE)
@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != FLOOR])
def test_tax(perf, variant):
    """The ratio of the times to return gates; the times themselves are those of the same pairs."""
    made = perf.compare(taxed(variant), taxed(FLOOR), until="return", name=f"{variant}/{FLOOR}")
    for name, samples in ((variant, made.candidate_us), (FLOOR, made.reference_us)):
        for until, us in zip(("return", "ready"), np.median(samples, axis=0), strict=True):
            perf.record(f"{name} to {until}", us, unit="us", kind="info")
    perf.record(f"{variant} a leaf", np.median(made.candidate_us[:, 0]) / leaves_of(LAYERS), unit="us", kind="info")
