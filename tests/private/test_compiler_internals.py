"""`perfsuite.measure.private.compiler_internals`: what the compiler of an absent device is given.

None of these tests needs libtpu.
"""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

from perfsuite.measure.private import compiler_internals as internals
from perfsuite.measure.targets.target_compiler import CONFIG


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
