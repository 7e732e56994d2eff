"""Loaded by the pytest of one environment, `-p perfsuite.hooks.upgrade_child`: what it does otherwise and notes.

Once all tests run and record their metrics, whatever they are ("metrics"); in the many processes after that each call
is timed for a moment, and nothing is gated or recorded ("times"). In both, every stage of every compile is noted.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from perfsuite.hooks.rerun_child import TURNED_OFF
from perfsuite.session.recorder import Recorder

if TYPE_CHECKING:
    from perfsuite.gate.verdict import Gate
    from perfsuite.measure.call import Call
    from perfsuite.measure.measurement import Metric
    from perfsuite.measure.timing.block import Until
    from perfsuite.measure.timing.comparison import Comparison
    from perfsuite.session.session import PerfSession

OPTION = "--perf-upgrade"
NOTES = "notes.json"
REQUEST = "request.json"

Mode = Literal["metrics", "times"]

_STAGES = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
}
_LONGEST_MESSAGE = 300
_WRITERS = ("lfplugin", "nfplugin", "stepwiseplugin")
"""Of pytest's own: they would note in the user's cache which tests failed here."""


@dataclasses.dataclass(frozen=True)
class Request:
    """What a process is asked for. `seconds` is the most time for one timing, None leaves it to the options.

    `cache` is where the facts of programs are kept, a folder of this environment alone.
    """

    mode: Mode
    seconds: float | None
    cache: str


@dataclasses.dataclass
class Notes:
    """What a process noted: plain values, as they stand in its file.

    `tests` says of every test how it ended and why, `uncollected` why files could not be collected. `stages` has test,
    function, stage, how often and seconds; `times` test, name, value and unit. `environment` is that of the metrics.
    """

    tests: dict[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    uncollected: dict[str, str] = dataclasses.field(default_factory=dict)
    stages: list[tuple[str, str, str, int, float]] = dataclasses.field(default_factory=list)
    times: list[tuple[str, str, float, str]] = dataclasses.field(default_factory=list)
    environment: dict[str, Any] = dataclasses.field(default_factory=dict)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, metavar="DIR", required=True, help=argparse.SUPPRESS)


@pytest.hookimpl(tryfirst=True)  # before any plugin is configured
def pytest_cmdline_main(config: pytest.Config) -> None:
    folder = Path(config.option.perf_upgrade)
    try:
        request = Request(**json.loads((folder / REQUEST).read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise pytest.UsageError(f"perfsuite: no request in {folder} ({error}); the option is for its own use") from None
    kept = {"pyargs", "lf", "failedfirst", "newfirst", "stepwise", "stepwise_skip"}  # they choose tests, or their order
    for name, value in TURNED_OFF.items():
        if name not in kept and hasattr(config.option, name):
            setattr(config.option, name, value)
    config.option.perf_save = request.mode == "metrics"
    config.option.basetemp = str(folder / "basetemp")
    config.pluginmanager.register(ChildHooks(folder, request), "perfsuite-upgrade")


class _Stages:
    """The seconds of each stage of each function, by the test in which it was compiled.

    It stands in the place of a `measure.tally.Compiles`, which is told how long a stage took without what perfsuite's
    own listeners took; which stage it was comes from a listener of its own, which JAX calls just before.
    """

    counts = False
    forbids = False

    def __init__(self) -> None:
        self.test = ""
        self.seconds: defaultdict[tuple[str, str, str], float] = defaultdict(float)
        self.number: Counter[tuple[str, str, str]] = Counter()
        self._lock = threading.Lock()
        self._here = threading.local()

    def on_end(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        stage = _STAGES.get(event)
        if stage is not None:
            function = str(kwargs.get("fun_name", ""))
            self._here.now = stage, function.removeprefix("jit(").removesuffix(")")

    def add_seconds(self, seconds: float) -> None:
        stage, function = getattr(self._here, "now", ("", ""))
        if stage:
            self._here.now = "", ""
            with self._lock:
                self.seconds[self.test, function, stage] += seconds
                self.number[self.test, function, stage] += 1

    def add_cache_hit(self) -> None:
        """The persistent cache is off."""

    def rows(self) -> list[tuple[str, str, str, int, float]]:
        return [(*key, self.number[key], seconds) for key, seconds in self.seconds.items()]


class _UngatedRecorder(Recorder):
    """Metrics whose budgets fail nothing: what is over its budget must not keep the calls after it from being timed."""

    def budget_gate(self, metric: "Metric", limit: float) -> "Gate":
        return dataclasses.replace(super().budget_gate(metric, limit), verdict="info")

    def failing(self, gates: "Sequence[Gate]") -> "list[Gate]":
        return []


class Times:
    """Takes the place of comparisons: both sides are timed for `seconds`, in turns, and noted one by one."""

    def __init__(self, session: "PerfSession", notes: Notes, seconds: float):
        self.session = session
        self.notes = notes
        self.seconds = seconds
        self._names: Counter[tuple[str, ...]] = Counter()

    def metrics(self, test: str) -> Recorder:
        """Where the metrics of a test are recorded, for nobody."""
        return _UngatedRecorder(self.session, test, None)

    def compare(
        self, test: str, name: str, candidate: "Call", reference: "Call", *, until: "Until", seconds: float
    ) -> "Comparison":
        """Compare two calls for a moment: the test may look at the result."""
        import numpy as np

        from perfsuite.measure.timing.comparison import compare_calls

        comparison = compare_calls(candidate, reference, until=until, seconds=min(seconds, self.seconds))
        # Under the name that the gate gives the metric.
        self.notes.times.append(
            (test, f"{self._unique(test, name, until)} ratio to {until}", comparison.ratio.value, "x")
        )
        name = self._unique(test, name)
        sides = ("candidate", comparison.candidate_us), ("reference", comparison.reference_us)
        for side, samples in sides:
            for moment, us in zip(("return", "ready"), np.median(samples, axis=0), strict=True):
                self.notes.times.append((test, f"{name} {side} to {moment}", float(us), "us"))
        return comparison

    def _unique(self, *key: str) -> str:
        self._names[key] += 1
        number = self._names[key]
        return key[1] if number == 1 else f"{key[1]} #{number}"


class ChildHooks:
    """Notes how tests ended, what compiled, and what was timed."""

    def __init__(self, folder: Path, request: Request):
        self.folder = folder
        self.request = request
        self.notes = Notes()
        self.stages = _Stages()

    @pytest.hookimpl(wrapper=True)  # around perfsuite's own
    def pytest_sessionstart(self, session: pytest.Session) -> Iterator[None]:
        import jax

        # Before perfsuite's listeners: see `_Stages`.
        jax.monitoring.register_event_duration_secs_listener(self.stages.on_end)
        result = yield
        active: Any = session.config.pluginmanager.get_plugin("perfsuite-active")
        if active is not None:
            from perfsuite.measure.compiles.listeners import telling

            made: PerfSession = active.session
            made.cache = Path(self.request.cache)
            made.cache.mkdir(parents=True, exist_ok=True)
            self.notes.environment = made.environment.as_dict()
            if self.request.mode == "times":
                made.upgrade = Times(made, self.notes, self.request.seconds or made.options.seconds)
            cleanup = contextlib.ExitStack()
            watch: Any = self.stages
            cleanup.enter_context(telling(watch))
            session.config.add_cleanup(cleanup.close)
        for name in _WRITERS:
            if session.config.pluginmanager.has_plugin(name):
                session.config.pluginmanager.unregister(name=name)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.stages.test = item.nodeid
        result = yield
        self.stages.test = ""
        return result

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.notes.uncollected[report.nodeid or "the tests"] = _message(report.longreprtext)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            message = "" if report.passed else _message(_reason(report))
            if report.nodeid not in self.notes.tests or report.failed:
                self.notes.tests[report.nodeid] = report.outcome, message
        if self.request.mode == "times" and hasattr(report, "perfsuite"):
            self.notes.times += [
                (report.nodeid, made["name"], made["value"], made["unit"])
                for made in report.perfsuite["metrics"]
                if made["kind"] == "time" and not made["name"].endswith(" p99") and made["value"] > 0
            ]

    @pytest.hookimpl(trylast=True)  # what fails before must not look like a whole run
    def pytest_sessionfinish(self) -> None:
        self.notes.stages = self.stages.rows()
        beside = self.folder / f"{NOTES}.part"
        beside.write_text(json.dumps(dataclasses.asdict(self.notes)), encoding="utf-8")
        os.replace(beside, self.folder / NOTES)


def _reason(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):  # a skip: file, line and reason
        return report.longrepr[2]
    crash = getattr(report.longrepr, "reprcrash", None)
    return crash.message if crash is not None else report.longreprtext


def _message(text: str) -> str:
    """What to show of a failure: of a traceback the last line that names an error."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    errors = [line.removeprefix("E ").strip() for line in lines if line.startswith("E ")]
    words = " ".join((errors[-1:] or lines[:1] or [""])[0].split())
    return words if len(words) <= _LONGEST_MESSAGE else f"{words[: _LONGEST_MESSAGE - 3]}..."
