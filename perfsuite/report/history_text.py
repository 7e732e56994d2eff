"""The sentences about a history of baselines, for the terminal and for the page."""

from collections.abc import Sequence

from perfsuite.gate.environment import VERSION_FIELDS, Environment
from perfsuite.git import Commit
from perfsuite.history.following import CommitSteps, Following
from perfsuite.measure.words import plural


def version_span(following: Following) -> str:
    """`9 versions, 38c6fc7 (2026-11-20) to acd4def (2026-11-21)`."""
    commits = [version.commit for version in following.history.versions]
    if not commits:
        return "no version of it can be read"
    ends = dict.fromkeys(dated(commit) for commit in (commits[0], commits[-1]))
    return f"{plural(len(commits), 'version')}, {' to '.join(ends)}"


def history_notes(following: Following) -> list[str]:
    """What a reader has to know about a history as a whole."""
    history = following.history
    skipped: dict[str, list[Commit]] = {}
    for each in history.skipped:
        skipped.setdefault(each.why, []).append(each.commit)
    notes = [f"skipped {_last_of(commits)}: {why}" for why, commits in skipped.items()] + list(history.notes)
    if len(history.versions) == 1:
        notes.append("one version only: there is nothing to follow before a second save is committed")
    for version, why, count in following.breaks:
        commit = dated(history.versions[version].commit)
        notes.append(f"{commit}: {plural(count, 'metric')} not comparable with earlier values: {why}")
    return notes


def _last_of(commits: Sequence[Commit]) -> str:
    """The newest of commits of which the same is said, and how many they are."""
    title = commits[-1].title
    return f"{plural(len(commits), 'commit')}, the last of them {title}" if commits[1:] else title


def same_versions(following: Following) -> str:
    """The environment of all versions, where the library versions did not change; else empty."""
    versions = following.history.versions
    environments = list(versions[-1].baselines.environments.values()) if versions and not following.versions else []
    return f"the same versions throughout: {environment_line(environments[0])}" if environments else ""


def where_to_look(each: CommitSteps) -> str:
    """Where the cause lies: `within the 9 commits since 1491365`; empty where it is the commit itself."""
    if each.since is None or each.commits < 2:
        return ""
    return f"within the {each.commits} commits since {each.since.short}"


def dated(commit: Commit) -> str:
    """`38c6fc7 (2026-11-20)`."""
    return f"{commit.short} ({commit.day})" if commit.day else commit.short


def environment_line(environment: Environment) -> str:
    """`8 x cpu (Xeon), python 3.11.7, jax 0.10.2, x64, XLA_FLAGS=...`."""
    parts = [f"{environment.device_count} x {environment.device_kind}"]
    if environment.processor:
        parts[0] += f" ({environment.processor})"
    parts += [f"{name} {version}" for name in VERSION_FIELDS if (version := getattr(environment, name, None))]
    if environment.x64:
        parts.append("x64")
    if environment.xla_flags:
        parts.append(f"XLA_FLAGS={environment.xla_flags}")
    return ", ".join(parts)
