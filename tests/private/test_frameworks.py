"""The parts of a static value of Equinox, Flax or Optax are known, so that a message names the part."""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import linen, nnx

from perfsuite.measure.compiles import callsite
from perfsuite.measure.compiles.causes import sighting_of
from perfsuite.measure.compiles.signature import changes_between, signature_of
from perfsuite.measure.private.frameworks import record_fields


class Net(linen.Module):
    rate: float = 0.5


@dataclasses.dataclass(frozen=True)
class Config:
    width: int = 3
    inner: Any = None
    note: str = dataclasses.field(default="", compare=False)


class Point(NamedTuple):
    x: int
    y: int


class Inner(nnx.Module):
    def __init__(self, rate):
        self.rate = rate
        self.scale = nnx.Param(jnp.ones(2))


class Outer(nnx.Module):
    def __init__(self, rate):
        self.first = Inner(0.0)
        self.layers = nnx.List([Inner(0.1), Inner(rate)])
        self.tied = self.first
        self.name = "outer"


def test_a_dataclass_has_the_fields_that_are_compared():
    assert record_fields(Config(4, note="any")) == {"width": 4, "inner": None}


def test_a_linen_module_has_its_attributes():
    assert record_fields(Net(0.25))["rate"] == 0.25


def test_a_named_tuple_and_an_optimizer_have_their_fields():
    assert record_fields(Point(1, 2)) == {"x": 1, "y": 2}
    assert list(record_fields(optax.sgd(0.1))) == ["init", "update"]


def test_a_graph_has_the_static_attributes_of_its_modules_by_path():
    graph = nnx.graphdef(Outer(0.2))
    fields = record_fields(graph)
    assert fields["name"] == "outer"
    assert fields["first.rate"] == 0.0
    assert [value for path, value in fields.items() if path.startswith("layers") and path.endswith("rate")] == [
        0.1,
        0.2,
    ]


@pytest.mark.parametrize(("wrap", "counts"), [(nnx.jit, True), (jax.jit, False), (eqx.filter_jit, False)])
def test_sharing_counts_where_it_makes_another_program(wrap, counts):
    step = wrap(lambda module: module.scale[...] * 2)
    shared = Inner(0.1)
    shared.again = shared.scale
    sighting = sighting_of(callsite.of_function(step, (shared,), {}))
    assert sighting.shared == ((("args[0].scale", "args[0].again"),) if counts else ())


@pytest.mark.parametrize("value", [None, 3, "text", (1, 2), [1], Config, Point, len, object()])
def test_what_is_no_record_has_no_fields(value):
    assert record_fields(value) == {}


@pytest.mark.parametrize(
    ("was", "now", "change"),
    [
        (Config(3, Config(1)), Config(3, Config(2)), "args[0].inner.width: static value was 1, is 2"),
        (Net(0.5), Net(0.25), "args[0].rate: static value was 0.5, is 0.25"),
        (
            nnx.graphdef(Outer(0.2)),
            nnx.graphdef(Outer(0.3)),
            "args[0].layers.1.rate: static value was 0.2, is 0.3",
        ),
    ],
    ids=["dataclass", "linen", "nnx graph"],
)
def test_the_part_that_differs_is_named(was, now, change):
    assert [str(found) for found in changes_between(signature_of((was,)), signature_of((now,)))] == [change]
    assert not changes_between(signature_of((was,)), signature_of((was,)))


def test_a_record_whose_fields_raise_is_compared_as_a_whole():
    @dataclasses.dataclass(frozen=True)
    class Hostile:
        value: int

        def __getattribute__(self, name):
            if name == "value":
                raise RuntimeError("not for you")
            return super().__getattribute__(name)

        def __hash__(self):
            return 1

        def __eq__(self, other):
            return self is other

        def __repr__(self):
            return "Hostile()"

    one, other = Hostile(1), Hostile(1)
    (change,) = changes_between(signature_of((one,)), signature_of((other,)))
    assert change.path == "args[0]"
