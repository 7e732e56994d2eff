"""Whatever is given from outside: files, marker arguments, option values, names. Accepted, or refused in clear words."""

import argparse
import functools
import json
import math
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from perfsuite.gate.baseline import Baselines, Entry
from perfsuite.gate.baseline_file import BaselineError, load, save
from perfsuite.gate.baseline_format import encode, parse
from perfsuite.gate.budget import Budget
from perfsuite.gate.environment import Environment
from perfsuite.gate.verdict import judge_baseline
from perfsuite.measure.metric import Interval, Metric
from perfsuite.measure.targets.targets import target
from perfsuite.measure.words import plural, printable
from perfsuite.options import add_options
from perfsuite.options.marker import MarkerArguments, marker_arguments
from perfsuite.report import text
from perfsuite.report.terminal.summary import session_summary
from perfsuite.session.session import split_parameters
from properties.edits import outcome

HERE = Environment("cpu", 1, "Xeon", "3.11.7", "0.10.2", "0.10.2", equinox="0.13.8")
SAMPLE = Baselines(
    "cpu",
    {
        "test_a.py::test_b[x::y]": {
            "ratio": Entry(1.06, "x", "ratio", "measured", HERE, Interval(1.05, 1.08), 300),
            "calls": Entry(300, "calls", "count", "measured", HERE, detail={"jax:f": 200}),
        },
        "reported/step": {"time": Entry(133.5, "ms", "time", "reported", source="A paper")},
    },
)
REAL = Path(__file__).parents[2] / "baselines" / "cpu.json"

# Numbers that no float can hold, and texts that no terminal can show, are JSON as well as any.
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, -1, 1, 2, 10**400, -(10**400), 1e308, -1e308, 5e-324, 0.5, -0.0]),
    st.text(max_size=8),
    st.sampled_from(["cpu", "count", "measured", "reported", "lower", "", "\ud800", "a\nb", "x" * 5000]),
)
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)


def places(value, path=()):
    """The paths to every value inside a JSON value, its own first."""
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))


def replaced(value, path, new):
    """A JSON value with another in the place that `path` leads to."""
    return new if not path else {**value, path[0]: replaced(value[path[0]], path[1:], new)}


def refusal_of(content: bytes) -> BaselineError | None:
    """How a file with this content is refused, with its name and line, and never overwritten; None if it is read."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "cpu.json")
        path.write_bytes(content)
        loaded, refusal = outcome(BaselineError, load, path)
        if refusal is None:
            assert parse(encode(loaded).decode(), "cpu") == loaded
            return None
        assert str(refusal).startswith(f"{path}:{refusal.line}: ")
        assert 1 <= refusal.line <= content.count(b"\n") + 1
        assert len(str(refusal)) < 1000 + 6 * len(content)
        with pytest.raises(BaselineError, match=r"cpu\.json"):
            save(path, {"t": {"f": Entry(1, "x", "size", "compiled")}})
        assert path.read_bytes() == content
        return refusal


TREE = json.loads(encode(SAMPLE))


@given(st.sampled_from(sorted(places(TREE), key=len)), json_values)
@example(("metrics", "test_a.py::test_b[x::y]", "ratio", "value"), 10**400)
@example(("metrics", "test_a.py::test_b[x::y]", "ratio", "high"), 10**400)
@example(("metrics", "test_a.py::test_b[x::y]", "calls", "detail", "jax:f"), 10**400)
@settings(max_examples=150)
def test_a_file_with_any_value_in_any_place_is_read_or_refused(path, value):
    refusal_of(json.dumps(replaced(TREE, path, value), indent=1).encode())


@given(json_values)
@settings(max_examples=40)
def test_any_json_but_a_baseline_file_is_refused(value):
    assert refusal_of(json.dumps(value).encode()) is not None


@given(st.binary(max_size=40))
@settings(max_examples=40)
def test_any_bytes_are_refused(content):
    assert refusal_of(content) is not None


@functools.cache
def real_content() -> bytes:
    """The head of the file that this repository is gated by, closed so that it is whole: some tests are enough."""
    baselines = parse(REAL.read_text(encoding="utf-8"))
    some = sorted(baselines.metrics)[:3]
    return encode(Baselines("cpu", {test: baselines.metrics[test] for test in some}))


@given(st.integers(0, 10**6))
@settings(max_examples=25)
def test_a_file_of_this_repository_that_was_cut_anywhere_is_refused(at):
    content = real_content()
    cut = content[: at % len(content)]
    # What is missing may be the last line break alone.
    assert (refusal_of(cut) is None) == (cut.rstrip() == content.rstrip())


# Gating by whatever a file has.

finite = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**300), 10**300)
test_ids = st.text(min_size=1, max_size=30) | st.sampled_from(
    [
        "a.py::t[é-ø]",
        "a.py::C::t[x::y]",
        "a.py::t[[]]",
        "a.py::t[a\nb]",
        "a.py::t[\ud800]",
        "a.py::t[ --perf-size=full]",
        f"a.py::t[{'x' * 5000}]",
    ]
)
metric_names = st.text(min_size=1, max_size=30).filter(str.strip) | st.sampled_from(
    ["f" * 5000, "step\n::error::injected", "\x1b[31mred"]
)


class Reporter:
    """Takes the place of pytest's terminal reporter: keeps the lines."""

    def __init__(self, verbosity):
        writer = SimpleNamespace(fullwidth=80)
        self.config = SimpleNamespace(get_terminal_writer=lambda: writer, get_verbosity=lambda: verbosity)
        self.lines = []

    def section(self, title, sep):
        pass

    def line(self, text, **markup):
        self.lines.append(text)


