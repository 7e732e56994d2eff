"""What became of the metrics: two baseline files compared with each other.

A `Source` is a file on disk, or `REVISION:PATH` of git. Two are compared by the gate's own rules, so that noise to a
gate is noise here: the older file stands for the baselines, the newer one for a run. No file has the tolerance that a
test sets for itself, so each metric gets the tolerance of its kind.

Nothing here prints, and nothing imports jax or NumPy.
"""

import collections
import dataclasses
import fnmatch
import os
import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import cast

from perfsuite.gate.baseline import Baselines, Entry, metric_of, name_of
from perfsuite.gate.baseline_file import BaselineError, LocatedError, baseline_files, decode, is_baselines, load
from perfsuite.gate.environment import Environment, version_changes
from perfsuite.gate.messages import relative_change
from perfsuite.gate.verdict import Result, Verdict, judge_absent, judge_baseline
from perfsuite.git import GitError, Repository
from perfsuite.measure.metric import Interval
from perfsuite.measure.words import plural


class SourceError(Exception):
    """A file or a revision cannot be read: the message names it, and says what to do."""


@dataclasses.dataclass(frozen=True)
class Source:
    """Baselines, and where they are from: `name` as the user would write it."""

    name: str
    baselines: Baselines


def on_disk(path: Path) -> Source:
    """The baselines in a file. Raises `SourceError` when it does not exist or is damaged."""
    if not path.exists():
        raise SourceError(f"{path}: no such file{_files_near(path)}")
    if path.is_dir():
        raise SourceError(f"{path} is a folder: name a file in it{_files_near(path / 'any')}")
    try:
        return Source(os.fspath(path), load(path))
    except BaselineError as error:
        raise SourceError(str(error)) from None


def at_revision(repository: Repository, revision: str, path: str) -> Source:
    """The baselines of a file in a commit. `path` is relative to the root, or to this folder if it begins with a dot.

    Raises `SourceError` when there is no such revision, no such file in it, or the file is damaged.
    """
    name = f"{revision}:{path}"
    try:
        commit = repository.commit_id(revision)
        content = repository.content(f"{commit}:{path}") if commit else None
        if content is not None:
            return Source(name, decode(content, PurePosixPath(path).stem))
    except (GitError, LocatedError) as error:
        raise SourceError(f"{name}: {error}") from None
    if commit is None:
        raise SourceError(f"{name}: git knows no revision {revision!r}")
    inside = "" if path.startswith(".") or not repository.prefix else f" (from here it may be {revision}:./{path})"
    raise SourceError(f"{name}: there was no such file in {revision!r}{inside}")


def named(text: str, default: Path | None = None) -> Source:
    """The baselines that `text` names: a file, `REVISION:PATH`, or a revision alone, which means the file `default`.

    A file that exists comes before a revision of the same name. Raises `SourceError`.
    """
    path = Path(text)
    if path.is_file():
        return on_disk(path)
    revision, colon, inside = text.partition(":")
    if colon and revision and inside:
        return at_revision(_repository(text, Path()), revision, inside)
    if not colon and default is not None and not path.exists():
        repository = _repository(text, default.parent)
        if repository.commit_id(text) is not None:
            return at_revision(repository, text, repository.prefix + default.name)
        raise SourceError(f"{text}: neither a file nor a revision that git knows{_files_near(path)}")
    return on_disk(path)


def files_at(revision: str, folder: Path) -> dict[str, Source]:
    """The baseline files of a folder in a commit, by their names. Raises `SourceError`."""
    repository = _repository(revision, folder)
    commit = repository.commit_id(revision)
    if commit is None:
        raise SourceError(f"{revision}: neither a file nor a revision that git knows")
    paths = {PurePosixPath(path).name: path for path in repository.files(commit, repository.prefix)}
    return {name: at_revision(repository, revision, path) for name, path in paths.items() if is_baselines(name)}


def select(baselines: Baselines, pattern: str | None) -> Baselines:
    """The metrics that match the pattern; all for None."""
    metrics = {
        test: {id: entry for id, entry in entries.items() if _matches(pattern, test, id, name_of(id, entry))}
        for test, entries in baselines.metrics.items()
    }
    metrics = {test: entries for test, entries in metrics.items() if entries}
    revisions = {test: each for test, each in baselines.revisions.items() if test in metrics}
    return Baselines(baselines.device, metrics, revisions)


def _matches(pattern: str | None, *names: str) -> bool:
    """Whether one of the names contains `pattern`, or matches it with `*` and `?`; ignores case."""
    if pattern is None:
        return True
    wanted = pattern.casefold()
    # First whether it contains the pattern: fnmatch reads the brackets of a test's parameters as a set of letters.
    return any(wanted in text.casefold() or fnmatch.fnmatchcase(text.casefold(), wanted) for text in names)


def _repository(text: str, folder: Path) -> Repository:
    try:
        return Repository(folder)
    except GitError as error:
        raise SourceError(f"{text}: no such file, and no revision: {error}") from None


def _files_near(path: Path) -> str:
    """For a message: the baseline files that the user may have meant."""
    near = baseline_files(path.parent) or baseline_files(Path("baselines"))
    return f"; there is {', '.join(map(str, near))}" if near else ""


def compare(old: Baselines, new: Baselines) -> list[Result]:
    """The verdict on every metric of either file: the gravest first, then by how much it changed, then by name.

    The metric is the newer one, with the value of the older one as its baseline and all versions that differ. Tests of
    `perf_target` on two devices are one test, under the name that it has on the newer one's.
    """
    if old.device != new.device:
        metrics = {}
        for test, entries in old.metrics.items():
            name = _of_target(test, old.device, new.device)
            metrics[name if name in new.metrics else test] = entries
        old = dataclasses.replace(old, metrics=metrics)
    ids = {(test, id): None for each in (old, new) for test, entries in each.metrics.items() for id in entries}
    results = [_judged(test, id, old.get(test, id), new.get(test, id)) for test, id in ids]
    return sorted(
        results, key=lambda each: (-each.verdict, -abs(relative_change(each) or 0.0), each.test, each.metric.name)
    )


def _of_target(test: str, old: str, new: str) -> str:
    """The id of a test with another target among its parameters."""
    function, bracket, parameters = test.partition("[")
    return function + bracket + re.sub(rf"(?<![a-z0-9]){re.escape(old)}(?![a-z0-9])", new, parameters)


def version_lines(results: Iterable[Result]) -> list[str]:
    """The versions that differ, with the number of metrics: `jax 0.10.2 -> 0.11.0 (of 120 metrics)`."""
    counts = collections.Counter(version for each in results for version in each.versions)
    return [f"{version} (of {plural(count, 'metric')})" for version, count in counts.most_common()]


def _judged(test: str, id: str, old: Entry | None, new: Entry | None) -> Result:
    if new is None:
        assert old is not None
        return judge_absent(test, id, old, None, "")
    metric = metric_of(id, new)
    if old is None:
        return Result(test, metric, Verdict.NEW)
    # What two files say is compared as they say it, also where one has no interval.
    exact = dataclasses.replace(metric, interval=new.interval or Interval(new.value, new.value))
    # A compiled metric may have no environment, and the gate of such a metric does not read it.
    result = judge_baseline(test, exact, old, now=cast(Environment, new.environment))
    verdict = result.verdict
    if "reported" in (old.provenance, new.provenance):
        verdict = Verdict.INFO
    elif verdict == Verdict.INCONCLUSIVE and old.value == new.value:
        verdict = Verdict.PASS
    versions = tuple(version_changes(old.environment, new.environment))
    return dataclasses.replace(result, metric=metric, verdict=verdict, versions=versions)
