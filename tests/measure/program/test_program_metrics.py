"""Facts as metrics: their kinds, and parts that sum up to them."""

import dataclasses

import pytest
from support.compiled_texts import MEMORY, ORIGIN, TEXTS, module, parse, read

from perfsuite.measure.program.program import DonatedArgument, sum_of
from perfsuite.measure.program.program_metrics import PARTS, gated_facts, metrics_of
from perfsuite.measure.program.program_reader import read_program

FACTS = {name: read(text) for name, text in TEXTS.items()}
EVERY = pytest.mark.parametrize("name", sorted(TEXTS))
INFO = {
    "arithmetic intensity",
    "lower seconds",
    "compile seconds",
    "memory margin",
}


def metrics(program):
    return {one.name.removeprefix("step "): one for one in metrics_of(program)}


@EVERY
def test_the_parts_of_a_count_sum_up_to_it(name):
    counted = ("fusions", "copies", "transposes", "operations", "launches", "flops", "transcendentals")
    counts = [one for one in metrics_of(FACTS[name]) if one.kind == "count" or one.name.endswith(counted)]
    assert len(counts) >= 16
    for one in counts:
        if one.name in ("step launches", "step flops") and FACTS[name].conditionals:
            assert sum(one.detail.values()) > one.value, "the parts of all branches, and the largest branch"
            continue
        assert sum((one.detail or {}).values()) == one.value
        assert all(amount > 0 for amount in (one.detail or {}).values())


def copies(count, bytes_=512):
    lines = [
        f'%x{i} = f32[8,16]{{1,0}} copy(%a), metadata={{op_name="f/p{i // 2:03}" source_file="m{i // 2:03}.py" source_line={i}}}'
        for i in range(count)
    ]
    return read(module("\n".join(lines)))


def test_parts_of_one_name_are_added_and_the_place_is_the_largests():
    program = copies(4)
    small, large, *rest = program.operations
    program = dataclasses.replace(program, operations=(small, dataclasses.replace(large, bytes=5000), *rest))
    accessed = metrics(program)["bytes accessed"]
    assert accessed.detail == {"copy in m000.py": 1024 + 5000, "copy in m001.py": 2048}
    assert accessed.places == {"copy in m000.py": "m000.py:1", "copy in m001.py": "m001.py:2"}
    assert metrics(program)["copies"].detail == {"copy in m000.py": 2, "copy in m001.py": 2}


def test_every_part_is_kept():
    copied = metrics(copies(2 * PARTS + 7))["copies"]
    assert len(copied.detail) == PARTS + 4
    assert sum(copied.detail.values()) == copied.value == 2 * PARTS + 7


def test_arguments_are_parts_by_paths_as_long_as_there_is_room_for():
    def parts(sizes):
        program = dataclasses.replace(read(module("%x = f32[8,16]{1,0} copy(%a)")), argument_sizes=sizes)
        return metrics(program)["argument bytes"].detail

    leaves = {f"args[0]['layer'][{number}].weight": 10 for number in range(PARTS + 1)}
    assert parts(leaves | {"args[1]['[x]']": 3}) == {"args[0]['layer']": 10 * (PARTS + 1), "args[1]['[x]']": 3}
    assert parts(dict(list(leaves.items())[:2])) == dict.fromkeys(list(leaves)[:2], 10)
    assert parts({}) is None


def test_sizes_by_path_are_those_of_the_programs_own_shapes():
    text = module("%x = bf16[4,8]{1,0} slice(%a), slice={[0:4], [0:8]}")
    arguments = [("args[0]", (8, 16)), ("args[1]", (32, 16)), ("args[1]", (32, 16))]
    program = read_program(ORIGIN, parse(text), MEMORY, (), arguments=arguments, outputs=[("result", (4, 32))])
    assert program.argument_sizes == {"args[0]": 512, "args[1]": 1024}
    assert program.output_sizes == {"result": 64}
    assert program.shards == {"args[1]": 4, "result": 4}
    assert not sum_of([program, program]).shards, "arguments of several programs have the same paths"
    keys = [("keys", (64,)), ("keys", (64,)), ("keys", (64,))]
    assert not read_program(ORIGIN, parse(text), MEMORY, (), arguments=keys).shards, "a key has its words there"


def test_lost_donations_count_even_where_they_were_passed_as_one():
    donations = [DonatedArgument("args[0]", "float32[8,16]", 512, number) for number in range(2)]
    lost = metrics(read(module("%x = f32[8,16]{1,0} copy(%a)"), donations=donations))["lost donations"]
    assert (lost.value, lost.detail) == (2, {"args[0] (float32[8,16]: no output took its memory)": 2})


@EVERY
def test_what_is_gated_is_exact(name):
    program = FACTS[name]
    gated = {one.name.removeprefix("step ") for one in metrics_of(program) if one.kind != "info"}
    assert gated_facts(program).keys() == gated
    assert {one.name.removeprefix("step ") for one in metrics_of(program)} - gated <= INFO
    assert not gated & INFO
    assert {one.kind for one in metrics_of(program)} == {"count", "size", "info"}


def test_names_begin_with_the_label_and_the_target_is_told():
    origin = dataclasses.replace(ORIGIN, label="train step", target="tpu-v5e", memory_bytes=2000)
    made = metrics_of(read(TEXTS["train_v5e"], origin=origin))
    assert all(one.name.startswith("train step ") and one.target == "tpu-v5e" for one in made)
    assert {one.name: one.value for one in made}["train step memory margin"] == 2000 - 1157
    higher = {one.name for one in made if one.better == "higher"}
    assert higher == {"train step conditionals", "train step reused donations", "train step memory margin"}
    assert len({one.name for one in made}) == len(made)
    assert gated_facts(read(TEXTS["train_v5e"], origin=origin)) == gated_facts(read(TEXTS["train_v5e"]))