def summary(session, saved, verbosity):
    reporter = Reporter(verbosity)
    session_summary(reporter, session, Path("/project"), saved, "")
    return reporter.lines


def session_of(*records):
    options = SimpleNamespace(save=False, size="small", targets=())
    return SimpleNamespace(records=records, unmeasured=[], cache=None, looks={}, missing=list, options=options)


@given(
    st.dictionaries(test_ids, st.dictionaries(metric_names, finite, min_size=1, max_size=2), min_size=1, max_size=3),
    st.sampled_from(["time", "size", "ratio"]),
    finite,
)
@example({"a.py::t": {"f": 1.7e308}}, "time", 1.0)  # twice that is more than a float can hold
@example({"a.py::t": {"f" * 40: 1.0, "g": 0.0}}, "size", -1e30)  # a change of 33 digits in per cent
@example({"t\x1b": {"f": 0.0}, "t\x07": {"f": 1.0}}, "size", 0.0)  # two names stay two
@settings(max_examples=80)
def test_metrics_of_any_name_and_size_are_saved_loaded_gated_and_shown(metrics, kind, now):
    entries = {
        test: {name: Entry(value, "us", kind, "measured", HERE) for name, value in each.items()}
        for test, each in metrics.items()
    }
    # What controls a terminal, or begins a line, is not let in.
    shown = {printable(test): {printable(name): each[name] for name in each} for test, each in entries.items()}
    with tempfile.TemporaryDirectory() as folder:
        foreign, own = Path(folder, "foreign", "cpu.json"), Path(folder, "cpu.json")
        save(foreign, entries)
        result = save(own, shown)
        loaded = load(foreign)
        assert loaded.metrics == load(own).metrics == shown
    gates = [
        judge_baseline(test, Metric(name, now, "us", kind), loaded.get(test, name), now=HERE)
        for test, each in shown.items()
        for name in each
    ]
    metrics = shown
    # Nobody knows the precision of a ratio or a time that has no interval.
    exact = kind in ("count", "size")
    for gate in gates:
        unlimited = gate.limit is not None and math.isinf(gate.limit)  # twice the largest number
        assert gate.verdict in (("pass", "fail", "improved") if exact or unlimited else ("inconclusive",))
    assert all((gate.verdict == "fail") <= (gate.metric.name in text.reason(gate)) for gate in gates)
    record = SimpleNamespace(gates=gates, passed=True, compiled=0, cached=0, unestimated=(), passes=(), lost="")
    few, table = (summary(session_of(record), [result], verbosity) for verbosity in (0, 1))
    assert few[0].startswith(f"{plural(len(gates), 'metric')} of {plural(len(metrics), 'test')}: ")
    assert len(few) <= 10
    said = "\n".join((*few, *table)).split("\n")
    assert all(line.isprintable() and not line.startswith("::") for line in said)
    assert all(line in table for line in few if not line.startswith("all metrics: "))
    assert len(table) >= 1 + len(metrics) + len(gates)  # the head, and a line for every test and metric


@given(st.builds("a.py::{}".format, st.text(max_size=30)))
@example("a.py::C::t[x::y[z]")
@settings(max_examples=50)
def test_a_tests_id_is_its_function_and_its_parameters(test):
    function, parameters = split_parameters(test)
    assert test in (f"{function}[{parameters}", function)


# Marker arguments.


class Unshowable:
    """An object of a user's that cannot even be shown."""

    def __repr__(self):
        raise RuntimeError("no repr")


