"""`measure.stack_room`: a call takes what it takes, however deep on the stack it is measured."""

import numpy as np
import pytest
from support.fakes import FakeBlocks

from perfsuite.measure.call import call
from perfsuite.measure.stack_room import with_room
from perfsuite.measure.timing import comparison, scaling, timing, waits
from perfsuite.measure.timing.block import Sample

resource = pytest.importorskip("resource")  # not on Windows

DEPTHS = range(150)
"""More than a chunk of 16 KiB has frames of `at_depth`."""
SMALL_CALLS = 200


def small():
    """Its frame is larger than that of `at_depth`, so there is a depth at which it does not fit."""
    a = b = c = d = e = f = g = h = i = j = k = 0
    return a, b, c, d, e, f, g, h, i, j, k


def page_faults():
    """Of a loop of small calls: one for each of them where every call maps a new chunk."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(SMALL_CALLS):
        small()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def at_depth(depth, fn):
    return at_depth(depth - 1, fn) if depth else fn()


INSTRUMENTS = {
    "comparison": (comparison, lambda made: comparison.compare_calls(made(), made(), seconds=0)),
    "time": (timing, lambda made: timing.time_call(made(), seconds=0)),
    "scaling": (scaling, lambda made: scaling.fit_scaling([made(), made()], np.array([1.0, 2.0]), seconds=0)),
    "stalls": (waits, lambda made: waits.count_stalls(made(), seconds=0)),
}


def test_a_loop_of_small_calls_maps_memory_for_each_of_them_at_one_depth():
    assert max(at_depth(depth, page_faults) for depth in DEPTHS) >= SMALL_CALLS


def test_with_room_it_does_so_at_no_depth():
    @with_room
    def measured(depth):
        return at_depth(depth, page_faults)

    assert max(measured(depth) for depth in range(4 * len(DEPTHS))) < SMALL_CALLS / 2
    assert max(at_depth(depth, lambda: measured(0)) for depth in DEPTHS) < SMALL_CALLS / 2


@pytest.mark.parametrize("instrument", INSTRUMENTS)
def test_no_instrument_measures_it_at_any_depth(monkeypatch, instrument):
    module, measure = INSTRUMENTS[instrument]
    FakeBlocks().install(monkeypatch, module, bare=True)
    seen = []

    def step():
        seen.append(page_faults())
        return Sample(1e5, 1e5)

    for depth in DEPTHS:
        at_depth(depth, lambda: measure(lambda: call(step)))
    assert len(seen) >= 3 * len(DEPTHS)
    assert max(seen) < SMALL_CALLS / 2
