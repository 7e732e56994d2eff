"""Estimated times: of each operation by its source, of what goes on beside it, and of whole programs."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from support.compiled_texts import ORIGIN, compile_here_or_for, computation, module, read, spec

from perfsuite.measure.metric import ESTIMATED
from perfsuite.measure.program.estimate import ATTAINED, STEP_US
from perfsuite.measure.program.program_metrics import metrics_of
from perfsuite.measure.targets.targets import Rates, target

BOTH = pytest.mark.parametrize("name", ["tpu-v5e", "gpu-h100"])

# Of an array f32[8,16], 512 bytes: read and written in 1 us, and sent to another device in 1 us.
GPU = Rates({"bf16": 1e9, "fp32": 1e9}, 1024e6 / ATTAINED, "", link_bandwidth=1024e6 / ATTAINED)
TPU = dataclasses.replace(GPU, links=4, cycles_per_us=1000)


def timed(entry, *before, rates=TPU, partitions=2):
    text = module(entry, *before, header=", is_scheduled=true")
    return read(text, origin=dataclasses.replace(ORIGIN, rates=rates, partitions=partitions))


def cycles(count):
    return f'backend_config={{"window_config":{{"estimated_cycles":"{count}"}}}}'


def of_model(us, name="sol"):
    return f'backend_config={{"reification_cost":[{{"exec_time_us":9e9,"name":""}},{{"exec_time_us":{us},"name":"{name}"}}]}}'


def parts(program, metric):
    (one,) = [each for each in metrics_of(program) if each.name == f"step {metric}"]
    return one.value, one.detail


# One operation -------------------------------------------------------------------------------------------------------


def test_a_tpus_operation_takes_the_cycles_of_its_compiler_else_what_its_bytes_do():
    program = timed(f"""
        %first = f32[8,16]{{1,0}} negate(%a), {cycles(500)}
        %second = f32[8,16]{{1,0}} negate(%first), {cycles(5000)}
        %third = f32[8,16]{{1,0}} negate(%second), {cycles(-1)}
    """)
    estimates = [(each.estimated_us, each.limit, each.basis) for each in program.operations]
    assert estimates[0] == (0.5, "memory", "estimated cycles"), "an array on the chip"
    assert estimates[1:] == [(2.0, "memory", "roofline"), (1.0, "memory", "roofline")], "with a launch, and without"
    assert [each.start_us for each in program.operations] == [0, 0.5, 2.5]
    assert program.estimated_us == program.known_us == 3.5
    assert parts(program, "estimated us") == (3.5, {"negate": 3.5})


@pytest.mark.parametrize(
    ("count", "us", "basis"), [(500, 4, "roofline"), (5000, 5, "estimated cycles"), (50_000, 50, "estimated cycles")]
)
def test_a_tpus_product_takes_its_cycles_within_what_is_likely(count, us, basis):
    """At the published rate its 4,096 FLOP take 4 us."""
    product = "%p = f32[16,16]{1,0} dot(%a, %b), lhs_contracting_dims={0}, rhs_contracting_dims={0}"
    rates = dataclasses.replace(TPU, peak_flops={"bf16": 1024e6})
    (operation,) = timed(f"{product}, {cycles(count)}", rates=rates).operations
    assert (operation.estimated_us, operation.basis, operation.what) == (pytest.approx(us), basis, "product")


@pytest.mark.parametrize(
    ("us", "estimate"),
    [(8.0, (8.0, "sol")), (4.0, (5.096, "roofline")), (160.0, (5.096, "roofline")), (None, (5.096, "roofline"))],
)
def test_a_gpus_product_takes_the_table_where_it_is_near_the_roofline(us, estimate):
    """4,096 FLOP of the product take 4.096 us, more than its bytes; a launch takes 1."""
    config = "" if us is None else f", {of_model(us)}"
    product = "%p = f32[8,8]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={1}"
    (operation,) = timed(
        product + config, rates=dataclasses.replace(GPU, peak_flops={"fp32": 0.5e9 / ATTAINED})
    ).operations
    assert (pytest.approx(operation.estimated_us), operation.basis) == estimate
    assert (operation.what, operation.limit) == ("product", "compute")


@pytest.mark.parametrize(("dtype", "basis"), [("f16", "roofline"), ("bf16", "sol")])
def test_the_table_is_of_two_types(dtype, basis):
    product = (
        f"%p = {dtype}[8,8]{{1,0}} dot(%x, %y), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}, {of_model(4.0)}"
    )
    casts = f"%x = {dtype}[8,16]{{1,0}} convert(%a)\n%y = {dtype}[8,16]{{1,0}} convert(%b)\n"
    rates = dataclasses.replace(GPU, peak_flops={"bf16": 1e10, "fp16": 1e10, "fp32": 1e10})
    assert timed(casts + product, rates=rates).operations[-1].basis == basis


def test_a_product_of_a_type_without_a_rate_is_unknown():
    product = "%p = s4[8,8]{1,0} dot(%x, %y), lhs_contracting_dims={1}, rhs_contracting_dims={1}"
    casts = "%x = s4[8,16]{1,0} convert(%a)\n%y = s4[8,16]{1,0} convert(%b)\n"
    assert timed(casts + product, rates=GPU).estimated_us is None
    assert timed(f"{casts}{product}, {cycles(5000)}").operations[-1].estimated_us == 5, "the compiler says it"


def test_the_table_is_not_for_many_products_in_one():
    product = "%p = f32[8]{0} dot(%a, %b), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={1}"
    (operation,) = timed(f"{product}, rhs_contracting_dims={{1}}, {of_model(2.5)}", rates=GPU).operations
    assert operation.basis == "roofline"


def test_tables_are_for_products_alone():
    (operation,) = timed(f"%n = f32[8,16]{{1,0}} negate(%a), {of_model(3.0)}", rates=GPU).operations
    assert (operation.estimated_us, operation.basis) == (2.0, "roofline")


def test_what_has_no_source_is_named_and_the_rest_is_known():
    program = timed(f"""
        %n = f32[8,16]{{1,0}} negate(%a), {cycles(500)}
        %call = f32[8,16]{{1,0}} custom-call(%n), custom_call_target="tpu_custom_call"
    """)
    assert (program.estimated_us, program.known_us) == (None, 0.5)
    assert [each.estimated_us for each in program.operations] == [0.5, None]
    assert parts(program, "known estimated us")[0] == 0.5
    assert "step estimated us" not in {each.name for each in metrics_of(program)}


def test_what_a_kernel_counts_may_be_products():
    """Its FLOP take the rate of products, those of other operations that of the vector units."""
    cost = 'backend_config={"custom_call_config":{"cost_estimate":{"flops":8000}}}'
    kernel = f'%k = f32[8,16]{{1,0}} custom-call(%a), custom_call_target="tpu_custom_call", {cost}'
    rates = dataclasses.replace(TPU, peak_flops={"bf16": 1e9 / ATTAINED}, vector_flops=64e6 / ATTAINED)
    assert timed(kernel, rates=rates).estimated_us == pytest.approx(8), "the compiler's own"
    assert timed("%n = f32[8,16]{1,0} negate(%a)", rates=rates).estimated_us == pytest.approx(2)
    of_user = kernel.replace(", backend", ', metadata={op_name="jit(f)/scaled/pallas_call"}, backend')
    assert timed(of_user, rates=rates).estimated_us is None, "without its schedule"


def test_without_rates_nothing_is_estimated():
    program = read(module("%n = f32[8,16]{1,0} negate(%a)"))
    assert (program.estimated_us, program.known_us, program.waiting_us) == (None, None, None)
    assert not [each.name for each in metrics_of(program) if each.unit == "us, estimated"]


# The order of the schedule -------------------------------------------------------------------------------------------

GATHER = "(f32[8,16]{1,0}, f32[16,16]{1,0}) all-gather-start"
"""Between two chips it sends 512 bytes both ways of a ring, at 128 bytes a us each, in 1 hop: 3 us."""
GROUPS = "replica_groups={{0,1}}, dimensions={0}"


def gathered(busy):
    """A gather beside operations that take so many microseconds."""
    return f"""
        %start = {GATHER}(%a), {GROUPS}
        {" ".join(f"%n{at} = f32[8,16]{{1,0}} negate(%b)" + chr(10) for at in range(busy))}
        %done = f32[16,16]{{1,0}} all-gather-done(%start)
        %out = (f32[8,16]{{1,0}}, f32[16,16]{{1,0}}) tuple(%n0, %done)
    """


@pytest.mark.parametrize(("busy", "wait", "hidden"), [(1, 2, 1 / 3), (3, 0, 1), (9, 0, 1)])
def test_the_device_waits_for_what_is_left_of_a_collective(busy, wait, hidden):
    program = timed(gathered(busy))
    gather, negate, *_ = program.operations
    assert (gather.what, gather.estimated_us, gather.limit, gather.basis) == ("all-gather", 3, "link", "link")
    assert (gather.waiting_us, negate.waiting_us) == (pytest.approx(wait), None)
    assert (program.estimated_us, program.waiting_us) == (pytest.approx(busy + wait), pytest.approx(wait))
    assert program.hidden_share == pytest.approx(hidden)
    assert parts(program, "waiting us") == (wait, {"all-gather": wait} if wait else None)


def test_a_synchronous_collective_is_waited_for_whole():
    program = timed(f"%g = f32[16,16]{{1,0}} all-gather(%a), {GROUPS}")
    assert (program.estimated_us, program.waiting_us, program.hidden_share) == (3, 3, 0)


def test_a_kernel_that_computes_takes_longer_for_the_collective_that_it_carries():
    """Its product takes 1 us, the collective 3: the parts add up to the whole."""
    both = computation(
        "both",
        "%x = f32[8,16]{1,0} parameter(0)",
        f'%g = f32[16,16]{{1,0}} all-gather(%x), {GROUPS}, frontend_attributes={{chain_id="0"}}',
        "%p = f32[8,8]{1,0} dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={1}",
        "%out = (f32[8,8]{1,0}, f32[16,16]{1,0}) tuple(%p, %g)",
    )
    text = f"%f = (f32[8,8]{{1,0}}, f32[16,16]{{1,0}}) fusion(%a), kind=kLoop, calls=%both, {cycles(1)}"
    rates = dataclasses.replace(TPU, peak_flops={"bf16": 1e15}, memory_bandwidth=1e15)
    program = timed(text, both, rates=rates)
    assert program.estimated_us == pytest.approx(3, rel=0.01)
    assert [each.total_us for each in program.operations] == [pytest.approx(program.estimated_us)]


def test_two_collectives_that_one_instruction_starts_have_a_time_each():
    both = computation(
        "both",
        "%x = f32[8,16]{1,0} parameter(0)",
        f'%g = f32[16,16]{{1,0}} all-gather(%x), {GROUPS}, frontend_attributes={{chain_id="0"}}',
        '%p = f32[8,16]{1,0} collective-permute(%x), source_target_pairs={{0,1}}, frontend_attributes={chain_id="1"}',
        "%out = (f32[16,16]{1,0}, f32[8,16]{1,0}) tuple(%g, %p)",
    )
    program = timed("%f = (f32[16,16]{1,0}, f32[8,16]{1,0}) fusion(%a), kind=kLoop, calls=%both", both)
    assert program.estimated_us == pytest.approx(3 + 5)
    assert program.waiting_us == pytest.approx(3 + 5)


def test_a_copy_to_the_hosts_memory_is_unknown():
    program = timed("""
        %copy = (f32[8,16]{1,0:S(5)}, f32[8,16]{1,0}, u32[]) copy-start(%a)
        %copied = f32[8,16]{1,0:S(5)} copy-done(%copy)
    """)
    assert program.estimated_us is None


def test_two_collectives_share_the_links_and_a_copy_does_not():
    program = timed(f"""
        %one = {GATHER}(%a), {GROUPS}
        %two = {GATHER}(%b), {GROUPS}
        %copy = (f32[8,16]{{1,0}}, f32[8,16]{{1,0}}, u32[]) copy-start(%c)
        %copied = f32[8,16]{{1,0}} copy-done(%copy)
        %done = f32[16,16]{{1,0}} all-gather-done(%one)
        %end = f32[16,16]{{1,0}} all-gather-done(%two)
        %out = (f32[8,16]{{1,0}}, f32[16,16]{{1,0}}, f32[16,16]{{1,0}}) tuple(%copied, %done, %end)
    """)
    first, second, copy = program.operations
    assert [(each.start_us, each.waiting_us) for each in (first, second, copy)] == [(0, 2.5), (3, 3), (0, 0.5)]
    assert (program.estimated_us, program.waiting_us) == (6, 5.5), "a copy is no collective"


NETWORK = 'is_host_transfer=true, frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime"}'
WITH_SLICES = f"""
    %begin = token[] after-all()
    %send = (f32[8,16]{{1,0}}, u32[], token[]) send(%a, %begin), channel_id=1, {NETWORK}
    %recv = (f32[8,16]{{1,0}}, u32[], token[]) recv(%begin), channel_id=2, {NETWORK}
    %g = f32[16,16]{{1,0}} all-gather(%b), {GROUPS}
    %sent = token[] send-done(%send), channel_id=1, {NETWORK}
    %received = (f32[8,16]{{1,0}}, token[]) recv-done(%recv), channel_id=2, {NETWORK}
    %out = f32[8,16]{{1,0}} get-tuple-element(%received), index=0
