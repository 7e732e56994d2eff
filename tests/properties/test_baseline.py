"""Baselines of any metrics: written and read again, merged, and damaged."""

import dataclasses
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfsuite.gate.baseline import PROVENANCES, Baselines, Entry
from perfsuite.gate.baseline_file import BaselineError, load, save
from perfsuite.gate.baseline_format import LocatedError, encode, parse
from perfsuite.gate.environment import Environment
from perfsuite.gate.merging import merge
from perfsuite.measure.metric import Interval
from perfsuite.measure.serialise import plain
from perfsuite.measure.words import printable

awkward = ["test_a.py::TestB::test_c[x-1]", "a\nb", '"', "\\", "\u2028", "\ud800", "{", "\x00", "é" * 3000]
texts = st.text(max_size=12) | st.sampled_from(awkward)
names = texts.filter(bool)
numbers = st.one_of(st.integers(-(10**20), 10**20), st.floats(allow_nan=False, allow_infinity=False))

environments = st.builds(
    Environment,
    device_kind=texts,
    device_count=st.integers(1, 4096),
    processor=texts,
    python=st.sampled_from(["3.11.7", "3.12.1"]),
    jax=st.sampled_from(["0.10.2", "0.11.0"]),
    jaxlib=texts,
    libtpu=st.none() | texts,
    equinox=st.none() | texts,
    x64=st.booleans(),
    xla_flags=texts,
)


@st.composite
def entries(draw, environments=environments):
    kind = draw(st.sampled_from(["count", "size", "ratio", "time", "info"]))
    provenance = draw(st.sampled_from(PROVENANCES))
    value = draw(st.integers(-(10**20), 10**20) if kind == "count" else numbers)
    bounds = sorted(draw(st.tuples(numbers, numbers)))
    return Entry(
        value=value,
        unit=draw(texts),
        kind=kind,
        provenance=provenance,
        environment=None if provenance == "reported" else draw(environments),
        interval=draw(st.none() | st.just(Interval(*bounds))),
        samples=draw(st.none() | st.integers(1, 10**9)),
        better=draw(st.sampled_from(["lower", "higher"])),
        source=draw(texts.filter(str.strip)) if provenance == "reported" else None,
        detail=draw(st.none() | st.dictionaries(texts, st.integers(-(10**9), 10**20), max_size=3)),
    )


def metrics_of(entries, tests=texts, names=names):
    return st.dictionaries(tests, st.dictionaries(names, entries, min_size=1, max_size=3), max_size=3)


# A file has few environments and many metrics.
any_metrics = st.lists(environments, min_size=1, max_size=2).flatmap(
    lambda few: metrics_of(entries(st.sampled_from(few)))
)


def shown(value):
    """Plain values with their texts as a file gives them back: what controls a terminal, or begins a line, is "?"."""
    if isinstance(value, dict):
        return {printable(key): shown(each) for key, each in value.items()}
    return printable(value) if isinstance(value, str) else value


@given(any_metrics)
def test_any_metrics_round_trip_byte_for_byte(metrics):
    baselines = Baselines("cpu", metrics)
    content = encode(baselines)
    read = parse(content.decode(), "cpu")
    # Of two names that are shown alike, the file has the one that it writes last.
    in_order = {test: dict(sorted(metrics[test].items())) for test in sorted(metrics)}
    assert plain(read.metrics) == shown(plain(in_order))
    if read == baselines:
        assert encode(read) == content
    again = encode(read)
    assert parse(again.decode(), "cpu") == read
    assert encode(parse(again.decode())) == again
    assert content.count(b"\n") < 12 + len(baselines.environments) + sum(2 + len(each) for each in metrics.values())


@given(entries(), numbers)
def test_a_held_number_is_close_to_the_one_given(entry, value):
    value = float(value)
    held = dataclasses.replace(entry, kind="ratio", value=value).value
    assert held == pytest.approx(value, rel=1e-5, abs=0)
    assert dataclasses.replace(entry, kind="ratio", value=held).value == held


# Few tests, names, values and environments, so that old and new metrics meet.
_few_environments = st.sampled_from(
    [
        Environment("cpu", 1, processor, python, "0.10.2", "0.10.2")
        for processor in ("Xeon", "EPYC")
        for python in ("3.11.7", "3.12.1")
    ]
)


@st.composite
def few_entries(draw):
    value = draw(st.integers(1, 4))
    half = draw(st.sampled_from([None, 0.5, 1.5]))
    provenance = draw(st.sampled_from(PROVENANCES))
    kind = draw(st.sampled_from(["count", "size", "ratio", "time", "info"]))
    return Entry(
        value=value,
        unit=draw(st.sampled_from(["calls", "x"])),
        kind=kind,
        provenance=provenance,
        environment=None if provenance == "reported" else draw(_few_environments),
        interval=None if half is None else Interval(value - half, value + half),
        source="a paper" if provenance == "reported" else None,
    )


