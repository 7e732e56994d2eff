"""What a report keeps of a program's estimated times: its timeline, and its parts beside those of the baseline."""

import dataclasses

import pytest
from support.compiled_texts import ORIGIN, computation, module, read

from perfsuite.measure.program.estimate import ATTAINED
from perfsuite.measure.program.program import sum_of
from perfsuite.measure.targets.targets import Rates
from perfsuite.session import records
from perfsuite.session.records import timeline_of

# A GPU that reads and writes an array f32[8,16] in 1 us, starts a kernel in 1, and sends 512 bytes in 1 + 5.
RATES = Rates({"fp32": 1e12}, 1024e6 / ATTAINED, "", link_bandwidth=1024e6 / ATTAINED)
NEGATE = "%{} = f32[8,16]{{1,0}} negate(%{})"


def timed(entry, *before):
    return read(
        module(entry, *before, header=", is_scheduled=true"),
        origin=dataclasses.replace(ORIGIN, rates=RATES, partitions=2),
    )


def gathered():
    return timed("""
        %start = (f32[8,16]{1,0}, f32[16,16]{1,0}) all-gather-start(%a), replica_groups={{0,1}}, dimensions={0}
        %copy = (f32[8,16]{1,0}, f32[8,16]{1,0}, u32[]) copy-start(%c)
        %n = f32[8,16]{1,0} negate(%b)
        %copied = f32[8,16]{1,0} copy-done(%copy)
        %done = f32[16,16]{1,0} all-gather-done(%start)
        %out = (f32[8,16]{1,0}, f32[8,16]{1,0}, f32[16,16]{1,0}) tuple(%n, %copied, %done)
    """)


def looped():
    state = "(s32[], f32[8,16]{1,0})"
    parts = (
        f"%state = {state} parameter(0)",
        "%i = s32[] get-tuple-element(%state), index=0",
        "%x = f32[8,16]{1,0} get-tuple-element(%state), index=1",
        "%one = s32[] constant(1)",
    )
    condition = computation(
        "condition", *parts, "%limit = s32[] constant(7)", "%l = pred[] compare(%i, %limit), direction=LT"
    )
    body = computation(
        "body", *parts, "%next = s32[] add(%i, %one)", NEGATE.format("m", "x"), f"%out = {state} tuple(%next, %m)"
    )
    return timed(
        f"""
        {NEGATE.format("before", "a")}
        %zero = s32[] constant(0)
        %state = {state} tuple(%zero, %before)
        %loop = {state} while(%state), condition=%condition, body=%body
        %x = f32[8,16]{{1,0}} get-tuple-element(%loop), index=1
        {NEGATE.format("after", "x")}
        """,
        condition,
        body,
    )


def test_collectives_and_copies_have_lanes_of_their_own_with_what_the_device_waits_for_them():
    program = gathered()
    timeline = timeline_of(program)
    assert [(each.lane, each.part, each.limit) for each in timeline.blocks] == [
        ("collectives", "all-gather", "link"),
        ("device", "negate", "memory"),
        ("copies", "copy-start", "memory"),
    ]
    gather, negate, copy = timeline.blocks
    assert (gather.start_us, negate.start_us, copy.start_us) == (0, 0, 0)
    assert (negate.end_us, negate.waiting_us, copy.waiting_us) == (2, 0, 0)
    assert gather.end_us == timeline.us == program.estimated_us
    assert gather.waiting_us == timeline.waiting_us == gather.end_us - negate.end_us


def test_a_loop_is_one_block_around_its_first_iteration():
    program = looped()
    timeline = timeline_of(program)
    before, loop, *inner, after = timeline.blocks
    assert (before.start_us, before.end_us, before.lane, before.runs) == (0, 2, "device", 1)
    assert (loop.start_us, loop.end_us, loop.lane, loop.runs) == (2, after.start_us, "loops", 1)
    assert loop.part == "loop of 7 iterations"
    assert [each.part for each in inner] == ["compare", "add", "negate"]
    for earlier, later in zip(inner, [*inner[1:]], strict=False):
        assert earlier.end_us == later.start_us
    assert (loop.end_us - loop.start_us) / 7 == pytest.approx(inner[-1].end_us - loop.start_us, abs=1e-3)
    assert after.end_us == timeline.us == pytest.approx(program.estimated_us, abs=1e-3)
    assert [each.runs for each in inner] == [7, 7, 7]


def test_the_programs_of_a_function_that_is_not_jitted_follow_on_each_other():
    once = gathered()
    timeline = timeline_of(sum_of([once, once]))
    assert [each.start_us for each in timeline.blocks if each.lane == "device"] == [0, once.known_us]
    assert timeline.us == 2 * once.known_us


def test_a_collective_or_copy_adds_what_the_device_waits_for_it():
    gather, negate, copy = timeline_of(gathered()).blocks
    assert (gather.own_us - gather.added_us, gather.basis) == (2, "link")
    assert (negate.own_us, negate.added_us) == (2, 2)
    assert (copy.own_us, copy.added_us) == (0.5, 0)
    program = looped()
    added = sum(each.added_us for each in timeline_of(program).blocks)
    assert added == pytest.approx(program.estimated_us, abs=1e-2)


def test_the_time_of_what_has_no_source_is_unknown(monkeypatch):
    program = timed(f"""
        {NEGATE.format("n", "a")}
        %call = f32[8,16]{{1,0}} custom-call(%n), custom_call_target="triton_kernel_call"
    """)
    negate, call = timeline_of(program).blocks
    assert (call.part, call.own_us, call.added_us) == ("triton_kernel_call", None, None)
    assert (negate.own_us, call.start_us) == (2, 2)
    monkeypatch.setattr(records, "MOST_BLOCKS", 1)
    assert timeline_of(program).blocks == (call,), "it is kept before all others"


def test_the_longest_are_kept_and_the_others_counted(monkeypatch):
    monkeypatch.setattr(records, "MOST_BLOCKS", 2)
    timeline = timeline_of(looped())
    assert [each.part for each in timeline.blocks] == ["loop of 7 iterations", "negate"]
    assert timeline.others == 4


def test_without_rates_there_is_nothing():
    program = read(module(NEGATE.format("n", "a")))
    assert timeline_of(program) is None
