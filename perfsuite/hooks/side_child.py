"""Loaded by the pytest of one side, `-p perfsuite.hooks.side_child`: what it does otherwise, and its notes.

A process may only name the files of the perf tests ("collect"). The first process of a side that runs them runs all
and records what is exact, whatever it is ("metrics"). The many processes after it only time each call for some seconds,
and gate and record nothing ("times"). Both note every stage of every compile.
"""

import argparse
import importlib.abc
import importlib.machinery
import importlib.metadata
import json
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from perfsuite.against.notes import (
    NOT_FROM,
    NOTES_FILE,
    OPTION,
    REQUEST_FILE,
    Fingerprint,
    Notes,
    Place,
    SideRequest,
    Stage,
    StageNote,
    TimeNote,
)
from perfsuite.measure.io import write_atomically
from perfsuite.measure.metric import title
from perfsuite.measure.serialise import from_json, plain
from perfsuite.processes import TASK, Task
from perfsuite.session.fresh import TURNED_OFF

if TYPE_CHECKING:  # they import jax: see `SideHooks.mode`
    from perfsuite.session.modes import Mode


_PATH = tuple(sys.path)
"""As it was before a conftest or pytest changed it: pytest loads this module first."""

_LONGEST_MESSAGE = 300
_NO_ERROR = ("---", "For simplicity, JAX has removed its internal frames")
"""What JAX adds below an error."""
_WRITERS = ("lfplugin", "nfplugin", "stepwiseplugin")
"""Plugins of pytest that would note in the user's cache which tests failed here."""
_KEPT = {"pyargs", "lf", "failedfirst", "newfirst", "stepwise", "stepwise_skip"}
"""Options that choose tests, or their order."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, metavar="DIR", required=True, help=argparse.SUPPRESS)


@pytest.hookimpl(tryfirst=True)  # before any plugin is configured
def pytest_cmdline_main(config: pytest.Config) -> None:
    folder = Path(config.option.perf_side)
    try:
        request = from_json(SideRequest, (folder / REQUEST_FILE).read_bytes())
    except (OSError, ValueError) as error:
        raise pytest.UsageError(f"perfsuite: no request in {folder} ({error}); the option is for its own use") from None
    for name, value in TURNED_OFF.items():
        if name not in _KEPT and hasattr(config.option, name):
            setattr(config.option, name, value)
    config.option.perf_save = request.task == "metrics"
    config.option.collectonly = request.task == "collect"
    config.option.continue_on_collection_errors = True  # the other files can be compared
    config.option.basetemp = str(folder / "basetemp")
    hooks = SideHooks(folder, request, request.seconds or config.option.perf_seconds)
    config.pluginmanager.register(hooks, "perfsuite-side")
    cache = Path(request.cache)
    cache.mkdir(parents=True, exist_ok=True)
    config.stash[TASK] = Task(hooks.mode, cache, Path(request.target_cache))


class _Stages:
    """How often each function went through each stage, and the seconds of it, by the test in which it was compiled."""

    def __init__(self, test_now: Callable[[], str]) -> None:
        # Here, not above: see `SideHooks.mode`. And not in the listener, whose calls a test may count.
        from perfsuite.measure.compiles.callsite import location
        from perfsuite.measure.private.capabilities import probing
        from perfsuite.measure.private.compile_events import stage_of

        self._test_now, self._location, self._probing, self._stage_of = test_now, location, probing, stage_of
        self._seconds: defaultdict[tuple[str, str, Stage], list[float]] = defaultdict(list)
        self._places: dict[tuple[str, str, Stage], str] = {}
        self._lock = threading.Lock()

    def on_end(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        """A listener of JAX's."""
        stage = self._stage_of(event)
        if stage is None or self._probing():
            return
        function = str(kwargs.get("fun_name", "")).removeprefix("jit(").removesuffix(")")
        key = self._test_now(), function, stage
        place = self._location(sys._getframe(1))
        with self._lock:
            self._seconds[key].append(duration_secs)
            self._places[key] = place

    def notes(self) -> list[StageNote]:
        return [
            StageNote(*key, len(seconds), sum(seconds), self._places[key]) for key, seconds in self._seconds.items()
        ]


