"""`Judge`: the baselines of a session, and what they and the options say of a metric. It knows nothing of pytest.

A metric of the present device is *measured*, one of a target is *compiled*, and each goes to the file of its device.
Where the present device is the target, both are of one file, and metrics of the same test and id are one entry: both
are judged against it, and what was measured is recorded.
"""

import contextlib
import dataclasses
import functools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from perfsuite.gate import baseline, verdict
from perfsuite.gate.baseline import Baselines, Entry, Revision
from perfsuite.gate.baseline_file import BaselineError, SaveResult, baseline_files, check_writable, load, save
from perfsuite.gate.budget import Budget
from perfsuite.gate.environment import (
    OF_INSTRUCTIONS,
    Environment,
    device_slug,
    incomparable,
    installed,
    present_environment,
    target_environment,
    with_packages,
)
from perfsuite.gate.verdict import Evidence, Reach, Result, Verdict, judge_absent
from perfsuite.measure.compiler_stderr import compilers_silenced
from perfsuite.measure.metric import INSTRUCTIONS, Metric
from perfsuite.measure.words import printable
from perfsuite.options import HERE, SIZES, Options
from perfsuite.session.records import TestRecord

if TYPE_CHECKING:  # few sessions compare anything
    from perfsuite.gate.limits import Limits

_SIZE = " --perf-size="


@dataclasses.dataclass
class CollectedTests:
    """Which tests there are, as far as files were collected whole: a baseline whose test is gone is missing.

    `files` are the files and folders, seen from `root`; `of_targets` the test functions, without parameters, that run
    once for every target; `without_perf` the tests that passed and measured nothing, because they do not use `perf`.
    """

    root: Path | None = None
    files: set[str] = dataclasses.field(default_factory=set)
    tests: set[str] = dataclasses.field(default_factory=set)
    of_targets: set[str] = dataclasses.field(default_factory=set)
    without_perf: set[str] = dataclasses.field(default_factory=set)

    def has_whole(self, file: str) -> bool:
        """Whether a file was collected, or its folder, and the file is not there."""
        if file in self.files:
            return True
        folders = {str(folder) for folder in PurePosixPath(file).parents}
        return not folders.isdisjoint(self.files) and self.root is not None and not (self.root / file).exists()


