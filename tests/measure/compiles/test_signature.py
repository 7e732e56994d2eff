"""A signature describes any argument, by readable paths, and holds no array; differences say what JAX would see."""

import collections
import contextlib
import dataclasses
import enum
import functools
import gc
import itertools
import pathlib
import types
import weakref
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import export
from jax._src import test_util
from support.hostile import Hostile, Unreadable

from perfsuite.measure.compiles import callsite, compiles
from perfsuite.measure.compiles.signature import (
    SignatureChange,
    changes_between,
    describe,
    signature_of,
    text_of,
    value_of,
    with_parameters,
)
from perfsuite.measure.private.execution import observing_programs
from perfsuite.measure.runtime.transfers import count_transfers

X = jnp.ones((8, 128))


class Pair(NamedTuple):
    first: object
    second: object


class Mode(enum.Enum):
    TRAIN = 1
    EVAL = 2


def change(before, after) -> SignatureChange:
    (only,) = changes_between(signature_of((before,)), signature_of((after,)))
    (mirrored,) = changes_between(signature_of((after,)), signature_of((before,)))
    assert (mirrored.kind, mirrored.path, mirrored.was, mirrored.now) == (only.kind, only.path, only.now, only.was)
    return only


def same(before, after) -> bool:
    one, other = signature_of((before,)), signature_of((after,))
    found = changes_between(one, other)
    assert (found == ()) == (one == other)
    if one == other:
        assert hash(one) == hash(other)
    return not found


def test_paths_read_as_the_expression_that_reaches_the_leaf():
    class Layer(eqx.Module):
        weight: jax.Array

    class Model(eqx.Module):
        layers: list[Layer]

    state = {"ids": X, "pair": Pair(X, (X, None))}
    signature = signature_of((state, Model([Layer(X)])), {"mask": X})
    assert [path for path, _ in signature.leaves] == [
        "args[0]['ids']",
        "args[0]['pair'].first",
        "args[0]['pair'].second[0]",
        "args[1].layers[0].weight",
        "kwargs['mask']",
    ]
    assert str(signature_of((X, 3))) == "(args[0]: float32[8,128], args[1]: 3)"
    assert str(signature_of(([X] * 6,))).endswith("args[0][3]: float32[8,128], and 2 more)")


