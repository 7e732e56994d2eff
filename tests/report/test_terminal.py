"""The terminal of a session with --perf: the table of -v, and the closing summary."""

import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace

import pytest

import perfsuite
from perfsuite.gate.baseline import Baselines, Entry
from perfsuite.gate.baseline_file import SaveResult
from perfsuite.gate.environment import Environment
from perfsuite.gate.merging import Change
from perfsuite.gate.messages import relative_change
from perfsuite.gate.verdict import Result, Verdict
from perfsuite.measure.metric import Interval, Metric
from perfsuite.report.tables import metric_table
from perfsuite.report.terminal import (
    explanations,
    overview,
    session_header,
    session_summary,
)

TEST = "t.py::test_step"


def result(name="step to ready", value=1.5, verdict=Verdict.PASS, *, test=TEST, unit="x", interval=None, **fields):
    return Result(test, Metric(name, value, unit, "ratio", interval=interval), verdict, **fields)


def lines(*results, width=100):
    return [line for line, _ in metric_table(results, width)]


def test_a_metric_that_is_missing_has_no_value():
    missing = result(value=1.2, verdict=Verdict.MISSING, source="baseline", baseline=1.2)
    assert lines(missing)[2].split() == ["step", "to", "ready", "1.2", "missing"]


def test_a_row_has_value_baseline_change_and_verdict():
    head, test, row = lines(
        result(interval=Interval(1.4, 1.6), verdict=Verdict.FAIL, source="baseline", limit=1.26, baseline=1.2)
    )
    assert head.split() == ["metric", "value", "against", "change", "verdict"]
    assert test == TEST
    assert row.split() == ["step", "to", "ready", "1.5", "[1.4,", "1.6]", "x", "1.2", "+25", "%", "fail"]


@pytest.mark.parametrize(("baseline", "share"), [(1.2, 0.25), (1.5, 0.0), (0.0, math.inf), (-3.0, 1.5), (None, None)])
def test_a_change_is_relative_to_the_baseline(baseline, share):
    assert relative_change(result(baseline=baseline)) == (share if share is None else pytest.approx(share))


def test_columns_line_up_and_numbers_keep_their_digits():
    head, _, first, second = lines(result("a", 1.5), result("1e3", 23_600_000, unit="FLOP"))
    assert head.index("value") == first.index("1.5 x") == second.index("23,600,000 FLOP")
    assert head.index("verdict") == first.index("pass") == second.index("pass")


@pytest.mark.parametrize("width", [80, 100, 160])
@pytest.mark.parametrize("length", [10, 60, 300])
def test_no_line_is_wider_than_the_terminal(width, length):
    results = [
        result(
            "n" * length, 1234.5, interval=Interval(1.23456e3, 9.87654e3), baseline=1111.0, test=f"t.py::{'t' * 300}"
        ),
        Result(TEST, Metric("a" * length, 12_345_678, "bytes", "size", target="tpu-v5e"), Verdict.NOT_COMPARABLE),
        result("s" * length, 2.0, limit=1.5, source="budget", verdict=Verdict.INCONCLUSIVE),
    ]
    found = lines(*results, width=width)
    assert max(map(len, found)) <= width
    assert f"{'a' * length}@tpu-v5e" in "".join(found).replace(" ", "")


@pytest.mark.parametrize(
    ("isatty", "width", "place"), [(True, 80, "above"), (True, 160, "beside"), (False, 80, "beside")]
)
def test_a_name_is_whole_above_its_values_where_it_does_not_fit_beside_them(isatty, width, place):
    names = [f"step_of_a_module/reference_step_of_it {what} to ready" for what in ("ratio", "overhead")]
    results = [result(name, 0.9462, unit="of the time to ready", baseline=0.9) for name in names]
    shown = written(Reporter(verbosity=1, width=width, isatty=isatty), *results).lines
    for name in names:
        row = shown.index(next(line for line in shown if name in line))
        assert ("of the time to ready" in shown[row]) is (place == "beside")
        assert "0.9462 of the time to ready" in shown[row + (place == "above")]


