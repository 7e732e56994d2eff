"""`call(fn, *args)`: a function with its arguments, ready to run again and again, at any depth of the stack."""

import functools
import itertools
import re
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fakes import FakeBlocks

from perfsuite.measure.call import call, carried, label_of, leaves_with_paths, with_room
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.program.compilation import compile_call
from perfsuite.measure.runtime.dispatches import dispatches
from perfsuite.measure.runtime.fast_path import fast_path
from perfsuite.measure.runtime.host_calls import host_calls
from perfsuite.measure.runtime.memory import donation_of, memory_of
from perfsuite.measure.timing import comparison, scaling, timing, waits
from perfsuite.measure.timing.block import Sample
from perfsuite.measure.timing.timing import time_call


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
    kwargs = {"rate": 1}
    assert carried(outputs, ("model", "optimizer", "batch"), kwargs, carry) == (expected, kwargs)


@pytest.mark.parametrize(
    ("outputs", "got"), [((1,), "got 1"), ([], "got 0"), (State(1, 2), "got one State"), (None, "got one NoneType")]
)
def test_too_few_outputs_to_carry_name_the_function(outputs, got):
    with pytest.raises(ValueError, match=rf"call\(train_step, carry=2\) needs 2 outputs, {got}"):
        carried(outputs, ("model", "optimizer"), {}, 2, "train_step")


# Which output becomes which argument.

ARGUMENTS = (0, 1, 2, 3, "rate", "state")


def mixes(*args, rate, state):
    """As many outputs as arguments, each of which depends on all of them."""
    total = sum(args) + rate + state
    return tuple(total + 10**place for place in range(len(ARGUMENTS)))


@st.composite
def carries(draw):
    outputs = draw(st.lists(st.integers(0, len(ARGUMENTS) - 1), unique=True, max_size=len(ARGUMENTS)))
    return dict(zip(outputs, draw(st.permutations(ARGUMENTS)), strict=False))


@given(carries(), st.integers(1, 4))
def test_a_call_that_carries_by_place_and_name_is_a_hand_written_loop(carry, runs):
    args, kwargs = [1, 2, 3, 4], {"rate": 5, "state": 6}
    looped = call(mixes, *args, carry=carry, **kwargs)
    for _ in range(runs):
        outputs = mixes(*args, **kwargs)
        assert looped.run() == outputs
        for output, argument in carry.items():
            (args if isinstance(argument, int) else kwargs)[argument] = outputs[output]
    assert (looped.args, looped.kwargs) == (tuple(args), kwargs)
    state = {f"args[{place}]" if isinstance(place, int) else f"kwargs['{place}']" for place in carry.values()}
    assert {path for path, _ in looped.state()} == state


@functools.partial(jax.jit, static_argnums=2, donate_argnames=("params", "moments"))
def train(x, params, scale, *, moments):
    moments = jax.tree.map(lambda old, new: 0.5 * old + x.mean() * new, moments, params)
    return {"moments": moments, "params": jax.tree.map(lambda old, new: old - scale * new, params, moments)}


def trained(steps, make_state):
    params, moments = make_state(), make_state()
    for _ in range(steps):
        outputs = train(jnp.ones(4), params, 0.1, moments=moments)
        params, moments = outputs["params"], outputs["moments"]
    return params, moments


@pytest.mark.parametrize(
    "measure",
    [
        lambda stepping: [stepping.run() for _ in range(3)],
        host_calls,
        dispatches,
        fast_path,
        memory_of,
        donation_of,
        compile_call,
        lambda stepping: time_call(stepping, seconds=0),
    ],
)
def test_a_state_that_is_donated_and_carried_by_name_survives_every_instrument(measure):
    make_state = lambda: {"kernel": jnp.ones((3, 3)), "bias": jnp.zeros(3)}
    runs = itertools.count()
    stepping = call(
        train, jnp.ones(4), make_state(), 0.1, moments=make_state(), carry={"params": 1, "moments": "moments"}
    )
    bare = stepping.fn
    stepping.fn = functools.wraps(bare)(lambda *args, **kwargs: (next(runs), bare(*args, **kwargs))[1])
    stepping.fn.lower = bare.lower
    measure(stepping)
    expected = trained(next(runs), make_state)
    assert jax.tree.all(jax.tree.map(np.array_equal, (stepping.args[1], stepping.kwargs["moments"]), expected))
    assert [path for path, _ in stepping.state()] == [
        *("args[1]['bias']", "args[1]['kernel']", "kwargs['moments']['bias']", "kwargs['moments']['kernel']")
    ]


def test_what_is_carried_by_name_and_not_donated_says_by_which_name_to_donate_it():
    kept = jax.jit(train.__wrapped__, static_argnums=2)
    state = jnp.ones(3)
    donation = donation_of(call(kept, state, state, 0.1, moments=state, carry={"params": 1, "moments": "moments"}))
    assert {leaf.path: leaf.reason for leaf in donation.undonated} == {
        "args[1]": "not donated; jit the step with donate_argnums for argument 1",
        "kwargs['moments']": "not donated; jit the step with donate_argnames for argument 'moments'",
    }


@pytest.mark.parametrize(
    ("outputs", "carry", "expected"),
    [
        ("whole", {0: 1}, ("a", "whole")),
        (State(1, 2), {0: 1}, ("a", State(1, 2))),
        (State(1, 2), {"count": 0}, (2, "b")),
        ({"x": 1, "y": None}, {"y": 0, "x": 1}, (None, 1)),
        ([1, 2], {1: 0}, (2, "b")),
    ],
)
def test_an_output_is_named_by_its_place_its_key_or_its_attribute(outputs, carry, expected):
    assert carried(outputs, ("a", "b"), {}, carry) == (expected, {})


@pytest.mark.parametrize(
    ("outputs", "place", "message"),
    [
        ((1, 2), 2, "no output 2; the function returns a tuple of 2"),
        ((1, 2), "count", "no output 'count'; the function returns a tuple of 2"),
        ("whole", 1, "no output 1; the function returns one str"),
        ({"x": 1}, "y", "no output 'y'; the function returns one dict with 'x'"),
        (State(1, 2), "rate", "no output 'rate'; the function returns one State"),
    ],
)
def test_an_output_that_is_not_there_is_named(outputs, place, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call(lambda state: outputs, 1, carry={place: 0}).run()


@pytest.mark.parametrize(
    ("carry", "error", "message"),
    [
        ({0: 2}, ValueError, "no argument is passed as 2; those of this call: 0, 1, 'rate'"),
        ({0: "batch"}, ValueError, "no argument is passed as 'batch'; those of this call: 0, 1, 'rate'"),
        ({0: 1, 1: 1}, ValueError, "two outputs become argument 1"),
        ({-1: 0}, TypeError, "an output or an argument is a place, from 0, or a name, got -1"),
        ({0: True}, TypeError, "an output or an argument is a place, from 0, or a name, got True"),
        ({0: (1,)}, TypeError, "an output or an argument is a place, from 0, or a name, got (1,)"),
        ([0, 1], TypeError, "carry must be an int, or {output: argument}, got [0, 1]"),
    ],
)
def test_an_argument_that_cannot_be_carried_is_refused_when_the_call_is_made(carry, error, message):
    with pytest.raises(error, match=re.escape(message)):
        call(step, 1, 10, carry=carry, rate=2)


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
