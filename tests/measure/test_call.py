"""`call(fn, *args)`: a function with its arguments, ready to run again and again."""

import functools
import itertools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perfsuite.measure.call import call, carried, label_of
from perfsuite.measure.errors import MeasurementError


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


def test_a_donated_state_stays_usable_when_carried():
    donating = jax.jit(lambda state, batch: (state + batch, state.sum()), donate_argnums=0)
    training = call(donating, jnp.zeros(4), jnp.ones(4), carry=1)
    for _ in range(5):
        training.run()
    np.testing.assert_array_equal(training.args[0], np.full(4, 5.0))


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

    def __length_hint__(self):
        return self.says()


def no_length():
    raise NotImplementedError


@pytest.mark.parametrize("kind", [Loader, Hinting])
@pytest.mark.parametrize("says", [no_length, lambda: 10**30, lambda: 0], ids=["none", "huge", "an empty buffer"])
def test_a_loader_that_does_not_know_its_length_is_not_asked(kind, says):
    made = call(lambda loader: next(loader), kind(says))
    for _ in range(3):
        made.run()


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
