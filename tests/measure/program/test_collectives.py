"""Collectives of several slices: those that leave their slice are counted apart, with their bytes and their lines."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec
from support.compiled_texts import jitted, module, read, spec
from support.libtpu_needed import needs_libtpu
from support.programs import program_of

ROWS = PartitionSpec(("slice", "data"))
MESH = AbstractMesh((2, 4), ("slice", "data"))
ARRAY = 128 * 512 * 4
"""The bytes of one device's part."""


def over_both(x):
    return lax.psum(jnp.sin(x), ("slice", "data"))


def over_slices(x):
    return lax.psum(jnp.sin(x), "slice")


def inside(x):
    return lax.psum(jnp.sin(x), "data")


def gathered(x):
    return lax.all_gather(jnp.sin(x), "slice").sum(0)


def exchanged(x):
    return lax.all_to_all(jnp.sin(x), "slice", 0, 0, tiled=True)


def passed_on(x):
    return lax.ppermute(jnp.sin(x), "slice", [(0, 1), (1, 0)])


def five_times(x):
    return lax.fori_loop(0, 5, lambda i, x: lax.psum(jnp.sin(x), "slice"), x)


def compiled(function, slices=2, **options):
    body = jax.shard_map(function, mesh=MESH, in_specs=ROWS, out_specs=ROWS, check_vma=False)
    x = spec(1024, 512, sharding=NamedSharding(MESH, ROWS))
    return program_of(jitted(body, x), "tpu-v5e", slices=slices, **options)


def facts(operations):
    return [(each.what, each.bytes, each.runs) for each in operations]


@needs_libtpu
@pytest.mark.parametrize(
    ("function", "across"),
    [
        (over_both, ("all-reduce", ARRAY // 4, 1)),
        (over_slices, ("all-reduce", ARRAY, 1)),
        (gathered, ("all-gather", ARRAY, 1)),
        (exchanged, ("all-to-all", ARRAY, 1)),
        (passed_on, ("collective-permute", ARRAY, 1)),
        (five_times, ("all-reduce", ARRAY, 5)),
    ],
)
def test_a_collective_that_leaves_its_slice_is_named_with_its_bytes_and_its_line(function, across):
    program = compiled(function)
    assert facts(program.cross_slice_collectives) == [across]
    assert program.cross_slice_bytes == across[1] * across[2]
    (source,) = {each.source for each in program.cross_slice_collectives}
    assert (source.file, source.line) == (__file__, function.__code__.co_firstlineno + 1)
    assert program.host_transfers == ()
    assert program.resharding == ()
    assert program.slices == 2


@needs_libtpu
def test_a_collective_that_stays_in_its_slice_does_not_cross():
    program = compiled(inside)
    assert facts(program.collectives) == [("all-reduce", ARRAY, 1)]
    assert (program.cross_slice_collectives, program.cross_slice_bytes) == ((), 0)


@needs_libtpu
def test_what_nobody_asked_for_is_resharding_also_between_slices():
    x = spec(1024, 512, sharding=NamedSharding(MESH, PartitionSpec("slice")))
    whole = NamedSharding(MESH, PartitionSpec())
    explicit = program_of(jitted(lambda x: jnp.sin(x) + 1, x, out_shardings=whole), "tpu-v5e", slices=2)
    assert [each.what for each in explicit.cross_slice_collectives] == ["all-gather"]
    weights = spec(512, 512, sharding=NamedSharding(MESH, PartitionSpec("slice")))
    rows = spec(1024, 512, sharding=NamedSharding(MESH, ROWS))
    added = program_of(jitted(lambda x, w: x @ w, rows, weights), "tpu-v5e", slices=2)
    assert [each.what for each in added.resharding] == ["all-gather"]
    assert [each.op_name for each in added.cross_slice_collectives] == [each.op_name for each in added.resharding]


SEND = """
    %started = token[] after-all()
    %send = (f32[8,16]{1,0}, u32[], token[]) send(%a, %started), channel_id=1, is_host_transfer=true, frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime",_xla_host_transfer_rendezvous="total.3_0",_xla_megascale_transfer_type="REDUCE_SCATTER"}
    %more = (f32[8,16]{1,0}, u32[], token[]) send(%b, %started), channel_id=2, is_host_transfer=true, frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime",_xla_host_transfer_rendezvous="total.3_1",_xla_megascale_transfer_type="REDUCE_SCATTER"}
    %to_host = (f32[8,16]{1,0}, u32[], token[]) send(%c, %started), channel_id=3, is_host_transfer=true
    %sum = f32[8,16]{1,0} add(%a, %b)
"""


def test_without_the_program_before_the_split_the_kind_and_the_name_are_known():
    program = read(module(SEND))
    assert facts(program.cross_slice_collectives) == [("reduce-scatter", 2 * 8 * 16 * 4, 1)]
    assert program.cross_slice_collectives[0].where == "total.3"
    assert [each.what for each in program.host_transfers] == ["send"], "the one that has no Megascale in it"
