"""The parts of a static value of Equinox, Flax or Optax are known, so that a message names the part."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from flax import linen, nnx

from perfsuite.measure.compiles import callsite
from perfsuite.measure.compiles.causes import sighting_of
from perfsuite.measure.compiles.signature import changes_between, signature_of


class Net(linen.Module):
    rate: float = 0.5


@dataclasses.dataclass(frozen=True)
class Config:
    width: int = 3
    inner: Any = None
    note: str = dataclasses.field(default="", compare=False)


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


@pytest.mark.parametrize(("wrap", "counts"), [(nnx.jit, True), (jax.jit, False), (eqx.filter_jit, False)])
def test_sharing_counts_where_it_makes_another_program(wrap, counts):
    step = wrap(lambda module: module.scale[...] * 2)
    shared = Inner(0.1)
    shared.again = shared.scale
    sighting = sighting_of(callsite.of_function(step, (shared,), {}))
    assert sighting.shared == ((("args[0].scale", "args[0].again"),) if counts else ())


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