few_metrics = metrics_of(few_entries(), st.sampled_from("abc"), st.sampled_from("xyz"))
some_tests = st.sets(st.sampled_from("abcd"))
few_baselines = few_metrics.map(lambda metrics: Baselines("cpu", metrics))


@given(
    few_baselines,
    few_metrics,
    some_tests,
    some_tests,
    st.sampled_from([("measured",), ("compiled",), ("measured", "compiled")]),
)
@settings(max_examples=200)
def test_a_merge_loses_nothing_that_it_should_keep(before, new, trim, gone, provenances):
    after, changes = merge(before, new, trim=trim, gone=gone, provenances=provenances)
    for test, entries_of_test in before.metrics.items():
        for name, entry in entries_of_test.items():
            if name in new.get(test, {}):
                continue
            vanishes = (test in trim and entry.provenance in provenances) or test in gone
            stays = not vanishes or entry.provenance == "reported"
            assert after.get(test, name) == (entry if stays else None)
    for test, entries_of_test in new.items():
        for name, entry in entries_of_test.items():
            held, was = after.get(test, name), before.get(test, name)
            assert held in (entry, was)
            if held.provenance == entry.provenance and entry.kind in ("count", "size"):
                assert held.value == entry.value
            if entry.provenance == "measured":
                assert held.provenance == "measured"
    # What the changes say is what happened.
    for change in changes:
        assert change.new == after.get(change.test, change.id)
        assert (change.action == "keep") == (change.old == change.new)
    undone = {test: dict(each) for test, each in after.metrics.items()}
    for change in changes:
        assert change.old == before.get(change.test, change.id)
        if change.old is None:
            del undone[change.test][change.id]
        else:
            undone.setdefault(change.test, {})[change.id] = change.old
    assert {test: each for test, each in undone.items() if each} == before.metrics


@given(few_baselines, few_metrics, some_tests)
@settings(max_examples=200)
def test_merging_the_same_metrics_twice_changes_nothing_more(old, new, trim):
    once, _ = merge(old, new, trim=trim)
    twice, changes = merge(once, new, trim=trim)
    assert {change.action for change in changes} <= {"keep"}
    assert encode(twice) == encode(once)


@given(few_metrics, few_metrics, few_metrics)
def test_metrics_of_different_tests_can_be_merged_in_any_order(old, first, second):
    second = {test: each for test, each in second.items() if test not in first}
    baselines = Baselines("cpu", old)
    one_way, _ = merge(merge(baselines, first)[0], second)
    other_way, _ = merge(merge(baselines, second)[0], first)
    assert encode(one_way) == encode(other_way)


@st.composite
def damaged(draw):
    """A file's bytes before and after a random accident."""
    whole = encode(Baselines("cpu", draw(any_metrics)))
    at, end = sorted(draw(st.tuples(*[st.integers(0, len(whole) - 1)] * 2)))
    match draw(st.sampled_from(["cut", "flip", "drop", "insert", "repeat", "line twice"])):
        case "cut":
            return whole, whole[:at]
        case "flip":
            return whole, whole[:at] + bytes([whole[at] ^ draw(st.integers(1, 255))]) + whole[at + 1 :]
        case "drop":
            return whole, whole[:at] + whole[end:]
        case "insert":
            return whole, whole[:at] + draw(st.binary(max_size=5)) + whole[at:]
        case "repeat":
            return whole, whole[:end] + whole[at:]
        case _:
            lines = whole.splitlines(keepends=True)
            line = draw(st.integers(0, len(lines) - 1))
            return whole, b"".join([*lines[: line + 1], *lines[line:]])


@given(damaged())
@settings(max_examples=150)
def test_a_damaged_file_is_read_whole_or_refused_and_never_touched(accident):
    _, content = accident
    entry = Entry(1, "x", "size", "compiled")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "cpu.json")
        path.write_bytes(content)
        try:
            loaded = load(path)
        except BaselineError as error:
            refused = error
        else:
            refused = None
            assert parse(encode(loaded).decode(), "cpu") == loaded
        if refused:
            assert str(path) in str(refused)
            assert 1 <= refused.line <= content.count(b"\n") + 1
            with pytest.raises(BaselineError):
                save(path, {"t": {"f": entry}})
        assert path.read_bytes() == content


@given(st.text(alphabet='{}[]",:0123456789eE+-.\\untrfalsNI \n', max_size=60))
@settings(max_examples=200)
def test_anything_but_a_baseline_file_is_refused_with_a_line(text):
    with pytest.raises(LocatedError) as caught:
        parse(text)
    assert 1 <= caught.value.line <= text.count("\n") + 1
