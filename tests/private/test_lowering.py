"""`measure.private.lowering`: what is known of a lowering, what an absent device's compiler gets, and moved names."""

import contextlib

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P
from support.private_names import taken_away

from perfsuite import call
from perfsuite.measure.private import capabilities, lowering
from perfsuite.measure.private import lowering as internals
from perfsuite.measure.private.capabilities import LOWERING, CapabilityLost
from perfsuite.measure.program.compilation import compile_call
from perfsuite.measure.program.lowering import lower_call
from perfsuite.measure.targets.target_compiler import CONFIG

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


def stablehlo(function, *shapes, shardings=None, **jit) -> bytes:
    specs = [
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)
        for shape, sharding in zip(shapes, shardings or [None] * len(shapes), strict=True)
    ]
    lowered = jax.jit(function, **jit).trace(*specs).lower(lowering_platforms=("tpu",))
    return lowered.as_text(debug_info=True).encode()


def test_jax_packs_arguments_from_the_same_number_on():
    from jax._src.dispatch import should_tuple_args

    assert not should_tuple_args(internals.MOST_PLAIN_ARGUMENTS, "tpu")
    assert should_tuple_args(internals.MOST_PLAIN_ARGUMENTS + 1, "tpu")


@pytest.mark.parametrize("name", CONFIG)
def test_the_configuration_that_options_are_made_of_has_the_same_names(name):
    if name.endswith("_effort") and not hasattr(jax.config, name) and jax.__version_info__ >= (0, 11):
        pytest.skip("gone from jax, as 0.12.0.1 has it")
    assert hasattr(jax.config, name)
    assert name in jax.config.values


def test_a_sharding_that_was_not_given_is_the_compilers_to_choose():
    rows = NamedSharding(AbstractMesh((4,), ("data",)), P("data"))
    module = internals.parse_stablehlo(
        stablehlo(lambda x, y: (x + 1, y + 1), *((8,), (8,)), shardings=[rows, None], out_shardings=(rows, None))
    )
    assert internals.propagation(module) == ([False, True], [False, True])


def test_an_output_with_an_open_dimension_is_the_compilers_to_choose():
    text = b"""module {
      sdy.mesh @mesh = <["data"=4]>
      func.func public @main(%a: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"data"}]>})
          -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"data"}]>}) {
        return %a : tensor<8x8xf32>
      }
    }"""
    assert internals.propagation(internals.parse_stablehlo(text)) == ([False], [True])