class Judge:
    """The baselines of one session.

    `gates` is whether metrics are judged at all, and fail their tests. `files` are the baselines of a session of
    several processes, which have those of process 0; else they are read, once each.

    Raises `BaselineError` when the baselines of the targets named in the options cannot be read, or the folder cannot
    be written although they are to be saved.
    """

    def __init__(self, options: Options, *, gates: bool = True, files: Mapping[str, Baselines] | None = None):
        self.options = options
        self.gates = gates
        self._shared = files is not None
        self._files = dict(files or {})
        self._damaged: dict[str, BaselineError] = {}
        self._environments: dict[str, Environment] = {}
        if options.save and not self._shared:
            for path in (options.baselines / "new.json", *baseline_files(options.baselines)):
                check_writable(path)
        for target in options.targets:
            self.baselines_of(target)

    @functools.cached_property
    def environment(self) -> Environment:
        """The present device and versions. Starts JAX's backend, which takes no more settings from then on."""
        with compilers_silenced():
            return present_environment()

    @property
    def device(self) -> str:
        """The name of the present device's baseline file."""
        return device_slug(self.environment.device_kind)

    def path_of(self, target: str | None) -> Path:
        """The baseline file of a target, or of the present device."""
        return self.options.baselines / f"{target or self.device}.json"

    def baselines_of(self, target: str | None) -> Baselines:
        """The baselines of a target, or of the present device. Raises `BaselineError`."""
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

            device = targets.target(target)
            libtpu = installed("libtpu") if device.platform == "tpu" else None
            self._environments[target] = target_environment(self.environment, device.device_kind, libtpu=libtpu)
        return self._environments[target]

    def key(self, test: str) -> str:
        """A test's name in the baseline file. Metrics of the full size stand beside those of the small one."""
        test = printable(test)
        return test if self.options.size == "small" else f"{test}{_SIZE}{self.options.size}"

    def entries(self, test: str, target: str | None = None) -> Mapping[str, Entry]:
        """The baselines of a test, by the metric's id."""
        return self.baselines_of(target).metrics.get(self.key(test), {})

    def judge(
        self, test: str, metric: Metric, tolerance: float | None, evidence: Evidence = verdict.NO_EVIDENCE
    ) -> Result:
        """A metric against its baseline. Raises `BaselineError` when the file of its target cannot be read."""
        if not self.gates:
            return Result(test, metric, Verdict.INFO)
        entries = self.entries(test, metric.target)
        entry = entries.get(metric.id)
        now = self.environment_of(metric.target)
        if entry is not None and entry.environment is not None:
            now = with_packages(now, dict(entry.environment.packages))
        result = verdict.judge_baseline(test, metric, entry, now=now, tolerance=tolerance, evidence=evidence)
        if entry is not None and (name := baseline.name_of(metric.id, entry)) != metric.name:
            others = (baseline.name_of(id, each) for id, each in entries.items() if id != metric.id)
            result = dataclasses.replace(result, recorded_as=name if metric.name in others else "")
        return verdict.as_saved(result) if self.options.save else result

    def limits(self, budget: Budget, test: str, ratio: str, tolerance: float | None) -> "Limits":
        """What a comparison must keep to. `ratio` is the id of its ratio's metric."""
        from perfsuite.gate.limits import Limits  # see the top

        if not self.gates:
            return Limits()
        return Limits(budget.limits(), verdict.ratio_limit(self.entries(test).get(ratio), self.environment, tolerance))

    def fails(self, result: Result) -> bool:
        """Whether a result fails its test."""
        return self.gates and result.failed

    def strictly(self, result: Result, where: str) -> Result:
        """The result as --perf-strict has it. `where` is the line of the call that made the metric."""
        result = verdict.strictly(result, self.options.strict if self.gates else ())
        return dataclasses.replace(result, where=where) if result.failed else result

    def absent(
        self,
        test: str,
        metrics: Collection[Metric],
        unknown: Mapping[tuple[str, str | None], str],
        lost: str = "",
        uninstalled: Mapping[str, str] = MappingProxyType({}),
    ) -> list[Result]:
        """The results of recorded metrics that a test did not make. It came to its end, or to what `lost` says.

        `unknown` says of metrics, by id and target, why their instrument could not tell them. `uninstalled` says of
        targets what is not installed. Their metrics fail, but in a save or with --perf-allow-missing.
        """
        if not self.gates:
            return []
        ids = {(metric.id, metric.target) for metric in metrics}
        required = not (self.options.save or self.options.allow_missing)
        results = []
        for id, entry, target in self._recorded(self.key(test)):
            if (id, target) not in ids:
                absent = uninstalled.get(target or "") or self._not_installed(target)
                why = absent or unknown.get((id, target)) or lost or self._why_not_here(entry, target)
                results.append(judge_absent(test, id, entry, target, why, fails=bool(absent) and required))
        return [result for result in results if not (self.options.save and result.verdict == Verdict.MISSING)]

    def gone(self, collected: CollectedTests) -> list[Result]:
        """The results of recorded metrics whose tests are gone, or passed unmeasured.

        Metrics that cannot be made here are left out: their tests may be there on another machine.
        """
        if not self.gates or self.options.save:
            return []
        keys = {key for file in self._known_files() for key in self._gone_tests(collected, file.metrics)}
        return [
            judge_absent(test_of(key), id, entry, target, "")
            for key in sorted(keys)
            for id, entry, target in self._recorded(key)
            if not (self._not_installed(target) or self._why_not_here(entry, target))
        ]

    def _recorded(self, key: str) -> Iterator[tuple[str, Entry, str | None]]:
        """What gates of the recorded metrics of a test, and may come from this session: id, entry and target."""
        for file in self._known_files():
            target = None if file.device == self.device else file.device
            for id, entry in file.metrics.get(key, {}).items():
                # What was measured on a target cannot be made here.
                if entry.gates and (target is None or entry.provenance == "compiled"):
                    yield id, entry, target

    def _not_installed(self, target: str | None) -> str:
        """What of the compiler for a target is not installed, and the command that installs it."""
        if target is None:
            return ""
        from perfsuite.measure.targets import targets  # most baselines are of the present device
        from perfsuite.measure.targets.target_available import TargetUnavailable, check_available

        try:
            check_available(targets.target(target).platform)
        except (ValueError, TargetUnavailable) as error:
            return str(error)
        return ""

    def _why_not_here(self, entry: Entry, target: str | None) -> str:
        """Why a metric could not be compared if it were there, though its test is as it was; empty where it could."""
        now, then = self.environment_of(target), entry.environment
        if then is not None and then.process_count != now.process_count:
            return f"process count differs ({then.process_count}, now {now.process_count})"
        return incomparable(entry.kind, entry.unit, then, now) or ""

    def _known_files(self) -> list[Baselines]:
        """The baselines of all devices; of several processes together, those that they share.

        The file of another device may be damaged: that is left to who uses it.
        """
        if not self._shared:
            for path in baseline_files(self.options.baselines):
                with contextlib.suppress(BaselineError):
                    self.baselines_of(path.stem)
        return [self._files[device] for device in sorted(self._files)]

    def _gone_tests(self, collected: CollectedTests, metrics: Iterable[str]) -> set[str]:
        """The recorded tests that are gone, with their file or without it, or that pass without `perf`."""
        keys = {self.key(test) for test in collected.tests}
        of_this_size = {key for key in metrics if key == self.key(test_of(key))}
        absent = {key for key in of_this_size - keys if collected.has_whole(key.partition("::")[0])}
        plain = of_this_size & {self.key(test) for test in collected.without_perf}
        return plain | {key for key in absent if not self._is_of_another_target(collected, test_of(key))}

    def _is_of_another_target(self, collected: CollectedTests, test: str) -> bool:
        """Whether a test was not collected because this session compiles for other targets, or for none."""
        function, parameters = split_parameters(test)
        if function not in collected.of_targets:
            return False
        ids = "|".join(map(re.escape, self.options.targets or (HERE,)))
        return not re.search(rf"(?<![a-z0-9])(?:{ids})(?![a-z0-9])", parameters)

    def save(
        self, records: Collection[TestRecord], collected: CollectedTests
    ) -> tuple[list[SaveResult], list[BaselineError]]:
        """Record the metrics of the tests that passed. Returns the result of each file, and the errors.

        Written are the present device's file, and those of targets that this run made metrics for, or whose tests ran
        and no longer make them.
        """
        passed = [record for record in records if record.passed]
        ran = {self.key(record.test) for record in passed}
        how: dict[str, Any] = {"revision": self._revision()}
        saved, errors = [], []
        for device in (self.device, *self._target_files(records, collected)):
            new = self._new(device, passed)
            try:
                gone = self._gone_tests(collected, self.baselines_of(device).metrics)
                if device == self.device:
                    # Its compiled metrics come from here too, if it is a target.
                    how |= {"trim": ran, "gone": gone, "provenances": ("measured", "compiled")}
                else:
                    # A test that this machine does not know may exist where there is such a device, so only what was
                    # compiled goes.
                    how |= {"trim": ran | gone, "gone": (), "provenances": ("compiled",)}
                saved.append(save(self.path_of(device), new, **how))
            except BaselineError as error:
                errors.append(error)
        # Of files that are not there and have nothing to hold there is nothing to say.
        return [result for result in saved if result.changes or result.untouched] or saved[:1], errors

    def reaches(self, records: Iterable[TestRecord], saved: Iterable[SaveResult]) -> list[Reach]:
        """What the gates of the saved ratios and times can see, the least first."""
        entries = {(file.path.stem, each.test, each.id): each.new for file in saved for each in file.changes}
        reaches = []
        for record in records:
            for metric in record.metrics if entries else ():
                entry = entries.get((metric.target or self.device, self.key(record.test), metric.id))
                if entry is not None and metric.kind == entry.kind and metric.kind in verdict.SAMPLED:
                    tolerance = record.tolerances.get(metric.title, verdict.TOLERANCES[metric.kind])
                    reaches.append(verdict.reach_of(record.test, metric, entry, tolerance))
        return sorted(filter(None, reaches), key=lambda each: -each.share)

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
            entries = new.setdefault(self.key(record.test), {})
            metrics = [metric for metric in record.metrics if self._is_of(device, metric)]
            absent = {
                result.metric.id
                for result in record.results
                if result.incomparable and result.source == "baseline" and self._is_of(device, result.metric)
            }.difference(metric.id for metric in metrics)
            if absent:  # what cannot be made here stays as it is, and the information beside it
                old = self.baselines_of(device).metrics.get(self.key(record.test), {})
                entries |= {id: entry for id, entry in old.items() if id in absent or entry.kind == "info"}
            # What was measured comes last, and takes the place of what was compiled under the same id.
            for metric in sorted(metrics, key=lambda metric: metric.target is None):
                provenance: baseline.Provenance = "compiled" if metric.target else "measured"
                packages = record.packages + (tuple(OF_INSTRUCTIONS) if metric.unit == INSTRUCTIONS else ())
                environment = with_packages(self.environment_of(metric.target), packages)
                entries[metric.id] = baseline.entry_of(metric, environment, provenance)
        return {test: entries for test, entries in new.items() if entries}

    def _is_of(self, device: str, metric: Metric) -> bool:
        return (metric.target or self.device) == device

    def _target_files(self, records: Collection[TestRecord], collected: CollectedTests) -> list[str]:
        """The targets of this session, and those that a test once made metrics for: names of files, without ending."""
        names = {*self.options.targets, *(metric.target for record in records for metric in record.metrics)}
        ran = {self.key(record.test) for record in records}
        for file in self._known_files():
            tests = ran | self._gone_tests(collected, file.metrics)
            entries = (entry for test in tests & file.metrics.keys() for entry in file.metrics[test].values())
            if any(entry.provenance == "compiled" for entry in entries):
                names.add(file.device)
        return sorted(name for name in names - {self.device} if name)


def test_of(key: str) -> str:
    """The inverse of `Judge.key`. A test's parameters may hold the same words as the end of a key."""
    for size in SIZES:
        key = key.removesuffix(f"{_SIZE}{size}")
    return key


def split_parameters(test: str) -> tuple[str, str]:
    """A test's id without its parameters, and the parameters: ("test_a.py::test_step", "tpu-v5e]")."""
    file, colons, name = test.partition("::")
    function, _, parameters = name.partition("[")
    return f"{file}{colons}{function}", parameters