def test_where_there_is_room_names_are_whole_and_intervals_are_shown():
    made = result("n" * 70, interval=Interval(1.4, 1.6))
    assert "n" * 70 in lines(made, width=160)[2]
    assert "[1.4, 1.6]" in lines(made, width=160)[2]
    assert "[1.4, 1.6]" not in lines(made, width=50)[2]


VERDICTS = (
    Verdict.FAIL,
    Verdict.INCONCLUSIVE,
    Verdict.NOT_COMPARABLE,
    Verdict.IMPROVED,
    Verdict.NEW,
    Verdict.PASS,
    Verdict.INFO,
)


def closing(*results, saving=False):
    return [line.text for line in overview(results, saving=saving)]


def test_verdicts_are_counted_metric_by_metric():
    both = result("a", verdict=Verdict.PASS, source="budget"), result("a", verdict=Verdict.FAIL, source="baseline")
    assert closing(*both, result("b"), result("c", verdict=Verdict.INFO, test="t.py::test_other")) == [
        "3 metrics of 2 tests: 1 fail, 1 pass, 1 info"
    ]


def test_a_save_says_nothing_of_baselines():
    verdicts = [result(name, verdict=verdict) for name, verdict in zip("abcdefg", VERDICTS, strict=True)]
    assert closing(*verdicts, saving=True) == [
        "7 metrics of 1 test",
        "inconclusive: 1 without an interval",
        "  b: its interval: perf.record(..., interval=(low, high)), or (value, value) where it is exact",
    ]


def test_with_v_what_is_known_beside_the_change_is_written_out_the_failures_first():
    found = explanations(
        [
            result("c", verdict=Verdict.INCONCLUSIVE, note="c is too noisy"),
            result("b", verdict=Verdict.NOT_COMPARABLE, incomparable="other device"),
            result("d", verdict=Verdict.FAIL, note="d got worse", cause="a sleep"),
            result("a", verdict=Verdict.FAIL, note="the table says all of it"),
            result("f", verdict=Verdict.FAIL, note="f got worse", cause="another sleep", where="t.py:12"),
            result("e", note="never shown"),
        ]
    )
    assert [line.text for line in found] == [
        "fail: t.py::test_step: d got worse\nlikely cause: a sleep",
        "fail: t.py::test_step at t.py:12: f got worse\nlikely cause: another sleep",
        "inconclusive: t.py::test_step: c is too noisy",
        "not comparable: t.py::test_step: b: other device",
    ]
    assert found[0].markup == {"red": True}


def test_the_summary_gives_the_instruments_own_reason_for_an_open_verdict():
    reason = "c may or may not wait: the device has too little to do. Take a larger input"
    verdict = result("c", verdict=Verdict.INCONCLUSIVE, source="budget", limit=1.0, note=reason)
    assert f"  {reason}" in closing(verdict)
    assert [line.text for line in explanations([verdict])] == [f"inconclusive: {TEST}: {reason}"]


def test_what_was_skipped_for_a_library_is_one_line_with_its_reason():
    moves, runs = "perf.transfers does not work with jax 0.14.0", "perf.dispatches does not work with jax 0.14.0"
    results = [
        result("a", verdict=Verdict.NOT_COMPARABLE, incomparable=moves),
        result("b", verdict=Verdict.NOT_COMPARABLE, incomparable="another"),
    ]
    lines = overview(results, saving=False, lost=[moves, moves])
    assert [line.text for line in lines] == [
        "2 metrics of 1 test: 2 not comparable",
        f"2 tests skipped: {moves}",
        "not comparable: 1 another",
    ]
    (only,) = overview([], saving=False, lost=[runs, moves, moves])
    assert only.text == f"3 tests skipped: 2 {moves}; 1 {runs}"