class SideHooks:
    """Notes how tests ended, what compiled, and the times."""

    def __init__(self, folder: Path, request: SideRequest, seconds: float):
        self.folder = folder
        self.request = request
        self.seconds = seconds
        self.notes = Notes()
        self.test = ""
        self.stages: _Stages | None = None
        self._runs: defaultdict[str, dict[str, Fingerprint]] = defaultdict(dict)

    def mode(self) -> "Mode":
        """The mode of the session that is about to start."""
        # Not at the top: pytest loads this module before any conftest, which may set jax up before it is imported.
        from perfsuite.session import modes

        if self.request.task == "metrics":
            return modes.exact(self._note_runs)
        return modes.timing_one_side(self._note_time, self.seconds)

    def _note_runs(self, test: str, titles: Sequence[str], programs: str | None, host_calls: str | None) -> None:
        self._runs[test].update(dict.fromkeys(titles, Fingerprint(programs, host_calls)))

    def _note_time(self, test: str, name: str, value: float, unit: str) -> None:
        self.notes.times.append(TimeNote(test, name, value, unit))

    @pytest.hookimpl(wrapper=True)  # around perfsuite's own
    def pytest_sessionstart(self, session: pytest.Session) -> Iterator[None]:
        self.notes.rootdir = str(session.config.rootpath)
        result = yield
        if self.request.task != "collect":
            import jax  # not at the top: see `mode`

            self.stages = _Stages(lambda: self.test)
            jax.monitoring.register_event_duration_secs_listener(self.stages.on_end)
        for name in _WRITERS:
            if session.config.pluginmanager.has_plugin(name):
                session.config.pluginmanager.unregister(name=name)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.test = item.nodeid
        result = yield
        self.test = ""
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> pytest.CollectReport | None:
        """A file without any of the tests is not imported: that would do once a process what a test is to do."""
        only = self.request.only
        named = any("::" in argument for argument in collector.config.args)  # pytest must find what is named
        if only is None or named or not isinstance(collector, pytest.Module):
            return None
        if any(test.startswith(f"{collector.nodeid}::") for test in only):
            return None
        return pytest.CollectReport(collector.nodeid, "passed", None, [])

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if self.request.only is not None:
            only = set(self.request.only)
            config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in only])
            items[:] = [item for item in items if item.nodeid in only]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        active: Any = session.config.pluginmanager.get_plugin("perfsuite-active")
        if active is not None:
            self.notes.device = active.session.judge.device
        if self.request.task == "collect":
            self.notes.path = _import_folders()
            self.notes.files = sorted({str(item.path) for item in session.items})

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.notes.tests[report.nodeid or "the tests"] = "not collected", _message(report.longreprtext)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if (report.when == "call" or report.outcome != "passed") and (
            report.nodeid not in self.notes.tests or report.failed
        ):
            self.notes.tests[report.nodeid] = report.outcome, "" if report.passed else _message(_reason(report))
        if self.request.task == "metrics" and hasattr(report, "perfsuite"):
            where, runs = report.perfsuite["where"], self._runs[report.nodeid]
            self.notes.places[report.nodeid] = {
                name: Place(
                    where.get(name, ""), metric["places"] or {}, _is_sampled(metric), runs.get(name, Fingerprint())
                )
                for metric in report.perfsuite["metrics"]
                for name in [title(metric["name"], metric["target"])]
            }
        if self.request.task == "times" and hasattr(report, "perfsuite"):
            self.notes.times += [
                TimeNote(report.nodeid, metric["name"], metric["value"], metric["unit"])
                for metric in report.perfsuite["metrics"]
                if metric["kind"] == "time" and not metric["name"].endswith(" p99") and metric["value"] > 0
            ]

    @pytest.hookimpl(trylast=True)  # where a hook before it fails, there must be no notes
    def pytest_sessionfinish(self) -> None:
        self.notes.stages = self.stages.notes() if self.stages else []
        self.notes.foreign = foreign()
        write_atomically(self.folder / NOTES_FILE, json.dumps(plain(self.notes)))


def _import_folders() -> list[str]:
    """Where Python finds modules: its path, and the folders of editable installs that a finder maps to names."""
    modules = [sys.modules.get(name) for name in importlib.metadata.packages_distributions()]
    files = [Path(file) for module in modules if (file := getattr(module, "__file__", None))]
    folders = [file.parent.parent if file.stem == "__init__" else file.parent for file in files]
    return list(dict.fromkeys(str(path.resolve()) for path in (*map(Path, _PATH), *folders)))


def _is_sampled(metric: dict[str, Any]) -> bool:
    """Whether a metric is a time, or a ratio of times; of a few pairs a ratio has no interval, and is information."""
    of_times = metric["unit"] == "x" and (metric["samples"] is not None or metric["interval"] is not None)
    return metric["kind"] == "time" or (metric["kind"] in ("ratio", "info") and of_times)


def _reason(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):  # a skip: file, line and reason
        return report.longrepr[2]
    crash = getattr(report.longrepr, "reprcrash", None)
    return crash.message if crash is not None else report.longreprtext


def _message(text: str) -> str:
    """What to show of a failure: of a traceback the last line that names an error."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    errors = [line.removeprefix("E ").strip() for line in lines if line.startswith("E ")]
    errors = [line for line in errors if not line.startswith(_NO_ERROR)]
    words = " ".join((errors[-1:] or lines[:1] or [""])[0].split())
    return words if len(words) <= _LONGEST_MESSAGE else f"{words[: _LONGEST_MESSAGE - 3]}..."


# An editable install points at the working tree. The worktree's own folders come first on the path, so what it has is
# imported from there. What only the working tree has must not be imported instead: it is not part of the commit.

INSTALLED = ("site-packages", "dist-packages")
"""A virtual environment in the working tree is not part of it."""


class _Guard(importlib.abc.MetaPathFinder):
    """Asks the finders after it, and refuses a module of the working tree."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        after = sys.meta_path[sys.meta_path.index(self) + 1 :]
        for finder in after:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.has_location and _is_foreign(spec.origin):
                    raise ModuleNotFoundError(f"this commit has no module {name!r} (the working tree has)", name=name)
                return spec
        return None


def keep_out() -> None:
    """Import nothing from the working tree from now on, where this process runs the code of a commit."""
    if _places() is not None:
        sys.path[:] = [entry for entry in sys.path if not _is_foreign(entry)]
        sys.meta_path.insert(0, _Guard())


def foreign() -> dict[str, str]:
    """The modules that this process imported from the working tree all the same, each with its file."""
    files = {name: str(getattr(module, "__file__", None)) for name, module in list(sys.modules.items())}
    return {name: file for name, file in sorted(files.items()) if _is_foreign(file)}


def _places() -> tuple[Path, Path] | None:
    tree, _, own = os.environ.get(NOT_FROM, "").partition(os.pathsep)
    return (Path(tree), Path(own)) if tree else None


def _is_foreign(file: object) -> bool:
    places = _places()
    if places is None or not isinstance(file, str):
        return False
    tree, own = places
    path = Path(os.path.realpath(file))
    return path.is_relative_to(tree) and not path.is_relative_to(own) and not set(INSTALLED) & set(path.parts)


keep_out()
