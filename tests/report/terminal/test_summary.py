"""The terminal: the session's header, the summary of every gate, and what was saved."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfsuite.gate.baseline import Baselines, Change, Entry
from perfsuite.gate.baseline_file import SaveResult
from perfsuite.gate.environment import Environment
from perfsuite.gate.verdict import Gate
from perfsuite.measure.measurement import Interval, Metric
from perfsuite.report.terminal.summary import session_header, session_summary

HERE = Environment("TPU v5 lite", 4, "Xeon", "3.11.7", "0.10.2", "0.10.1")
ROOT = Path("/project")


class Reporter:
    """Takes the place of pytest's terminal reporter: keeps the lines, and how each was marked up."""

    def __init__(self):
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


def gate(
    name="step to ready",
    value=1.5,
    verdict="pass",
    *,
    test="tests/test_a.py::test_step",
    unit="x",
    interval=None,
    **fields,
):
    kind = "info" if verdict == "info" else "ratio"
    return Gate(test, Metric(name, value, unit, kind, interval=interval), verdict, **fields)


def session(*gates, missing=(), metrics=None, save=False, targets=None):
    files = {None: Baselines("tpu-v5e", metrics or {})}
    files |= {name: Baselines(name, metrics) for name, metrics in (targets or {}).items()}
    return SimpleNamespace(
        records=[SimpleNamespace(gates=gates, compiled=0, cached=0)],
        cache=None,
        missing=lambda: list(missing),
        options=SimpleNamespace(save=save, size="small", targets=tuple(targets or ())),
        environment=HERE,
        path_of=lambda target: ROOT / "baselines" / f"{target or 'tpu-v5e'}.json",
        baselines_of=files.__getitem__,
    )


def written(reporter, *gates, saved=(), not_saved="", **fields):
    session_summary(reporter, session(*gates, **fields), ROOT, saved, not_saved)
    return reporter


def entry(value=1.5, **environment):
    return Entry(value, "x", "ratio", "measured", dataclasses.replace(HERE, **environment))


# The table.


def test_the_table_says_all_that_a_gate_knows(reporter):
    written(
        reporter,
        gate(interval=Interval(1.4, 1.6), verdict="fail", source="baseline", limit=1.26, baseline=1.2, note="r"),
    )
    assert reporter.sections == ["perfsuite"]
    assert reporter.lines[0].split() == ["metric", "value", "unit", "limit", "from", "baseline", "verdict"]
    assert reporter.lines[1] == "tests/test_a.py::test_step"
    assert reporter.lines[2].split() == [
        *["step", "to", "ready", "1.5", "[1.4,", "1.6]", "x", "1.26", "baseline", "1.2", "fail"]
    ]


def test_columns_line_up(reporter):
    written(reporter, gate("a", 1.5, limit=2.0), gate("a much longer name", 23_600_000, limit=1234567.0))
    head, _, first, second = reporter.lines[:4]
    assert head.index("unit") == first.index("x ") == second.index("x ")
    assert head.index("verdict") == first.index("pass") == second.index("pass")


def test_a_metric_keeps_its_digits_in_the_table(reporter):
    # tabulate would take "1.50" or "23,600,000" for numbers and align or rewrite them.
    written(reporter, gate("flops", 23_600_000), gate("1e3", 2.5))
    assert "23,600,000" in reporter.find("flops")
    assert "1e3" in reporter.find("  1e3")


@pytest.mark.parametrize("name", ["step peak bytes", "a" * 100])
def test_a_target_is_named_however_long_the_name_of_its_metric(reporter, name):
    metric = Metric(name, 12_345_678, "bytes", "size", target="tpu-v5e")
    written(reporter, Gate("tests/test_a.py::test_step", metric, "pass"))
    assert " @ tpu-v5e  " in reporter.find("12,345,678")


def test_each_test_is_named_once_above_its_metrics(reporter):
    other = "tests/test_b.py::test_other"
    written(reporter, gate("one"), gate("two"), gate("three", test=other))
    assert [line.strip().split("  ")[0] for line in reporter.lines[1:6]] == [
        "tests/test_a.py::test_step",
        "one",
        "two",
        other,
        "three",
    ]


@pytest.mark.parametrize(
    ("verdict", "markup"),
    [
        ("fail", {"red": True}),
        ("inconclusive", {"yellow": True}),
        ("not comparable", {"yellow": True}),
        ("improved", {"green": True}),
        ("new", {"cyan": True}),
        ("pass", {}),
        ("info", {}),
    ],
)
def test_a_verdict_has_its_colour(reporter, verdict, markup):
    written(reporter, gate("the metric", verdict=verdict))
    assert reporter.markup[reporter.find("  the metric ")] == markup


@pytest.mark.parametrize("limit", [0.0, 0])
def test_a_limit_of_zero_is_a_limit(reporter, limit):
    written(reporter, gate("overhead", 3.5, limit=limit, baseline=limit, source="budget"))
    assert reporter.find("overhead").split() == ["overhead", "3.5", "x", "0", "budget", "0", "pass"]


