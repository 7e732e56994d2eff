"""`call(fn, *args)`: a function with its arguments, ready to run again and again, at any depth of the stack."""

import functools
import itertools
from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np
import pytest
from support.fakes import FakeBlocks

from perfsuite.measure.call import call, carried, label_of, leaves_with_paths, with_room
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.timing import comparison, scaling, timing, waits
from perfsuite.measure.timing.block import Sample


class State(NamedTuple):
    weights: object
    count: object


class Model(eqx.Module):
    weights: jax.Array

    def __call__(self, x):
        return self.weights * x


def step(state, batch, *, rate=1):
    return state + rate * batch, "loss"


def test_a_call_without_carry_runs_with_the_same_arguments_each_time():
    again = call(step, 1, 10, rate=2)
    assert [again.run(), again.run()] == [(21, "loss"), (21, "loss")]
    assert again.args == (1, 10)


def test_a_call_that_carries_feeds_its_outputs_back():
    training = call(step, 1, 10, carry=1, rate=2)
    assert [training.run()[0] for _ in range(3)] == [21, 41, 61]
    assert training.args == (61, 10)


@pytest.mark.parametrize(
    ("outputs", "carry", "expected"),
    [
        ((1, 2, 3), 2, (1, 2, "batch")),
        ([1, 2, 3], 2, (1, 2, "batch")),
        ([1], 1, (1, "optimizer", "batch")),
        ("whole", 1, ("whole", "optimizer", "batch")),
        ({"weights": 1}, 1, ({"weights": 1}, "optimizer", "batch")),
        (State(1, 2), 1, (State(1, 2), "optimizer", "batch")),
        (None, 1, (None, "optimizer", "batch")),
    ],
)
def test_several_outputs_are_a_tuple_or_list_and_anything_else_is_one_output(outputs, carry, expected):
    assert carried(outputs, ("model", "optimizer", "batch"), carry) == expected


@pytest.mark.parametrize(
    ("outputs", "got"), [((1,), "got 1"), ([], "got 0"), (State(1, 2), "got one State"), (None, "got one NoneType")]
)
def test_too_few_outputs_to_carry_name_the_function(outputs, got):
    with pytest.raises(ValueError, match=rf"call\(train_step, carry=2\) needs 2 outputs, {got}"):
        carried(outputs, ("model", "optimizer"), 2, "train_step")


@pytest.mark.parametrize("fn", [None, 3, step(1, 1)])
def test_what_cannot_be_called_is_refused(fn):
    with pytest.raises(TypeError, match="pass the function itself, not its result"):
        call(fn, 1)


def test_a_state_that_is_a_tuple_and_comes_back_as_the_outputs_says_how_to_carry_it_whole():
    params, state = {"w": 1.0}, ({"w": 1.0}, (0, 1))
    with pytest.raises(
        ValueError, match=r"first of them, a dict, would replace args\[0\], a tuple of 2.*return \(state,\)"
    ):
        call(lambda state: state, state, carry=1).run()
    call(lambda state: (state,), state, carry=1).run()
    call(lambda params: (params, 0), params, carry=1).run()


class Stateful:
    def method(self):
        pass

    def __call__(self):
        pass


@pytest.mark.parametrize(
    ("fn", "label"),
    [
        (step, "step"),
        (functools.partial(functools.partial(step, 1), 2), "step"),
        (jax.jit(step), "step"),
        (jax.jit(functools.partial(step, 1)), "step"),
        (eqx.filter_jit(step), "step"),
        (eqx.filter_jit(functools.partial(step, 1)), "step"),
        (functools.partial(jax.jit(step), 1), "step"),
        (lambda: None, "lambda"),
        (Stateful().method, "method"),
        (Stateful(), "Stateful"),
        (Model(None), "Model"),
        (len, "len"),
    ],
)
def test_label_is_the_name_that_a_person_would_say(fn, label):
    assert label_of(fn) == label


def test_a_named_tuple_of_several_outputs_says_how_to_carry_its_fields():
    """As solvers return them: (params, state)."""
    update = call(lambda weights, count: State(weights + 1, count + 1), 0, 0, carry=2)
    with pytest.raises(
        ValueError, match=r"a named tuple is one output; for its fields: call\(lambda \*args: tuple\(fn"
    ):
        update.run()
    fields = call(lambda *args: tuple(update.fn(*args)), 0, 0, carry=2)
    for _ in range(2):
        fields.run()
    assert fields.args == (2, 2)


class Loader:
    """An endless iterator whose length is whatever `says` gives, or raises."""

    def __init__(self, says):
        self.says = says

    def __iter__(self):
        return self

    def __next__(self):
        return 1

    def __len__(self):
        return self.says()


class Hinting(Loader):
    __len__ = None
    __length_hint__ = Loader.__len__


@pytest.mark.parametrize("kind", [Loader, Hinting])
@pytest.mark.parametrize("says", [lambda: 1 / 0, lambda: 10**30, lambda: 0], ids=["none", "huge", "an empty buffer"])
def test_a_loader_that_does_not_know_its_length_is_not_asked(kind, says):
    stepping = call(next, kind(says))
    for _ in range(3):
        stepping.run()


def finite():
    yield from range(3)


@pytest.mark.parametrize(
    ("make", "ends"),
    [
        (finite, True),
        (lambda: iter([1, 2, 3]), True),
        (lambda: iter(range(3)), True),
        (itertools.count, False),
        (lambda: itertools.repeat(1), False),
        (lambda: (each for each in itertools.count()), False),
    ],
    ids=["generator", "list", "range", "count", "repeat", "endless generator"],
)
@pytest.mark.parametrize("by_name", [False, True])
def test_an_iterator_that_a_run_takes_to_its_end_is_refused(make, ends, by_name):
    """The next run would find nothing in it, and seem free. One without an end is a loader."""

    def first_three(numbers):
        return list(itertools.islice(numbers, 4 if ends else 3))

    made = call(first_three, numbers=make()) if by_name else call(first_three, make())
    if ends:
        with pytest.raises(MeasurementError, match=f"takes {'numbers' if by_name else r'args.0.'}, a .* to its end"):
            made.run()
    else:
        for _ in range(3):
            made.run()


def test_leaves_have_the_paths_by_which_the_user_passed_them():
    found = dict(leaves_with_paths(({"kernel": 1}, [2, None]), {"rate": 3}))
    assert found == {"args[0]['kernel']": 1, "args[1][0]": 2, "kwargs['rate']": 3}


DEPTHS = range(150)
"""More than a chunk of 16 KiB has frames of `at_depth`."""
SMALL_CALLS = 200


def small():
    """Its frame is larger than that of `at_depth`, so there is a depth at which it does not fit."""
    a = b = c = d = e = f = g = h = i = j = k = 0
    return a, b, c, d, e, f, g, h, i, j, k


def page_faults():
    """Of a loop of small calls: one for each of them where every call maps a new chunk."""
    resource = pytest.importorskip("resource")  # not on Windows
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


def test_a_loop_of_small_calls_maps_memory_for_each_of_them_at_one_depth_and_with_room_at_none():
    @with_room
    def measured(depth):
        return at_depth(depth, page_faults)

    assert max(at_depth(depth, page_faults) for depth in DEPTHS) >= SMALL_CALLS
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