HERE = Environment("TPU v5 lite", 4, "Xeon", "3.11.7", "0.10.2", "0.10.1")
ROOT = Path("/project")


class Reporter:
    """Takes the place of pytest's terminal reporter: keeps the lines, and how each was marked up."""

    def __init__(self, verbosity=0, width=80, isatty=True):
        self.isatty = isatty
        writer = SimpleNamespace(fullwidth=width)
        self.config = SimpleNamespace(get_terminal_writer=lambda: writer, get_verbosity=lambda: verbosity)
        self.lines = []
        self.markup = {}
        self.sections = []

    def section(self, title, sep):
        self.sections.append(title)

    def line(self, text, **markup):
        self.lines.append(text)
        self.markup[text] = markup

    def find(self, part):
        found = [line for line in self.lines if part in line]
        assert len(found) == 1, f"{part!r} is in {len(found)} lines of {self.lines}"
        return found[0]


@pytest.fixture
def reporter():
    return Reporter()


def session(*results, metrics=None, save=(), targets=None, passed=True, compiled=0, kernels=(), reaches=()):
    record = SimpleNamespace(
        test="t", results=results, compiled=compiled, cached=0, passed=passed, unestimated=kernels, lost=""
    )
    files = {None: Baselines("tpu-v5e", metrics or {})}
    files |= {name: Baselines(name, metrics) for name, metrics in (targets or {}).items()}
    return SimpleNamespace(
        records=[record],
        unmeasured=[],
        cache=None,
        options=SimpleNamespace(save=save, size="small", targets=tuple(targets or ())),
        environment=HERE,
        judge=SimpleNamespace(reaches=lambda records, saved: reaches),
        path_of=lambda target: ROOT / "baselines" / f"{target or 'tpu-v5e'}.json",
        baselines_of=files.__getitem__,
    )


def written(reporter, *results, saved=(), not_saved="", **fields):
    session_summary(reporter, session(*results, **fields), ROOT, saved, not_saved)
    return reporter


def entry(value=1.5, **environment):
    return Entry(value, "x", "ratio", "measured", dataclasses.replace(HERE, **environment))


# What closes a session.


def test_what_the_message_of_a_failed_test_explains_is_not_explained_again():
    fails = [result(name, verdict=Verdict.FAIL, cause=f"the cause of {name}") for name in "ab"]
    verbose = written(Reporter(verbosity=1), *fails, passed=False)
    said = "\n".join(verbose.lines)
    assert "the cause of a" not in said
    assert "the cause of b" in said
    # In a test that passed all the same, nothing else explains them.
    assert "the cause of a" in "\n".join(written(Reporter(verbosity=1), *fails).lines)


INCOMPARABLE = (
    "recorded as ratio in s (lower is better), now ratio in ms (lower is better): pytest --perf-save replaces it"
)
KINDS = {
    ("inconclusive: ", "with the limit inside the interval"): {"verdict": Verdict.INCONCLUSIVE, "source": "budget", "limit": 1.5},
    ("not comparable: ", "recorded as ratio in s"): {"verdict": Verdict.NOT_COMPARABLE, "incomparable": INCOMPARABLE},
    ("improved: ", "pytest --perf-save records"): {"verdict": Verdict.IMPROVED, "baseline": 2.0},
    ("new: ", "pytest --perf-save records"): {"verdict": Verdict.NEW},
    ("moved: ", "give each its name="): {"recorded_as": "another"},
    ("", " pass"): {},
}  # fmt: skip
"""Notes of a green session: how the line begins, what it says to do, and the fields of the gates."""

KERNELS = ("unknown FLOP and bytes: ", "no estimate (in Pallas: cost_estimate=)")


