"""While an instrument samples, nothing collects garbage and nothing may compile. `support.fakes` has the clock."""

import gc

import jax
import numpy as np
import pytest
from support.fakes import FakeBlocks, takes

from perfsuite.measure.call import call
from perfsuite.measure.errors import RecompilationError
from perfsuite.measure.timing import comparison, scaling, timing
from perfsuite.measure.timing.comparison import compare_calls
from perfsuite.measure.timing.scaling import fit_scaling
from perfsuite.measure.timing.timing import time_call

INSTRUMENTS = {
    "time": (timing, time_call),
    "compare": (comparison, lambda subject: compare_calls(subject, call(takes(100)))),
    "scaling": (scaling, lambda subject: fit_scaling(lambda n: (subject if n == 1 else call(takes(200)), n), [1, 2])),
}


@pytest.fixture(params=INSTRUMENTS)
def sampling(request, monkeypatch):
    """The fake blocks of an instrument, and what samples a call with it."""
    module, sample = INSTRUMENTS[request.param]
    return FakeBlocks().install(monkeypatch, module), sample


def test_the_collector_is_off_in_every_block_and_on_afterwards(sampling):
    blocks, sample = sampling
    sample(call(takes(100)))
    assert not any(blocks.collecting)
    assert gc.isenabled()


def test_a_compile_in_the_middle_is_an_error_and_no_sample(sampling):
    blocks, sample = sampling
    usual, runs = takes(100), iter(range(1000))

    def step():
        if next(runs) == 5:
            jax.jit(lambda x: x + 1)(np.ones(3))
        return usual()

    with pytest.raises(RecompilationError):
        sample(call(step))
    assert gc.isenabled()
    assert {subject.given_back for subject in blocks.subjects} == {1}
