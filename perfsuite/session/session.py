"""One pytest session with --perf: its options, devices and baselines, and the gates of all its tests.

A metric of the present device is *measured*, one of a target is *compiled*, and each goes to the file of its device.
Where the present device is the target, both are of one file, and metrics of the same test and id are one entry: both
are judged against it, and what was measured is recorded.
"""

import contextlib
import dataclasses
import re
from collections.abc import Callable, Collection, Iterable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import pytest

from perfsuite.gate import baseline, verdict
from perfsuite.gate.baseline import Baselines, Entry, Revision
from perfsuite.gate.baseline_file import BaselineError, SaveResult, baseline_files, check_writable, load, save
from perfsuite.gate.budget import Budget
from perfsuite.gate.environment import (
    Environment,
    device_slug,
    installed,
    present_environment,
    target_environment,
)
from perfsuite.gate.verdict import Evidence, Result, Verdict
from perfsuite.measure.metric import Metric
from perfsuite.measure.private.capabilities import CapabilityLost
from perfsuite.measure.words import printable
from perfsuite.options import HERE, SIZES, Options
from perfsuite.session.mode import Mode
from perfsuite.session.outcomes import Lost
from perfsuite.session.records import TestRecord

if TYPE_CHECKING:  # few sessions compare anything, or are of several processes
    from perfsuite.gate.limits import Limits
    from perfsuite.processes.group import Group

Need = Literal["quiet", "alone", "processes"]
"""What an instrument may need of a session."""

_SIZE = " --perf-size="


class Deferred(pytest.skip.Exception):  # type: ignore[name-defined]
    """Ends a test in a worker of pytest-xdist, which the main process runs when the workers have ended."""

    def __init__(self, why: str):
        super().__init__(f"{why}: other processes share the machine under pytest-xdist; run it with `-n 0`")