arguments = st.one_of(
    scalars,
    st.floats(),
    st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    json_values,
    st.binary(),
    st.decimals(),
    st.fractions(),
    st.complex_numbers(),
    st.sampled_from([np.float32(0.5), np.int64(1), np.array([1.0, 2.0]), len, int]),
)


MARKER_ARGUMENTS = MarkerArguments.__annotations__.keys()


@given(st.dictionaries(st.sampled_from([*MARKER_ARGUMENTS, "tolerence"]), arguments | st.booleans(), max_size=2))
@example({"seconds": 10**400})
@example({"tolerance": ["x"] * 10**5})
@example({"seconds": {i: {j: [10**40] * 6 for j in range(4)} for i in range(4)}})
def test_any_argument_of_the_marker_is_taken_or_refused_with_its_name(given_arguments):
    marker = pytest.mark.perf(**given_arguments).mark
    item = SimpleNamespace(nodeid="test_a.py::test_marked", iter_markers=lambda name: [marker])
    taken, refusal = outcome(pytest.UsageError, marker_arguments, item)
    if refusal is not None:
        said = str(refusal)
        assert said.startswith("test_a.py::test_marked: @pytest.mark.perf")
        assert any(f"({name}=...)" in said or f"no argument {name!r}" in said for name in given_arguments)
        assert len(said) < 500
    else:
        assert taken.keys() == given_arguments.keys() <= MARKER_ARGUMENTS
        assert type(taken.pop("quiet", True)) is bool
        assert all(type(value) is float and 0 < value < float("inf") for value in taken.values())


@pytest.mark.parametrize("value", [Unshowable(), 10**5000], ids=["unshowable", "too long to be shown"])
def test_an_argument_of_the_marker_that_cannot_be_shown_is_refused_all_the_same(value):
    marker = pytest.mark.perf(tolerance=value).mark
    item = SimpleNamespace(nodeid="test_a.py::test_marked", iter_markers=lambda name: [marker])
    with pytest.raises(pytest.UsageError, match=r"perf\(tolerance=\.\.\.\) must be a number above zero, got .{3,99}$"):
        marker_arguments(item)


@given(st.lists(arguments, min_size=1, max_size=2))
def test_any_positional_argument_of_the_marker_is_refused(positional):
    marker = pytest.mark.perf.with_args(*positional).mark
    item = SimpleNamespace(nodeid="test_a.py::test_marked", iter_markers=lambda name: [marker])
    with pytest.raises(pytest.UsageError, match=r"test_a.py::test_marked: .*takes keyword arguments only, got"):
        marker_arguments(item)


@given(finite | st.floats() | st.sampled_from([10**400, True, "1", None]))
@example(10**400)
def test_any_metric_and_any_budget_is_taken_or_refused_with_its_name(value):
    for make, words in (
        (lambda: Metric("the metric", value, "us", "time"), "the metric: "),
        (lambda: Budget(p99_us=value), "Budget(p99_us="),
    ):
        _, refusal = outcome((TypeError, ValueError), make)
        said = str(refusal)
        assert refusal is None or (said.startswith(words) and len(said) < 500)


# Option values.


class Parser(argparse.ArgumentParser):
    """Says what pytest's own parser says, as an exception."""

    def getgroup(self, *_):
        return self

    def addoption(self, *names, **how):
        self.add_argument(*names, **how)

    def addini(self, *_, **__):
        pass

    def error(self, message):
        raise pytest.UsageError(message)


PARSER = Parser(prog="pytest", allow_abbrev=False)
add_options(PARSER)

option_values = st.text(max_size=12) | st.sampled_from(
    [
        "1",
        "0",
        "-1",
        "1.5",
        "1e-300",
        "1e400",
        "nan",
        "inf",
        "-inf",
        "9" * 5000,
        "1_0",
        "\uff11",
        "0x10",
        "",
        "small",
        "%s",
    ]
)


@given(
    st.sampled_from(["--perf-seconds", "--perf-size", "--perf-trace"]),
    option_values,
)
@settings(max_examples=200)
def test_any_value_of_an_option_is_taken_or_refused_with_the_options_name(option, text):
    taken, refusal = outcome(pytest.UsageError, PARSER.parse_args, [f"{option}={text}"])
    if refusal is not None:
        assert f"argument {option}: " in str(refusal)
        return
    value = getattr(taken, option.strip("-").replace("-", "_"))
    if option == "--perf-seconds":
        assert 0 < value < float("inf")
    else:
        assert value == text


@given(option_values)
def test_any_name_of_a_target_is_known_or_refused_with_those_that_are(name):
    with pytest.raises(ValueError, match="tpu-v5e") as refused:
        target(name)
    assert repr(name) in str(refused.value)
