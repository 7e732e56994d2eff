"""Names of Equinox, Flax and the functions of libraries are where they were; without one a message says less."""

import dataclasses
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import pytest
from flax import linen, nnx

from perfsuite.gate.advice import advice_on
from perfsuite.measure.compiles import callsite, compiles
from perfsuite.measure.compiles.causes import sighting_of
from perfsuite.measure.compiles.signature import changes_between, signature_of
from perfsuite.measure.errors import RecompilationError
from perfsuite.measure.private import capabilities
from perfsuite.measure.private.capabilities import FLAX, LIBRARY_FUNCTIONS
from perfsuite.measure.private.frameworks import copy_arrays, graph_children, is_nnx_jit, record_fields
from perfsuite.measure.private.libraries import waits
from tests.support.private_names import taken_away, without

X = jnp.ones(3)


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


OF_FRAMEWORKS = [(each, name) for each in (LIBRARY_FUNCTIONS, FLAX) for name in each.names() if name.is_current()]


class Loose(nnx.Module, pytree=False):
    def __init__(self):
        self.scale = nnx.Param(X)


@pytest.mark.parametrize(("capability", "name"), OF_FRAMEWORKS, ids=lambda each: str(getattr(each, "name", each)))
def test_without_a_name_of_a_framework_a_message_says_less_and_nothing_fails(capability, name):
    nnx_step, eqx_step = nnx.jit(lambda net: net.scale[...] * 2), eqx.filter_jit(lambda x: x + 1)
    with taken_away(name):
        capabilities.forget()
        assert capability.lost()
        try:
            for step, args in ((nnx_step, (Inner(0.5),)), (nnx_step, (Loose(),)), (eqx_step, (X,))):
                with pytest.raises(RecompilationError), compiles.forbid():
                    step(*args)
                step(*args)
                assert sighting_of(callsite.of_function(step, args, {}))
            assert isinstance(is_nnx_jit(nnx_step), bool)
            assert "scale" in graph_children(Loose())
            assert record_fields(nnx.graphdef(Inner(0.5))).get("rate") == (None if capability is FLAX else 0.5)
            assert copy_arrays((Inner(0.5),))[0].rate == 0.5
        finally:
            capabilities.forget()


def test_advice_is_lost_with_its_function_and_no_other():
    with without(LIBRARY_FUNCTIONS):
        assert LIBRARY_FUNCTIONS.lost()
        assert not waits("jax._src.api:block_until_ready")
        assert advice_on("equinox._jit:filter_jit") == advice_on("jax._src.api:jit") == advice_on("jax.mine:f")
        assert "call it inside the jitted step" in advice_on("optax.transform:update")
    assert waits("jax._src.api:block_until_ready")
    assert "outside the loop" in advice_on("equinox._jit:filter_jit")