class PerfSession:
    """There is one a session, with --perf. It starts JAX's backend.

    `in_worker` is for a worker of pytest-xdist, where nothing can be timed. Raises `BaselineError` when the baselines
    of the present device or of the targets named in the options cannot be read, or cannot be written although they are
    to be saved; `ValueError` for a target that is not known.

    `cache` is the folder where the facts of programs are kept, `target_cache` the one for what compilers for absent
    devices say; None keeps none. `group` are the processes that measure
    together, None where this one is alone; all of them have the baselines of process 0, and keep no facts. `mode` makes
    the session's mode (`session.modes`).
    """

    def __init__(
        self,
        options: Options,
        *,
        in_worker: bool = False,
        cache: Path | None = None,
        target_cache: Path | None = None,
        group: "Group | None" = None,
        mode: Callable[["PerfSession"], Mode],
    ):
        self.options = options
        self.in_worker = in_worker
        self.group = group
        # What processes find in their caches differs, and with it what they would run.
        self.cache = cache if group is None else None
        self.target_cache = target_cache if group is None else None
        self.environment: Environment = present_environment()
        self.device = device_slug(self.environment.device_kind)
        """The name of the present device's baseline file."""
        self._files: dict[str, Baselines] = {}
        self._damaged: dict[str, BaselineError] = {}
        if group is not None:
            paths = [self.path_of(target) for target in (None, *options.targets)]
            self._files = group.baselines(paths, save=bool(options.save))
        elif options.save:
            for target in (None, *options.targets):
                check_writable(self.path_of(target))
        self._environments: dict[str, Environment] = {}
        self.baselines = self.baselines_of(None)
        for target in options.targets:
            self.environment_of(target)
            self.baselines_of(target)
        self.records: list[TestRecord] = []
        self.unmeasured: list[TestRecord] = []
        """Perf tests that failed or were skipped before their body, or failed after it: for reports alone."""
        self.passed_without_perf: set[str] = set()
        """Tests that passed and measured nothing, because they do not use `perf`."""
        self.files: set[str] = set()
        """The files and folders that were collected whole, seen from `root`."""
        self.root: Path | None = None
        self.collected: set[str] = set()
        """Every test of the files that were collected, where they were collected whole."""
        self.of_targets: set[str] = set()
        """The test functions among them, without parameters, that run once for every target."""
        self.mode = mode(self)

    @property
    def path(self) -> Path:
        """The present device's baseline file."""
        return self.path_of(None)

    def path_of(self, target: str | None) -> Path:
        """The baseline file of a target, or of the present device."""
        return self.options.baselines / f"{target or self.device}.json"

    def baselines_of(self, target: str | None) -> Baselines:
        """The baselines of a target, or of the present device. Raises `BaselineError`.

        A file is read once, when first asked for.
        """
        device = target or self.device
        if device in self._damaged:
            raise self._damaged[device].with_traceback(None)
        if device not in self._files:
            try:
                self._files[device] = load(self.path_of(device))
            except BaselineError as error:
                self._damaged[device] = error
                raise
        return self._files[device]

    def environment_of(self, target: str | None) -> Environment:
        """Where this session makes the metrics of a target. Raises `ValueError` for one that is not known."""
        if target is None:
            return self.environment
        if target not in self._environments:
            from perfsuite.measure.targets import targets  # few sessions compile for a target

            known = targets.target(target)
            libtpu = installed("libtpu") if known.platform == "tpu" else None
            self._environments[target] = target_environment(self.environment, known.device_kind, libtpu=libtpu)
        return self._environments[target]

    def unavailable(self, reason: str) -> NoReturn:
        """End the test, for something that this machine lacks: skipped, but failed under --perf-strict."""
        __tracebackhide__ = True
        if "new" in self.options.strict:
            pytest.fail(f"{reason} (--perf-strict)", pytrace=False)
        pytest.skip(reason)

    def end_without(self, lost: CapabilityLost, *, in_full: bool) -> NoReturn:
        """The same for something that does not work with the libraries that are installed; `in_full` with the cause."""
        if "new" in self.options.strict:
            self.unavailable(f"{lost} ({lost.details})" if in_full else str(lost))
        raise Lost(str(lost), lost.details if in_full else "")

    def check(self, instrument: str, needs: Collection[Need]) -> None:
        """End the test where the session lacks what an instrument needs. Raises `Deferred` in a worker of pytest-xdist.

        "quiet" is a machine that no other test shares. "alone" is a process that measures by itself: where several
        measure together, the instrument would stop in each by its own clock. "processes" are others like this one: a
        worker of pytest-xdist does not know the command line.
        """
        __tracebackhide__ = True
        if self.in_worker and not {"quiet", "processes"}.isdisjoint(needs):
            raise Deferred(instrument)
        if "alone" in needs and self.group is not None:
            self.unavailable(f"{instrument} measures one process alone, and {self.group.count} measure together here")

    def test_key(self, test: str) -> str:
        """A test's name in the baseline file. Metrics of the full size stand beside those of the small one."""
        test = printable(test)
        return test if self.options.size == "small" else f"{test}{_SIZE}{self.options.size}"

    def limits(self, budget: Budget, test: str, ratio: str, tolerance: float | None) -> "Limits":
        """What a comparison must keep to. `ratio` is the id of its ratio's metric."""
        from perfsuite.gate.limits import Limits  # see the top

        if not self.mode.gates:
            return Limits()
        entry = self._entry(test, ratio, None)
        return Limits(budget.limits(), verdict.ratio_limit(entry, self.environment, tolerance))

    def judge(
        self, test: str, metric: Metric, tolerance: float | None, evidence: Evidence = verdict.NO_EVIDENCE
    ) -> Result:
        """A metric against its baseline. Raises `BaselineError` when the file of its target cannot be read."""
        if not self.mode.gates:
            return Result(test, metric, Verdict.INFO)
        entries = self.baselines_of(metric.target).metrics.get(self.test_key(test), {})
        entry = entries.get(metric.id)
        now = self.environment_of(metric.target)
        result = verdict.judge_baseline(test, metric, entry, now=now, tolerance=tolerance, evidence=evidence)
        if entry is not None and baseline.name_of(metric.id, entry) != metric.name:
            others = (baseline.name_of(id, each) for id, each in entries.items() if id != metric.id)
            moved = metric.name in others
            result = dataclasses.replace(result, recorded_as=baseline.name_of(metric.id, entry) if moved else "")
        return verdict.as_saved(result, self.options.save_only)

    def failures(self, results: Iterable[Result]) -> list[Result]:
        """Those that fail the test."""
        return list(filter(self.mode.fails, results))

    def known_files(self) -> list[Baselines]:
        """The baselines of all devices; of several processes together, those that they share.

        The file of another device may be damaged: that is left to who uses it.
        """
        if self.group is None:
            for path in baseline_files(self.options.baselines):
                with contextlib.suppress(BaselineError):
                    self.baselines_of(path.stem)
        return [self._files[device] for device in sorted(self._files)]

    def save(self) -> tuple[list[SaveResult], list[BaselineError]]:
        """Record the metrics of the tests that passed. Returns the result of each file, and the errors.

        Written are the present device's file, and those of targets that this run made metrics for, or whose tests ran
        and no longer make them.
        """
        passed = [record for record in self.records if record.passed]
        ran = {self.test_key(record.test) for record in passed}
        how: dict[str, Any] = {"revision": self._revision(), "kinds": self.options.save_only}
        saved, errors = [], []
        for device in (self.device, *self._target_files()):
            new = self._new(device, passed)
            try:
                if device == self.device:
                    gone = self.gone_tests(self.baselines.metrics)
                    # Its compiled metrics come from here too, if it is a target.
                    result = save(self.path, new, trim=ran, gone=gone, provenances=("measured", "compiled"), **how)
                else:
                    # A test that this machine does not know may exist where there is such a device, so only what was
                    # compiled goes.
                    trim = ran | self.gone_tests(self.baselines_of(device).metrics)
                    result = save(self.path_of(device), new, trim=trim, provenances=("compiled",), **how)
            except BaselineError as error:
                errors.append(error)
                continue
            saved.append(result)
        # Of files that are not there and have nothing to hold there is nothing to say.
        return [result for result in saved if result.changes or result.untouched] or saved[:1], errors

    def _revision(self) -> Revision | None:
        """What is checked out around the baselines; None without git, or a commit."""
        from perfsuite.git import GitError, Repository  # only a save asks git

        try:
            repository = Repository(self.options.baselines)
            commit = repository.commit_id("HEAD")
            return Revision(commit, repository.dirty(repository.prefix)) if commit else None
        except GitError:
            return None

    def _new(self, device: str, records: Iterable[TestRecord]) -> dict[str, dict[str, Entry]]:
        """The entries that these tests make for the file of `device`."""
        new: dict[str, dict[str, Entry]] = {}
        for record in records:
            entries = new.setdefault(self.test_key(record.test), {})
            # A metric that cannot be made here stays as it is.
            for metric in (
                result.metric for result in record.results if result.incomparable and result.source == "baseline"
            ):
                if self._is_of(device, metric) and (old := self._entry(record.test, metric.id, metric.target)):
                    entries[metric.id] = old
            # What was measured comes last, and takes the place of what was compiled under the same id.
            for metric in sorted(record.metrics, key=lambda metric: metric.target is None):
                if self._is_of(device, metric):
                    provenance: baseline.Provenance = "compiled" if metric.target else "measured"
                    entries[metric.id] = baseline.entry_of(metric, self.environment_of(metric.target), provenance)
        return {test: entries for test, entries in new.items() if entries}

    def _is_of(self, device: str, metric: Metric) -> bool:
        return (metric.target or self.device) == device

    def _target_files(self) -> list[str]:
        """The targets of this session, and those that a test once made metrics for: names of files, without ending."""
        made = {metric.target for record in self.records for metric in record.metrics}
        names = {*self.options.targets, *made} - {None, self.device}
        ran = {self.test_key(record.test) for record in self.records}
        for baselines in self.known_files():
            known = ran | self.gone_tests(baselines.metrics)
            entries = (entry for test in known & baselines.metrics.keys() for entry in baselines.metrics[test].values())
            if any(entry.provenance == "compiled" for entry in entries):
                names.add(baselines.device)
        names.discard(self.device)
        return sorted(name for name in names if name)

    def gone_tests(self, metrics: Iterable[str]) -> set[str]:
        """The recorded tests that are gone, with their file or without it, or that pass without `perf`."""
        keys = {self.test_key(test) for test in self.collected}
        of_this_size = {key for key in metrics if key == self.test_key(test_of(key))}
        absent = {key for key in of_this_size - keys if self._was_collected_whole(key.partition("::")[0])}
        plain = of_this_size & {self.test_key(test) for test in self.passed_without_perf}
        return plain | {key for key in absent if not self._is_of_another_target(test_of(key))}

    def _was_collected_whole(self, file: str) -> bool:
        """Whether a file was collected, or its folder, and the file is not there."""
        if file in self.files:
            return True
        folders = {str(folder) for folder in PurePosixPath(file).parents}
        return not folders.isdisjoint(self.files) and self.root is not None and not (self.root / file).exists()

    def _is_of_another_target(self, test: str) -> bool:
        """Whether a test was not collected because this session compiles for other targets, or for none."""
        function, parameters = split_parameters(test)
        if function not in self.of_targets:
            return False
        ids = "|".join(map(re.escape, self.options.targets or (HERE,)))
        return not re.search(rf"(?<![a-z0-9])(?:{ids})(?![a-z0-9])", parameters)

    def _entry(self, test: str, metric: str, target: str | None) -> Entry | None:
        return self.baselines_of(target).get(self.test_key(test), metric)


def test_of(key: str) -> str:
    """The inverse of `PerfSession.test_key`. A test's parameters may hold the same words as the end of a key."""
    for size in SIZES:
        key = key.removesuffix(f"{_SIZE}{size}")
    return key


def split_parameters(test: str) -> tuple[str, str]:
    """A test's id without its parameters, and the parameters: ("test_a.py::test_step", "tpu-v5e]")."""
    file, colons, name = test.partition("::")
    function, _, parameters = name.partition("[")
    return f"{file}{colons}{function}", parameters