"""


def test_the_network_goes_both_ways_at_once_and_beside_the_links():
    program = timed(WITH_SLICES, rates=dataclasses.replace(TPU, network_bandwidth=128e6 / ATTAINED))
    assert [(each.what, each.estimated_us, each.waiting_us) for each in program.operations] == [
        ("send", 4, 1),
        ("recv", 4, 0),
        ("all-gather", 3, 3),
    ]
    assert (program.estimated_us, program.waiting_us, program.hidden_share) == (4, 4, pytest.approx(3 / 7))
    assert timed(WITH_SLICES).estimated_us is None


def test_what_a_start_wraps_goes_on_beside_the_rest():
    wrapped = computation(
        "wrapped", "%x = f32[8,16]{1,0} parameter(0)", f"%g = f32[16,16]{{1,0}} all-gather(%x), {GROUPS}"
    )
    program = timed(
        f"""
        %start = ((f32[8,16]{{1,0}}), f32[16,16]{{1,0}}, u32[]) async-start(%a), calls=%wrapped
        %n = f32[8,16]{{1,0}} negate(%b), {cycles(1000)}
        %done = f32[16,16]{{1,0}} async-done(%start)
        %out = (f32[8,16]{{1,0}}, f32[16,16]{{1,0}}) tuple(%n, %done)
        """,
        wrapped,
    )
    assert (program.estimated_us, program.waiting_us) == (3, 2)
    assert [each.waiting_us for each in program.operations if each.what == "all-gather"] == [2]
    program = timed(
        f"""
        %start = ((f32[8,16]{{1,0}}), f32[16,16]{{1,0}}, u32[]) async-start(%a), calls=%wrapped
        %other = {GATHER}(%b), {GROUPS}
        %end = f32[16,16]{{1,0}} all-gather-done(%other)
        %done = f32[16,16]{{1,0}} async-done(%start)
        %out = (f32[16,16]{{1,0}}, f32[16,16]{{1,0}}) tuple(%end, %done)
        """,
        wrapped,
    )
    assert program.estimated_us == pytest.approx(6), "both are on the links"


def test_loops_are_multiplied_with_their_waits():
    state = "(s32[], f32[8,16]{1,0})"
    condition = computation(
        "condition",
        f"%state = {state} parameter(0)",
        "%i = s32[] get-tuple-element(%state), index=0",
        "%limit = s32[] constant(7)",
        f"%less = pred[] compare(%i, %limit), direction=LT, {cycles(500)}",
    )
    body = computation(
        "body",
        f"%state = {state} parameter(0)",
        "%i = s32[] get-tuple-element(%state), index=0",
        "%x = f32[8,16]{1,0} get-tuple-element(%state), index=1",
        "%one = s32[] constant(1)",
        f"%next = s32[] add(%i, %one), {cycles(500)}",
        f"%g = f32[16,16]{{1,0}} all-gather(%x), {GROUPS}",
        f"%n = f32[8,16]{{1,0}} negate(%x), {cycles(2000)}",
        f"%out = {state} tuple(%next, %n)",
    )
    program = timed(
        f"""
        %zero = s32[] constant(0)
        %state = {state} tuple(%zero, %a)
        %loop = {state} while(%state), condition=%condition, body=%body
        %result = f32[8,16]{{1,0}} get-tuple-element(%loop), index=1
        """,
        condition,
        body,
    )
    assert (program.estimated_us, program.waiting_us) == (7 * 6, 7 * 3)
    assert [(each.iterations, each.start_us, each.estimated_us) for each in program.loops] == [(7, 0, 7 * 6)]
    by_name = {each.what: each for each in program.operations}
    assert [by_name[name].start_us for name in ("compare", "add", "all-gather", "negate")] == [0, 0.5, 1, 4]
    assert parts(program, "estimated us")[1] == {"all-gather": 21, "negate": 14, "add": 3.5, "compare": 3.5}


def test_of_a_conditional_the_longest_branch_counts():
    branches = [
        computation(
            f"branch{number}",
            "%x = f32[8,16]{1,0} parameter(0)",
            f"%n = f32[8,16]{{1,0}} negate(%x), {cycles(100 * number)}",
        )
        for number in (2, 5, 3)
    ]
    program = timed(
        """
        %which = s32[] constant(0)
        %r = f32[8,16]{1,0} conditional(%which, %a, %b, %c), branch_computations={%branch2, %branch5, %branch3}
        """,
        *branches,
    )
    assert program.estimated_us == 0.5


# Collectives ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("groups", "size"),
    [("{{0,1},{2,3}}", 2), ("{{0,1,2,3}}", 4), ("[2,4]<=[8]", 4), ("{}", 8)],
    ids=["two", "four", "iota", "all"],
)
def test_the_group_of_a_collective_is_that_of_its_devices(groups, size):
    text = f"%p = f32[8,16]{{1,0}} all-reduce(%a), replica_groups={groups}, to_apply=%add"
    add = computation("add", "%x = f32[] parameter(0)", "%y = f32[] parameter(1)", "%sum = f32[] add(%x, %y)")
    (operation,) = timed(text, add, partitions=8).operations
    assert operation.estimated_us == pytest.approx(2 * (size - 1) / size * 512 / 256 + size // 2)


def test_a_switch_has_no_hops_and_a_permutation_one_way():
    gather, permute = (
        f"%g = f32[16,16]{{1,0}} all-gather(%a), {GROUPS}",
        "%p = f32[8,16]{1,0} collective-permute(%a), source_target_pairs={{0,1},{1,0}}",
    )
    assert timed(gather, rates=GPU).estimated_us == 1 + 5, "NCCL's launch"
    assert timed(permute).estimated_us == 4 + 1
    without_links = timed(permute, rates=dataclasses.replace(TPU, link_bandwidth=None))
    assert (without_links.estimated_us, without_links.waiting_us) == (None, None)
    assert timed(gather, rates=GPU, partitions=16).estimated_us is None, "two hosts"


# The model -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "of_product", "of_exponential", "times"),
    [
        ("tpu-v5e", cycles(90), cycles(90_000), [24.1, 87.21, 49.2, 53.75, 395.8, 198.4]),
        ("gpu-h100", of_model(1.5), of_model(30.0), [6.892, 41.91, 12.78, 11.71, 48.86, 48.86]),
    ],
)
def test_another_model_of_estimates_has_another_unit(name, of_product, of_exponential, times):
    """Where these times change, so must `ESTIMATED`: a baseline of the model before is not comparable then."""
    cost = 'backend_config={"custom_call_config":{"cost_estimate":{"flops":9000000000}}}'
    program = timed(
        f"""
        %zero = f32[] constant(0)
        %x = f32[2048,2048]{{1,0}} broadcast(%zero), dimensions={{}}
        %p = f32[2048,2048]{{1,0}} dot(%x, %x), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}, {of_product}
        %e = f32[2048,2048]{{1,0}} exponential(%p), {of_exponential}
        %k = f32[2048,2048]{{1,0}} custom-call(%e), custom_call_target="tpu_custom_call", {cost}
        %m = f32[2048,2048]{{1,0}} collective-permute(%k), source_target_pairs={{{{0,1}}}}
        %g = f32[4096,2048]{{1,0}} all-gather(%m), {GROUPS}
        """,
        rates=target(name).rates,
    )
    assert [float(f"{each.estimated_us:.4g}") for each in program.operations] == times
    assert program.estimated_us == pytest.approx(sum(times), rel=1e-3)
    assert (ESTIMATED, STEP_US) == ("us, estimated", 0.35)


# Compiled programs ---------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (jnp.matmul, [spec(4096, 4096, dtype=jnp.bfloat16), spec(4096, 4096, dtype=jnp.bfloat16)]),
        (jnp.matmul, [spec(8192, 1024, dtype=jnp.bfloat16), spec(1024, 8192, dtype=jnp.bfloat16)]),
        (jnp.matmul, [spec(8192, 4096, dtype=jnp.bfloat16), spec(4096, 16384, dtype=jnp.bfloat16)]),
        (jnp.add, [spec(8192, 8192), spec(8192, 8192)]),
        (lambda x: x * 2 + 1, [spec(16384, 8192)]),
        (lambda x: jnp.exp(x).sum(), [spec(16384, 8192)]),
        (lambda x: x.sum(1), [spec(8192, 8192)]),
        (lambda x: x.max(0), [spec(8192, 8192)]),
        (lambda x: x.astype(jnp.bfloat16), [spec(8192, 8192)]),
        (lambda x: jnp.where(x > 0, x, 0), [spec(8192, 8192, dtype=jnp.bfloat16)]),
        (jnp.tanh, [spec(8192, 8192)]),
        (lambda x, y: x * y + x, [spec(64, 1024, 1024), spec(64, 1024, 1024)]),
    ],
)
def test_programs_of_one_kernel_are_near_their_roofline(name, function, arguments):
    """Twelve hand-made ones: products, copies, reductions."""
    rates, program = target(name).rates, compile_here_or_for(name, function, *arguments)
    size = sum(
        each.size * each.dtype.itemsize for each in (*arguments, *jax.tree.leaves(jax.eval_shape(function, *arguments)))
    )
    flops = 2 * arguments[0].shape[0] * arguments[1].size if function is jnp.matmul else 0
    roofline = max(size / rates.memory_bandwidth, flops / rates.peak_flops["bf16"]) * 1e6
    assert 1 <= program.estimated_us / roofline < 1.5


@BOTH
def test_a_scan_of_33_for_32_is_longer_by_one(name):
    def scan(length):
        return lambda w, x: lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, None, length=length)[0]

    arguments = spec(1024, 1024, dtype=jnp.bfloat16), spec(2048, 1024, dtype=jnp.bfloat16)
    shorter, longer = (compile_here_or_for(name, scan(length), *arguments) for length in (32, 33))
    assert longer.estimated_us / shorter.estimated_us == pytest.approx(33 / 32, rel=0.01)


@BOTH
def test_a_sharded_product_waits_for_its_gather_or_hides_it(name):
    mesh = Mesh(np.array(jax.devices()[:8]), ("x",))
    rows, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("x",), ()))
    weights = spec(4096, 4096, dtype=jnp.bfloat16, sharding=rows)
    batch = spec(4096, 4096, dtype=jnp.bfloat16, sharding=whole)

    def step(w, x):
        return x @ lax.with_sharding_constraint(w, whole)

    program = compile_here_or_for(name, step, weights, batch)
    assert program.estimated_us is not None
    over_links = sum(each.estimated_us * each.runs for each in program.operations if each.limit == "link")
    assert over_links > 0
    assert program.waiting_us == pytest.approx((1 - program.hidden_share) * over_links)
    assert program.known_us >= program.waiting_us