@pytest.mark.parametrize(
    "value",
    [
        X,
        np.ones(3),
        np.float32(1.5),
        1,
        True,
        None,
        "text",
        2**70,
        float("nan"),
        ...,
        jnp.float32,
        Mode.TRAIN,
        jax.random.key(0),
        jax.ShapeDtypeStruct((3,), jnp.float32),
        len,
        functools.partial(len, ()),
        lambda: None,
        X.sum,
        object(),
        Hostile(),
        [Hostile()],
        {1: X, 2: None},
        collections.OrderedDict(b=1, a=2),
        collections.defaultdict(list, a=X),
        {"b": 1, 2: "keys that cannot be sorted"},
        {3, 4},
        Pair(1, 2),
        np.array(["text"], dtype=object),
        jax.tree_util.Partial(len, X),
        nnx.Param(jnp.ones(3)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_argument_can_be_described_and_equals_itself(value):
    assert same(value, value)
    assert str(signature_of((value,), {"x": value}))


def test_a_donated_array_is_still_described():
    x = jnp.ones((2, 3)) + 0
    before = signature_of((x,))
    x.delete()
    assert signature_of((x,)) == before


def test_arrays_of_one_kind_are_equal_whatever_their_numbers():
    assert same(X, X + 1)
    assert same(X, np.ones((8, 128), np.float32))
    assert same(X, jax.ShapeDtypeStruct((8, 128), jnp.float32))
    assert same(jax.random.key(0), jax.random.key(1))


def placed(shape, names, kind, *specs):
    mesh = jax.make_mesh(shape, names, axis_types=(kind,) * len(names))
    return [jax.device_put(X, jax.NamedSharding(mesh, spec)) for spec in specs]


AUTO, EXPLICIT = jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit
DATA, BOTH = ("data",), ("data", "model")


def test_the_same_sharding_over_other_devices_differs():
    devices = np.array(jax.devices())
    forwards, backwards = (jax.sharding.Mesh(order, "x") for order in (devices, devices[::-1]))
    one, other = (jax.device_put(X, jax.NamedSharding(mesh, jax.P("x"))) for mesh in (forwards, backwards))
    assert change(one, other).kind == "device"
    assert change(one, jax.device_put(X, jax.NamedSharding(forwards, jax.P(None, "x")))).kind == "sharding"


@functools.partial(jax.tree_util.register_dataclass, data_fields=["x"], meta_fields=["tag"])
@dataclasses.dataclass
class Tagged:
    x: jax.Array
    tag: object


def tagged(*tags):
    return [Tagged(X, tag) for tag in tags]


@pytest.mark.parametrize(
    "arguments",
    [
        placed((2,), DATA, AUTO, jax.P("data"), jax.P("data", None)),
        placed((2,), DATA, AUTO, jax.P(), jax.P(None, None)),
        placed((2, 1), BOTH, AUTO, jax.P("data"), jax.P("data", "model"), jax.P(BOTH)),
        placed((1,), DATA, AUTO, jax.P(), jax.P("data")),
        placed((2,), DATA, EXPLICIT, jax.P("data"), jax.P("data", None)),
        tagged(1, 1.0, True, np.int64(1), np.float32(1), 1 + 0j),
        tagged((1, 2), (1, 2.0), (True, 2), (np.int64(1), 2), Pair(1, 2)),
        tagged(("a", (1,)), ("a", (1.0,))),
        tagged(np.float32, jnp.float32),
    ],
)
def test_what_jax_compiles_once_is_one_signature(arguments):
    step = jax.jit(lambda x: jax.tree.leaves(x)[0] * 2)
    with compiles.count() as counted:
        for argument in arguments:
            step(argument)
    assert counted.compiles == 1, "this version of JAX takes them for several"
    assert all(same(one, other) for one, other in itertools.combinations(arguments, 2))


@pytest.mark.parametrize(
    "arguments",
    [
        placed((2, 1), BOTH, EXPLICIT, jax.P("data"), jax.P("data", "model")),
        placed((1,), DATA, EXPLICIT, jax.P(), jax.P("data")),
        [placed(shape, names, AUTO, jax.P("data"))[0] for shape, names in [((2,), DATA), ((2, 1), BOTH)]],
        [placed((2,), DATA, kind, jax.P("data"))[0] for kind in (AUTO, EXPLICIT)],
        [placed((1,), DATA, AUTO, jax.P())[0], jax.device_put(X, jax.devices()[0])],
        tagged(("a", 1), ("a", 2)),
        tagged(1, "1"),
        tagged((1, 2), (1, 2, 3)),
        tagged(float("nan"), float("nan")),
    ],
)
def test_what_jax_compiles_twice_is_two_signatures(arguments):
    step = jax.jit(lambda x: jax.tree.leaves(x)[0] * 2)
    with compiles.count() as counted:
        for argument in arguments:
            step(argument)
    assert counted.compiles == 2, "this version of JAX takes them for one"
    assert not same(*arguments)


def test_a_python_number_is_told_by_type_and_value():
    assert same(1, 1)
    assert change(1, 2).kind == "number"
    assert change(0.0, 1.5).kind == "number"
    assert same(0.0, -0.0)  # as `==` says, which is what JAX asks
    assert [c.kind for c in changes_between(signature_of((1,)), signature_of((1.0,)))] == ["dtype"]
    assert [c.kind for c in changes_between(signature_of((1,)), signature_of((True,)))] == ["dtype", "weak type"]
    nan = float("nan")
    assert same(nan, nan)
    assert change(nan, float("nan")).kind == "number"


def test_objects_are_compared_by_identity_also_once_they_are_gone():
    class Alike:
        def __hash__(self):
            return 1  # as where a new object has the address of one that is gone

    one, other = Alike(), Alike()
    before = signature_of((one,))
    assert before == signature_of((one,))
    assert len(changes_between(before, signature_of((other,)))) == 1
    del one
    gc.collect()
    assert before == before
    assert before != signature_of((other,))


def test_objects_are_compared_by_equality_also_once_they_are_gone():
    class Config:
        def __init__(self, size):
            self.size = size

        def __eq__(self, other):
            return self.size == other.size

        def __hash__(self):
            return hash(self.size)

    before = signature_of((Config(3),))
    gc.collect()
    assert before == signature_of((Config(3),))
    assert [each.now for each in changes_between(before, signature_of((Config(4),)))] == ["Config(size=4)"]


def test_keyword_and_position_are_told_apart_in_both_directions():
    by_position, by_keyword = signature_of((X, X)), signature_of((X,), {"mask": X})
    (there,), (back,) = changes_between(by_position, by_keyword), changes_between(by_keyword, by_position)
    assert (there.was, there.now) == (back.now, back.was) == ("passed by position", "passed by keyword")
    assert len(changes_between(signature_of((X, X)), signature_of((X,)))) == 1
    changes = changes_between(signature_of((X, X)), signature_of((X[:4],), {"mask": X}))
    assert {c.kind for c in changes} == {"structure", "shape"}


def test_a_node_that_holds_itself_does_not_hang():
    module = nnx.Module()
    module.me = nnx.data(module)
    assert str(signature_of((module,)))


def test_a_signature_keeps_nothing_alive():
    class Static:
        pass

    def closing_over(array):
        return lambda: array

    static = Static()
    static.array = jnp.ones(3)
    array = jnp.ones((3, 4))
    closure = closing_over(array)
    references = [weakref.ref(x) for x in (array, static, static.array, closure)]
    signature = signature_of((array, static, {"f": closure}))
    del array, static, closure
    gc.collect()
    assert [reference() for reference in references] == [None] * 4
    assert str(signature)


@pytest.mark.parametrize("function", [lambda a, b, c: None, lambda *args: None, print, Hostile()])
def test_few_parameters_and_those_without_names_are_left_to_be_counted(function):
    changes = changes_between(signature_of((1.0, 1.0)), signature_of((1.0, 2.0)))
    assert [str(each) for each in with_parameters(changes, function)] == ["args[1]: static value was 1.0, is 2.0"]


def test_an_iterator_among_a_librarys_arguments_is_a_leaf_and_warned_of_nowhere():
    """Pytest makes errors of warnings here, and JAX's goes to whoever takes the iterator apart."""
    numbers = (number for number in range(3))
    assert callsite.CallSite("here", args=(numbers,)).mark == callsite.CallSite("here", args=(numbers,)).mark
    assert describe(numbers) == describe(numbers)
    assert list(numbers) == [0, 1, 2]


class Reads:
    """As a class of a user's: its text has the numbers of an array, and so has that of its equality."""

    __slots__ = ("array",)

    def __init__(self, array):
        self.array = array

    def __eq__(self, other):
        return bool((self.array == other.array).all())

    def __repr__(self):
        return f"Reads({self.array})"


@jax.tree_util.register_pytree_node_class
class WithoutNames:
    numbers = itertools.count()

    def __init__(self, array):
        self.weight, self.pair, self.number = array, [array], next(WithoutNames.numbers)

    def tree_flatten(self):
        return (self.weight, self.pair), self.number

    @classmethod
    def tree_unflatten(cls, auxiliary, children):
        raise AssertionError("nothing is put together")


@dataclasses.dataclass(frozen=True)
class Record:
    array: jax.Array


@pytest.mark.parametrize(
    "make",
    [
        lambda array: nnx.State({"layer": {"kernel": nnx.Param(array)}}),
        nnx.Param,
        WithoutNames,
        Record,
        Reads,
        lambda array: {"deep": collections.deque([Reads(array)])},
        lambda array: functools.partial(len, array, key=Reads(array)),
        lambda array: jax.tree_util.Partial(len, Reads(array)),
        lambda array: slice(array, None),
        jax.new_ref,
    ],
)
def test_describing_and_comparing_runs_and_reads_nothing(make):
    values = [make(jnp.full(3, number)) for number in (1.0, 2.0)]
    runs: list[object] = []
    with compiles.count() as compiled, count_transfers() as moved, observing_programs(runs.append):
        one, other = (signature_of((value, [value], {"static": value})) for value in values)
        texts = [*map(str, changes_between(one, other)), str(one), *map(text_of, values)]
        assert value_of(values[0]) == value_of(values[0])
        texts.append(str(value_of(values[0]) == value_of(values[1])))
    assert (runs, moved.total, compiled.events) == ([], 0, ())
    assert not [text for text in texts if "1." in text or "2." in text]


class Table:
    def __init__(self, rows):
        self.rows = rows

    def __eq__(self, other):
        return isinstance(other, Table) and self.rows.tolist() == other.rows.tolist()

    def __hash__(self):
        return hash(tuple(self.rows.tolist()))


def test_values_that_hold_arrays_are_told_apart_by_the_hash_that_jax_takes():
    ones, zeros = np.ones(3), np.zeros(3)
    assert value_of(Table(ones)) == value_of(Table(ones.copy()))
    assert value_of(Table(ones)) != value_of(Table(zeros))


def test_the_text_of_a_namespace_runs_no_repr_of_what_it_holds():
    class Loud:
        def __repr__(self):
            raise AssertionError

    assert "Loud" in text_of(types.SimpleNamespace(part=Loud()))


def test_texts_are_short_and_say_what_an_object_holds():
    assert text_of(jnp.ones((8, 128))) == "ArrayImpl of float32[8, 128]"
    assert len(text_of("x" * 1000)) == 80
    assert text_of("a\nb") == repr("a\nb")
    assert text_of(Reads(X)) == "Reads(array=ArrayImpl of float32[8, 128])"
    assert text_of([Pair((1,), {"a": Reads}), Mode.EVAL]) == "[Pair(first=(1,), second={'a': Reads}), Mode.EVAL]"
    assert (
        text_of(functools.partial(len, X, key=2))
        == "partial(func=len, args=(ArrayImpl of float32[8, 128],), keywords={'key': 2})"
    )
    assert text_of(pathlib.PurePosixPath("/data")) == "PurePosixPath('/data')"
    assert text_of(jax.P("x")) == repr(jax.P("x"))
    assert text_of(Hostile()) == "Hostile"
    assert value_of(Hostile()) != value_of(Hostile())
    assert value_of(Unreadable()).text == "Unreadable"
    assert value_of(Unreadable()).module == ""


def test_a_tracer_among_the_arguments_of_a_library_runs_nothing():
    """The text of a tracer of `shard_map` runs programs."""
    mesh = jax.make_mesh((2,), "x", devices=jax.devices()[:2], axis_types=(jax.sharding.AxisType.Auto,))

    def run():
        @jax.shard_map(mesh=mesh, in_specs=(jax.P(), jax.P("x")), out_specs=jax.P("x"))
        def scaled_rows(scale, rows):
            return jax.lax.map(functools.partial(lambda scale, row: row * scale, scale), rows)

        return scaled_rows(jnp.float32(2), jnp.arange(8.0))

    run()
    lowered = []
    for context in (contextlib.nullcontext, compiles.count):
        jax.clear_caches()
        with test_util.count_jit_and_pmap_lowerings() as lowerings, context():
            run()
        lowered.append(lowerings())
    assert lowered[0] == lowered[1]


def test_symbolic_sizes_are_described_and_compared():
    (rows, both) = (export.symbolic_shape(text) for text in ("n, 3", "n, m"))
    specs = [jax.ShapeDtypeStruct(shape, np.float32) for shape in (rows, both, (4, 3))]
    assert same(specs[0], jax.ShapeDtypeStruct(export.symbolic_shape("n, 3"), np.float32))
    assert change(specs[0], specs[1]).was == "('n', 3)"
    assert change(specs[0], specs[2]).now == "(4, 3)"


def scaled(rate, tree):
    return lambda x: (x * rate, tree)


def test_what_a_function_holds_is_described_without_reading_or_keeping_it():
    held = jnp.ones(3)
    kept = weakref.ref(held)
    value = value_of(scaled(Hostile(), held))
    assert dict(value.holds) == {"closed-over rate": "Hostile", "closed-over tree": "ArrayImpl of float32[3]"}
    del held
    gc.collect()
    assert kept() is None
