"""The terminal: the session's header, what closes it, and what was saved."""

import dataclasses
import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest

import perfsuite
from perfsuite.gate.baseline import Baselines, Entry
from perfsuite.gate.baseline_file import SaveResult
from perfsuite.gate.environment import Environment
from perfsuite.gate.merging import Change
from perfsuite.gate.verdict import Result, Verdict
from perfsuite.measure.metric import Interval, Metric
from perfsuite.report.terminal.header import session_header
from perfsuite.report.terminal.summary import session_summary

HERE = Environment("TPU v5 lite", 4, "Xeon", "3.11.7", "0.10.2", "0.10.1")
ROOT = Path("/project")


class Reporter:
    """Takes the place of pytest's terminal reporter: keeps the lines, and how each was marked up."""

    def __init__(self, verbosity=0, width=80):
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


def result(
    name="step to ready",
    value=1.5,
    verdict=Verdict.PASS,
    *,
    test="tests/test_a.py::test_step",
    **fields,
):
    return Result(test, Metric(name, value, "x", "ratio"), verdict, **fields)


def session(*results, metrics=None, save=(), targets=None, passed=True, compiled=0, kernels=()):
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
        path_of=lambda target: ROOT / "baselines" / f"{target or 'tpu-v5e'}.json",
        baselines_of=files.__getitem__,
    )


def written(reporter, *results, saved=(), not_saved="", gone=(), below=0, **fields):
    session_summary(reporter, session(*results, **fields), ROOT, saved, not_saved, gone, below)
    return reporter


def entry(value=1.5, **environment):
    return Entry(value, "x", "ratio", "measured", dataclasses.replace(HERE, **environment))


# What closes a session.


def test_few_lines_close_a_session(reporter):
    written(reporter, result("a"), result("b", verdict=Verdict.NEW))
    assert reporter.sections == ["perfsuite"]
    assert reporter.lines == [
        "2 metrics of 1 test: 1 new, 1 pass",
        "new: 1 metric has no baseline: pytest --perf-save records it",
    ]


def test_with_v_the_table_and_the_reasons_come_first():
    verbose = written(
        Reporter(verbosity=1), result("a"), result("b", verdict=Verdict.INCONCLUSIVE, note="b is too noisy")
    )
    assert verbose.lines[0].split() == ["metric", "value", "against", "change", "verdict"]
    assert verbose.lines[1] == "tests/test_a.py::test_step"
    assert verbose.lines[4] == "inconclusive: tests/test_a.py::test_step: b is too noisy"
    assert verbose.lines[5] == "2 metrics of 1 test: 1 inconclusive, 1 pass"
    assert verbose.markup[verbose.lines[3]] == {"yellow": True}


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


@pytest.mark.parametrize("below", [1, 2])
@pytest.mark.parametrize("count", [1, 130])
@pytest.mark.parametrize("name", ["a", "a name of many words " * 4, "a_name_of_one_word" * 20])
def test_a_green_session_closes_with_ten_lines_within_the_width_whatever_its_notes(name, count, below):
    def of(kind):
        for number in range(count):
            metric = Metric(f"{name}{kind} {number}", 1.4, "x", "ratio", interval=Interval(1.3, 1.6))
            yield Result(f"t.py::test_{name}[{number}]", metric, **{"verdict": Verdict.PASS, **KINDS[kind]})

    results = {kind: list(of(kind)) for kind in KINDS}
    kernels = [f"kernel_{name} at kernels.py:{number}" for number in range(count)]
    for chosen in itertools.product([False, True], repeat=len(KINDS) + 1):
        present = list(itertools.compress(KINDS, chosen))
        if not present:
            continue
        compiled = {"compiled": 12, "kernels": kernels} if chosen[-1] else {}
        shown = written(
            Reporter(width=100), *(each for kind in present for each in results[kind]), below=below, **compiled
        )
        assert len(shown.sections) + len(shown.lines) + below <= 10
        assert max(map(len, shown.lines)) <= 100
        for beginning, action in [*present, *([KERNELS] if compiled else [])]:
            said = [line for line in shown.lines if line.startswith(beginning) and action in line]
            assert said, f"{beginning}{action} is not in {shown.lines}"


def test_with_v_every_kernel_without_an_estimate_is_named():
    kernels = ("one at a.py:1", "two at a.py:2")
    few = written(Reporter(width=200), result("a"), kernels=kernels)
    assert few.find("unknown").endswith("for the kernel one at a.py:1 and 1 more kernel")
    every = written(Reporter(width=200, verbosity=1), result("a"), kernels=kernels)
    assert [line.rpartition("kernel ")[2] for line in every.lines if "unknown" in line] == list(kernels)


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


def test_a_save_that_changed_nothing_says_so(reporter):
    written(reporter, saved=[SaveResult(Path("/elsewhere/cpu.json"), (), untouched=2, written=False)])
    assert reporter.lines == ["/elsewhere/cpu.json: 0 recorded, 2 kept"]


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


def test_the_header_has_a_line_for_each_target_with_its_file():
    targets = {"tpu-v5e": {"test_a": {"one": entry(), "two": entry()}}, "tpu-v6e": {}}
    assert session_header(session(targets=targets), ROOT)[2:] == [
        "perfsuite: tpu-v5e: baselines/tpu-v5e.json (2 metrics)",
        "perfsuite: tpu-v6e: baselines/tpu-v6e.json (no metrics yet: pytest --perf-save records them)",
    ]


@pytest.mark.parametrize(("newest", "newer"), [("0.0.9", True), ("999.0.0", False)])
def test_the_head_of_a_session_says_that_jax_is_newer_than_what_was_tested(monkeypatch, newest, newer):
    monkeypatch.setattr(perfsuite, "tested", ("0.0.1", newest))
    said = [line for line in session_header(session(), ROOT) if f"is newer than {newest}" in line]
    assert len(said) == newer
    monkeypatch.setattr(perfsuite, "tested", ("0.0.1", session().environment.jax))
    assert len(session_header(session(), ROOT)) == 2
