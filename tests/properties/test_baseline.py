"""Baselines of any metrics: written and read again, merged, and damaged."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfsuite.gate.baseline import PROVENANCES, Baselines, Entry
from perfsuite.gate.baseline_file import BaselineError, encode, load, parse, save
from perfsuite.gate.environment import Environment
from perfsuite.gate.merging import merge
from perfsuite.measure.metric import KINDS, Interval
from perfsuite.measure.serialise import plain
from perfsuite.measure.words import printable
from properties.edits import contents, edited_bytes, outcome

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
    kind = draw(st.sampled_from(KINDS))
    provenance = draw(st.sampled_from(PROVENANCES))
    bounds = sorted(draw(st.tuples(numbers, numbers)))
    return Entry(
        value=draw(st.integers(-(10**20), 10**20) if kind == "count" else numbers),
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
    assert parse(encode(read).decode(), "cpu") == read
    assert content.count(b"\n") < 12 + len(baselines.environments) + sum(2 + len(each) for each in metrics.values())


# Few tests, names, values and environments, so that old and new metrics meet.
_environments = [
    Environment("cpu", 1, processor, python, "0.10.2", "0.10.2")
    for processor in ("Xeon", "EPYC")
    for python in ("3.11.7", "3.12.1")
]


@st.composite
def few_entries(draw):
    value, half = draw(st.integers(1, 4)), draw(st.sampled_from([None, 0.5, 1.5]))
    provenance = draw(st.sampled_from(PROVENANCES))
    return Entry(
        value=value,
        unit=draw(st.sampled_from(["calls", "x"])),
        kind=draw(st.sampled_from(KINDS)),
        provenance=provenance,
        environment=None if provenance == "reported" else draw(st.sampled_from(_environments)),
        interval=None if half is None else Interval(value - half, value + half),
        source="a paper" if provenance == "reported" else None,
    )


few_metrics = metrics_of(few_entries(), st.sampled_from("abc"), st.sampled_from("xyz"))
some_tests = st.sets(st.sampled_from("abcd"))


@given(few_metrics, few_metrics, some_tests, some_tests, st.sampled_from([("measured",), ("measured", "compiled")]))
@settings(max_examples=200)
def test_a_merge_keeps_what_it_should_and_says_what_it_changed(old, new, trim, gone, provenances):
    before = Baselines("cpu", old)
    after, changes = merge(before, new, trim=trim, gone=gone, provenances=provenances)
    for test, id, entry in every(old):
        if id not in new.get(test, {}):
            vanishes = (test in trim and entry.provenance in provenances) or test in gone
            stays = not vanishes or entry.provenance == "reported"
            assert after.get(test, id) == (entry if stays else None)
    for test, id, entry in every(new):
        held, was = after.get(test, id), before.get(test, id)
        assert held in (entry, was)
        if held.provenance == entry.provenance and entry.kind in ("count", "size"):
            assert held.value == entry.value
        if entry.provenance == "measured":
            assert held.provenance == "measured"
    undone = {test: dict(each) for test, each in after.metrics.items()}
    for change in changes:
        assert (change.old, change.new) == (before.get(change.test, change.id), after.get(change.test, change.id))
        assert (change.action == "keep") == (change.old == change.new)
        undone.setdefault(change.test, {})[change.id] = change.old
    undone = {test: {id: entry for id, entry in each.items() if entry} for test, each in undone.items()}
    assert {test: each for test, each in undone.items() if each} == old


def every(metrics):
    return [(test, id, entry) for test, each in metrics.items() for id, entry in each.items()]


@given(few_metrics, few_metrics, some_tests)
@settings(max_examples=200)
def test_merging_the_same_metrics_twice_changes_nothing_more(old, new, trim):
    once, _ = merge(Baselines("cpu", old), new, trim=trim)
    twice, changes = merge(once, new, trim=trim)
    assert {change.action for change in changes} <= {"keep"}
    assert encode(twice) == encode(once)


@st.composite
def damaged(draw):
    whole = encode(Baselines("cpu", draw(any_metrics)))
    return draw(edited_bytes(whole) | contents({"schema": 3, "device": "cpu"}))


@given(damaged())
@settings(max_examples=200)
def test_a_damaged_file_is_read_whole_or_refused_with_its_line_and_never_touched(content):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "cpu.json")
        path.write_bytes(content)
        loaded, refused = outcome(BaselineError, load, path)
        if refused:
            assert str(refused).startswith(f"{path}:{refused.line}: ")
            assert 1 <= refused.line <= content.count(b"\n") + 1
            with pytest.raises(BaselineError):
                save(path, {"t": {"f": Entry(1, "x", "size", "compiled")}})
        else:
            assert parse(encode(loaded).decode(), "cpu") == loaded
        assert path.read_bytes() == content
