"""`perfsuite.measure.private.lowering`: what is known of a lowering here, and where a private name has moved."""

import contextlib

import jax
import jax.numpy as jnp
import pytest
from support.private_names import taken_away

from perfsuite import call
from perfsuite.measure.private import capabilities, lowering
from perfsuite.measure.private.capabilities import LOWERING, CapabilityLost
from perfsuite.measure.program.compilation import compile_call
from perfsuite.measure.program.lowering import lower_call

X = jnp.ones(3)


@pytest.fixture
def moved():
    """Takes a name away inside a block."""

    @contextlib.contextmanager
    def inside(name):
        with taken_away(name):
            capabilities.forget()
            yield

    yield inside
    capabilities.forget()


def test_a_lowered_function_says_what_compiler_options_it_was_given():
    options = {"xla_cpu_enable_fast_math": True}
    assert lowering.compiler_options(jax.jit(jnp.sin, compiler_options=options).lower(X)) == options
    assert lowering.compiler_options(jax.jit(jnp.sin).lower(X)) == {}


def second(params, x, unused):
    del unused
    return params["w"] + x


STEP = call(jax.jit(second, donate_argnums=0), {"w": X}, X, X)
"""Its program drops an argument."""


@pytest.mark.parametrize("name", LOWERING.names(), ids=str)
def test_a_moved_name_costs_targets_and_leaves_the_present_device(name, tmp_path, moved):
    whole = jax.jit(second, donate_argnums=0, keep_unused=True)
    known = compile_call(call(whole, *STEP.args)).program()
    with moved(name):
        with pytest.raises(CapabilityLost, match=r"perf\.program\(target=\.\.\.\) does not work with jax"):
            compile_call(STEP, "tpu-v5e")
        compilation = compile_call(call(whole, *STEP.args), cache=tmp_path)
        assert compilation.program().flops == known.flops
        assert [each.path for each in compilation.donations] == ["args[0]['w']"]
        assert not list(tmp_path.iterdir()), "the options of the compiler are not known, so no key has them"


@pytest.mark.parametrize("name", [lowering._LOWER, lowering._DEBUG_INFO, lowering._ARGUMENT_NAMES], ids=str)
def test_without_the_names_of_arguments_a_lost_donation_is_not_known(name, moved):
    assert lower_call(STEP).donations[0].parameter == 0
    with moved(name), pytest.raises(CapabilityLost, match=r"gives some that its program does not use, does not work"):
        lower_call(STEP)