@pytest.mark.parametrize("count", [1, 130])
def test_a_green_session_closes_with_a_line_for_each_kind_of_note_whatever_their_number(count):
    results = [
        Result(f"t.py::test_a[{number}]", Metric(f"{kind[0]}{number}", 1.4, "x", "ratio", interval=Interval(1.3, 1.6)),
               **{"verdict": Verdict.PASS, **fields})
        for number in range(count)
        for kind, fields in KINDS.items()
    ]  # fmt: skip
    kernels = [f"kernel_a at kernels.py:{number}" for number in range(count)]
    shown = written(Reporter(), *results, compiled=12, kernels=kernels)
    for beginning, action in [*KINDS, KERNELS]:
        assert len([line for line in shown.lines if line.startswith(beginning) and action in line]) == 1, shown.lines
    assert len(shown.lines) == len(KINDS) + 3, "the example of what is open, the programs and the kernels beside them"
    assert max(map(len, shown.lines)) < 200


def test_with_v_every_kernel_without_an_estimate_is_named():
    kernels = ("one at a.py:1", "two at a.py:2")
    few = written(Reporter(width=200), result("a"), kernels=kernels)
    assert few.find("unknown").endswith("for one at a.py:1 and 1 more")
    every = written(Reporter(width=200, verbosity=1), result("a"), kernels=kernels)
    assert [line.rpartition(" for ")[2] for line in every.lines if "unknown" in line] == list(kernels)


# Saving.


def test_a_save_says_what_it_did_and_what_changed(reporter):
    changes = (
        Change("test_a", "created", "create", None, entry()),
        Change("test_a", "faster", "update", entry(1.5), entry(1.2), "better"),
        Change("test_a", "slower", "update", entry(1.2, jax="0.9.0"), entry(1.5), "worse"),
        Change("test_b", "gone", "trim", entry(), None),
        Change("test_b", "kept", "keep", entry(), entry()),
    )
    saved = SaveResult(ROOT / "baselines" / "tpu-v5e.json", changes, untouched=4, written=True)
    written(reporter, saved=[saved])
    assert reporter.lines == [
        "baselines/tpu-v5e.json: 3 recorded (1 new, 1 better, 1 worse), 1 removed, 5 kept",
        "  1 got worse and was accepted:",
        "    test_a: slower: 1.2 -> 1.5 x (jax 0.9.0 -> 0.10.2)",
        "  1 removed, because no test makes it any more:",
        "    test_b: gone",
        "  1 better:",
        "    test_a: faster: 1.5 -> 1.2 x",
    ]
    assert reporter.markup[reporter.find("  1 better:")] == {"green": True}
    assert reporter.markup[reporter.find("got worse")] == {"red": True}
    assert reporter.markup[reporter.find("removed, because")] == {}


def test_a_failed_save_is_the_last_line(reporter):
    written(reporter, result("a"), not_saved="no baseline was saved: disk full")
    assert reporter.lines[-1] == "no baseline was saved: disk full"
    assert reporter.markup[reporter.lines[-1]] == {"red": True, "bold": True}


# The header.


def test_the_header_names_device_versions_and_baselines():
    metrics = {"test_a": {"one": entry(), "two": entry()}, "test_b": {"three": entry()}}
    machine, baselines = session_header(session(metrics=metrics), ROOT)
    assert machine == "perfsuite: 4 x TPU v5 lite (Xeon), jax 0.10.2, jaxlib 0.10.1"
    assert baselines == "perfsuite: baselines baselines/tpu-v5e.json (3 metrics), size small"


@pytest.mark.parametrize(("newest", "newer"), [("0.0.9", True), ("999.0.0", False)])
def test_the_head_of_a_session_says_that_jax_is_newer_than_what_was_tested(monkeypatch, newest, newer):
    monkeypatch.setattr(perfsuite, "tested", ("0.0.1", newest))
    said = [line for line in session_header(session(), ROOT) if f"is newer than {newest}" in line]
    assert len(said) == newer
    monkeypatch.setattr(perfsuite, "tested", ("0.0.1", session().environment.jax))
    assert len(session_header(session(), ROOT)) == 2
