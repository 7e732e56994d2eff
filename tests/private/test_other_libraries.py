"""Names of Equinox, Flax, pytest-xdist and pytest-benchmark are where they were; without one a message says less."""

import equinox as eqx
import flax.nnx
import jax.numpy as jnp
import pytest

from perfsuite.gate.advice import advice_on
from perfsuite.measure.compiles import callsite, compiles
from perfsuite.measure.compiles.causes import sighting_of
from perfsuite.measure.errors import RecompilationError
from perfsuite.measure.private import capabilities
from perfsuite.measure.private.capabilities import FLAX, LIBRARY_FUNCTIONS
from perfsuite.measure.private.frameworks import copy_arrays, graph_children, is_nnx_jit, record_fields
from perfsuite.measure.private.libraries import waits
from perfsuite.measure.private.names import Attribute, Frame, Functions, Name
from tests.support.private_names import taken_away, without

X = jnp.ones(3)
OF_FRAMEWORKS = [(each, name) for each in (LIBRARY_FUNCTIONS, FLAX) for name in each.names() if name.is_current()]


class Net(flax.nnx.Module):
    def __init__(self):
        self.scale = flax.nnx.Param(X)
        self.rate = 0.5


class Loose(flax.nnx.Module, pytree=False):
    def __init__(self):
        self.scale = flax.nnx.Param(X)


@pytest.mark.parametrize(("capability", "name"), OF_FRAMEWORKS, ids=lambda each: str(getattr(each, "name", each)))
def test_without_a_name_of_a_framework_a_message_says_less_and_nothing_fails(capability, name):
    nnx_step, eqx_step = flax.nnx.jit(lambda net: net.scale[...] * 2), eqx.filter_jit(lambda x: x + 1)
    with taken_away(name):
        capabilities.forget()
        assert capability.lost()
        try:
            for step, args in ((nnx_step, (Net(),)), (nnx_step, (Loose(),)), (eqx_step, (X,))):
                with pytest.raises(RecompilationError), compiles.forbid():
                    step(*args)
                step(*args)
                assert sighting_of(callsite.of_function(step, args, {}))
            assert isinstance(is_nnx_jit(nnx_step), bool)
            assert "scale" in graph_children(Loose())
            assert record_fields(flax.nnx.graphdef(Net())).get("rate") == (None if capability is FLAX else 0.5)
            assert copy_arrays((Net(),))[0].rate == 0.5
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


@pytest.mark.parametrize(
    "name",
    [
        Name("no_such_library.a", "f"),
        Name("no_such_library", "f", since="1.0"),
        Frame("no_such_library", "f"),
        Attribute("no_such_library", "a"),
        Functions("no_such_library"),
    ],
    ids=str,
)
def test_a_library_that_is_not_installed_has_lost_nothing(name):
    assert name.missing() == ""
