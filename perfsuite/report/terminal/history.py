"""The history of baselines on a terminal: each metric that moved with its course, then commit by commit."""

import math
from collections.abc import Sequence

from perfsuite.gate.baseline import Entry
from perfsuite.history.following import CommitSteps, Followed, Following
from perfsuite.history.git import Commit
from perfsuite.history.source import title_of
from perfsuite.history.steps import By, Step
from perfsuite.measure.words import number, plural
from perfsuite.report.terminal.baselines import Paint, aligned, clipped, environment_line, percent, plain

BLOCKS = "▁▂▃▄▅▆▇█"
LETTERS = "_.,-~=*#"
"""Instead of blocks, where the output cannot write them."""

_WIDEST = 40
_MARKS: dict[By, str] = {"gate": "*", "drift": "~"}
_MEANING: dict[By, str] = {
    "gate": "* one save against another, by the gate's rule: there are too few for a change point",
    "drift": "~ little by little, around this commit",
}
_MOST_NAMED = 3


def history_lines(following: Following, most: int, paint: Paint = plain, levels: str = BLOCKS) -> list[str]:
    """The header, `most` metrics of those that moved, those first that moved most, and the commits they moved in."""
    history, moved = following.history, following.moved
    lines = [paint(_head(following), "bold"), *_notes(following, paint)]
    if not moved:
        return [*lines, *_last(following)]
    lines += ["", *_metrics(following, moved[:most], paint, levels)]
    if len(moved) > most:
        lines.append(f"  and {len(moved) - most} more that moved less: --metrics {len(moved)} shows them all")
    lines += ["", paint("commits that metrics moved in, the newest first", "bold")]
    for each in following.commits:
        lines += _commit(each, paint)
    lines += _last(following)
    used = {largest(each).by for each in moved[:most]}
    lines += [meaning for by, meaning in _MEANING.items() if by in used]
    if any(not version.commit.id for version in history.versions):
        lines.append("not committed: what the file holds in the working tree now")
    if any(len(each.steps) > 1 for each in moved[:most]):
        lines.append("(+1): it moved once more, by less")
    return lines


def sparkline(entries: Sequence[Entry | None], levels: str = BLOCKS, widest: int = _WIDEST) -> str:
    """A block for each version, from the smallest value to the largest; a space where the metric was not on file.

    Of more than `widest` versions, the last of each group of neighbours stands for the group.
    """
    if len(entries) > widest:
        size = math.ceil(len(entries) / widest)
        groups = [entries[max(end - size, 0) : end] for end in range(len(entries), 0, -size)][::-1]
        entries = [next((entry for entry in reversed(group) if entry is not None), None) for group in groups]
    values = [entry.value for entry in entries if entry is not None]
    low, high = min(values), max(values)
    # Each is divided before they are subtracted: a difference of two floats may be more than a float holds.
    width = high / 2 - low / 2
    return "".join(
        " "
        if entry is None
        else levels[min(int((entry.value / 2 - low / 2) / width * len(levels)), len(levels) - 1)]
        if width
        else levels[len(levels) // 2 - 1]
        for entry in entries
    )


def span(following: Following) -> str:
    """`9 commits, 38c6fc7 (2026-11-20) to acd4def (2026-11-21)`."""
    commits = [version.commit for version in following.history.versions]
    ends = f"{_short(commits[0])} to {_short(commits[-1])}" if len(commits) > 1 else _short(commits[0])
    return f"{plural(len(commits), 'version')}, {ends}"


def where_from(each: CommitSteps) -> str:
    """Where the cause is to be looked for: `within the 9 commits since 1491365`; empty for the commit itself."""
    if each.since is None or each.commits < 2:
        return ""
    return f"within the {each.commits} commits since {each.since.short}"


def _short(commit: Commit) -> str:
    return f"{commit.short} ({commit.day})" if commit.day else commit.short


def _head(following: Following) -> str:
    if not following.history.versions:
        return f"{following.history.path}: no version of it can be read"
    moved, all_of_them = len(following.moved), len(following.metrics)
    return f"{following.history.path}: {span(following)}; {moved:,} of {plural(all_of_them, 'metric')} moved"


def _notes(following: Following, paint: Paint) -> list[str]:
    history = following.history
    lines = [paint(f"  skipped {title_of(each.commit)}: {each.why}", "yellow") for each in history.skipped]
    lines += [paint(f"  {note}", "yellow") for note in history.notes]
    for version, changes in following.versions:
        lines.append(f"  {_short(history.versions[version].commit)}: {', '.join(changes)}")
    for version, why, count in following.breaks:
        where = _short(history.versions[version].commit)
        line = f"  {where}: {plural(count, 'metric')} not comparable with what they were before: {clipped(why, 140)}"
        lines.append(paint(line, "yellow"))
    if not following.versions and history.versions:
        environments = history.versions[-1].baselines.environments.values()
        lines += [f"  the same versions all along: {environment_line(each)}" for each in list(environments)[:1]]
    if len(history.versions) == 1:
        lines.append("  one version only: there is nothing to follow before a second save is committed")
    return lines


def _last(following: Following) -> list[str]:
    if not following.left_out:
        return []
    return [
        f"{plural(following.left_out, 'metric')} of other kinds left out: --kind info follows those that never gate"
    ]


def _metrics(following: Following, moved: Sequence[Followed], paint: Paint, levels: str) -> list[str]:
    columns = ("metric", "moved", "change", "at", "course", "test")
    head, *body = aligned([columns, *(_row(following, each, levels) for each in moved)])
    lines = [paint(head, "bold")]
    lines += [paint(line, "red" if largest(each).worse else "green") for each, line in zip(moved, body, strict=True)]
    return lines


def _row(following: Following, each: Followed, levels: str) -> tuple[str, ...]:
    step = largest(each)
    others = len(each.steps) - 1
    how = _MARKS.get(step.by, "") + (f" (+{others})" if others else "")
    return (
        f"  {clipped(each.series.name)}",
        f"{number(step.before)} -> {number(step.after)} {step.entry.unit}",
        percent(step.change),
        f"{_commit_of(following, step.version).short}{how}",
        sparkline(each.series.entries, levels),
        clipped(each.series.test, 90),
    )


def largest(each: Followed) -> Step:
    """The step by which a metric that moved has moved most."""
    return max(each.steps, key=lambda step: step.amount)


def _commit_of(following: Following, version: int) -> Commit:
    return following.history.versions[version].commit


def _commit(each: CommitSteps, paint: Paint) -> list[str]:
    better = len(each.steps) - each.worse
    counts = [paint(f"{each.worse} worse", "red")] * bool(each.worse) + [paint(f"{better} better", "green")] * bool(
        better
    )
    about = " ".join(filter(None, (each.commit.short, each.commit.day, each.commit.author)))
    lines = [f"  {about}: {', '.join(counts)}{f', {where_from(each)}' if where_from(each) else ''}"]
    if each.commit.subject:
        lines.append(f"    {clipped(each.commit.subject, 110)}")
    lines += [f"    {change}, with {plural(count, 'metric')} that moved" for change, count in each.versions]
    tests: dict[str, int] = {}
    for step in each.steps:
        tests[step.test] = tests.get(step.test, 0) + 1
    named = [f"{test.rpartition('/')[2]} ({count})" for test, count in list(tests.items())[:_MOST_NAMED]]
    more = f" and {len(tests) - _MOST_NAMED} more" if len(tests) > _MOST_NAMED else ""
    return [*lines, f"    {', '.join(named)}{more}"]