# Below the table.


def test_reasons_are_written_out_the_failures_first(reporter):
    written(
        reporter,
        gate("a", verdict="improved", note="a got better"),
        gate("b", verdict="not comparable", note="b: other device"),
        gate("c", verdict="inconclusive", note="c is too noisy"),
        gate("d", verdict="fail", note="d got worse", cause="a sleep"),
        gate("e", note="never shown"),
    )
    explained = [line for line in reporter.lines if ": tests/test_a.py::test_step: " in line]
    assert explained == [
        "fail: tests/test_a.py::test_step: d got worse\nlikely cause: a sleep",
        "inconclusive: tests/test_a.py::test_step: c is too noisy",
        "not comparable: tests/test_a.py::test_step: b: other device",
        "improved: tests/test_a.py::test_step: a got better",
    ]
    assert reporter.markup[explained[0]] == {"red": True}


def test_new_metrics_are_counted_in_one_line(reporter):
    written(reporter, gate("a", verdict="new", note="a has no baseline"), gate("b", verdict="new"))
    assert reporter.find("no baseline") == "new: 2 metrics have no baseline: pytest --perf-save records them"


def test_no_new_metrics_no_line(reporter):
    written(reporter, gate("a"))
    assert not any(line.startswith("new:") for line in reporter.lines)


def test_metrics_with_a_baseline_that_were_not_measured_are_listed_unless_a_save_trims_them(reporter):
    missing = [("tests/test_a.py::test_step", "step p99")]
    written(reporter, gate("a"), missing=missing)
    assert "step p99 has a baseline but was not measured" in reporter.find("missing: tests/test_a.py::test_step")
    again = written(Reporter(), gate("a"), missing=missing, save=True)
    assert not any("missing" in line for line in again.lines)


def test_the_last_line_counts_the_verdicts(reporter):
    written(reporter, gate("a"), gate("b", verdict="fail"), gate("c"))
    assert reporter.lines[-1] == "3 metrics: 2 pass, 1 fail"


def test_a_session_without_metrics_writes_nothing(reporter):
    assert written(reporter).lines == []
    assert reporter.sections == []


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
        "baselines/tpu-v5e.json saved: 1 created, 2 updated, 1 trimmed, 5 kept",
        "  update test_a: faster: 1.5 -> 1.2 x, better",
        "  update test_a: slower: 1.2 -> 1.5 x, worse (jax 0.9.0 -> 0.10.2)",
        "  trim test_b: gone",
    ]
    assert reporter.markup[reporter.find("faster")] == {"green": True}
    assert reporter.markup[reporter.find("slower")] == {"red": True}
    assert reporter.markup[reporter.find("gone")] == {}


def test_a_save_that_changed_nothing_says_so(reporter):
    written(reporter, saved=[SaveResult(Path("/elsewhere/cpu.json"), (), untouched=2, written=False)])
    assert reporter.lines == ["/elsewhere/cpu.json unchanged: 0 created, 0 updated, 0 trimmed, 2 kept"]


def test_every_file_that_was_saved_has_its_line(reporter):
    created = (Change("test_a", "created", "create", None, entry()),)
    files = [SaveResult(ROOT / f"baselines/{name}.json", created, 0, written=True) for name in ("cpu", "tpu-v5e")]
    written(reporter, saved=files)
    assert [line.split(":")[0] for line in reporter.lines] == [
        "baselines/cpu.json saved",
        "baselines/tpu-v5e.json saved",
    ]


def test_a_failed_save_is_the_last_line(reporter):
    written(reporter, gate("a"), not_saved="no baseline was saved: disk full")
    assert reporter.lines[-1] == "no baseline was saved: disk full"
    assert reporter.markup[reporter.lines[-1]] == {"red": True, "bold": True}


# The header.


def test_the_header_names_device_versions_and_baselines():
    metrics = {"test_a": {"one": entry(), "two": entry()}, "test_b": {"three": entry()}}
    machine, baselines = session_header(session(metrics=metrics), ROOT)
    assert machine == "perfsuite: 4 x TPU v5 lite (Xeon), jax 0.10.2, jaxlib 0.10.1"
    assert baselines == "perfsuite: baselines baselines/tpu-v5e.json (3 metrics), size small"


def test_the_header_says_how_to_get_baselines_where_there_are_none():
    assert "(no metrics yet: pytest --perf-save records them)" in session_header(session(), ROOT)[1]


def test_the_header_has_a_line_for_each_target_with_its_file():
    targets = {"tpu-v5e": {"test_a": {"one": entry(), "two": entry()}}, "tpu-v6e": {}}
    assert session_header(session(targets=targets), ROOT)[2:] == [
        "perfsuite: tpu-v5e: baselines/tpu-v5e.json (2 metrics)",
        "perfsuite: tpu-v6e: baselines/tpu-v6e.json (no metrics yet: pytest --perf-save records them)",
    ]


def test_a_baseline_folder_outside_of_the_project_is_named_in_full():
    assert "/project/baselines/tpu-v5e.json" in session_header(session(), Path("/other"))[1]
