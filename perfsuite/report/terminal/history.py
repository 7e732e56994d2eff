"""The history of baselines on a terminal: each metric that moved with its course, then commit by commit."""

import collections
import math
from collections.abc import Sequence

from perfsuite.gate.baseline import Entry
from perfsuite.history.following import CommitSteps, Followed, Following
from perfsuite.measure.words import change, number, plural
from perfsuite.report.history_text import dated, history_notes, same_versions, version_span, where_to_look
from perfsuite.report.terminal.output import Paint, aligned, clipped, uncolored

BLOCKS = "▁▂▃▄▅▆▇█"
LETTERS = "_.,-~=*#"
"""Instead of blocks, where the output cannot write them."""

_WIDEST = 40
_MOST_NAMED = 3


def history_lines(following: Following, most: int, paint: Paint = uncolored, levels: str = BLOCKS) -> list[str]:
    """The header, the `most` metrics that moved most, and the commits they moved in."""
    moved = following.moved
    versions = following.history.versions
    title = f"{following.history.path}: {version_span(following)}"
    if versions:
        title += f"; {len(moved):,} of {plural(len(following.metrics), 'metric')} moved"
    lines = [paint(title, "bold"), *(paint(f"  {clipped(note, 240)}", "yellow") for note in history_notes(following))]
    lines += [f"  {dated(versions[at].commit)}: {', '.join(changes)}" for at, changes in following.versions]
    lines += [f"  {line}" for line in [same_versions(following)] if line]
    if moved:
        lines += ["", *_metrics(following, moved[:most], paint, levels)]
        if len(moved) > most:
            lines.append(f"  and {len(moved) - most} more that moved less: --metrics {len(moved)} shows them all")
        lines += ["", paint("commits in which metrics moved, the newest first", "bold")]
        for each in following.commits:
            lines += _commit(each, paint)
    if following.left_out:
        others = plural(following.left_out, "metric")
        lines.append(f"{others} of other kinds left out: --kind info shows those that are never gated")
    return lines + (_legend(following, moved[:most]) if moved else [])


def sparkline(entries: Sequence[Entry | None], levels: str = BLOCKS) -> str:
    """A block for each version, from the smallest value to the largest; a space for a version without the metric.

    Of more than `_WIDEST` versions, the last of each group of neighbours stands for the group.
    """
    if len(entries) > _WIDEST:
        size = math.ceil(len(entries) / _WIDEST)
        groups = [entries[max(end - size, 0) : end] for end in range(len(entries), 0, -size)][::-1]
        entries = [next((entry for entry in reversed(group) if entry is not None), None) for group in groups]
    values = [entry.value for entry in entries if entry is not None]
    low, high = min(values), max(values)
    # Halves, because the difference of two floats may be more than a float can hold.
    width = high / 2 - low / 2

    def level(entry: Entry | None) -> str:
        if entry is None:
            return " "
        if not width:
            return levels[len(levels) // 2 - 1]
        return levels[min(int((entry.value / 2 - low / 2) / width * len(levels)), len(levels) - 1)]

    return "".join(map(level, entries))


def _metrics(following: Following, moved: Sequence[Followed], paint: Paint, levels: str) -> list[str]:
    rows = []
    for each in moved:
        step = each.largest
        others = f" (+{len(each.steps) - 1})" if len(each.steps) > 1 else ""
        rows.append(
            (
                f"  {clipped(each.series.name)}",
                f"{number(step.before)} -> {number(step.after)} {step.entry.unit}",
                change(step.change),
                f"{following.history.versions[step.version].commit.short}{others}",
                sparkline(each.series.entries, levels),
                clipped(each.series.test, 90),
            )
        )
    head, *body = aligned([("metric", "moved", "change", "at", "course", "test"), *rows])
    lines = [paint(line, "red" if each.largest.worse else "green") for each, line in zip(moved, body, strict=True)]
    return [paint(head, "bold"), *lines]


def _commit(each: CommitSteps, paint: Paint) -> list[str]:
    commit, better = each.commit, len(each.steps) - each.worse
    parts = [paint(f"{each.worse} worse", "red")] if each.worse else []
    parts += [paint(f"{better} better", "green")] if better else []
    parts += [look] if (look := where_to_look(each)) else []
    lines = [f"  {' '.join(filter(None, (commit.short, commit.day, commit.author)))}: {', '.join(parts)}"]
    if commit.subject:
        lines.append(f"    {clipped(commit.subject, 110)}")
    lines += [f"    {changed}, with {plural(count, 'metric')} that moved" for changed, count in each.versions]
    tests = list(collections.Counter(step.test for step in each.steps).items())
    named = [f"{test.rpartition('/')[2]} ({count})" for test, count in tests[:_MOST_NAMED]]
    more = f" and {len(tests) - _MOST_NAMED} more" if len(tests) > _MOST_NAMED else ""
    return [*lines, f"    {', '.join(named)}{more}"]


def _legend(following: Following, moved: Sequence[Followed]) -> list[str]:
    lines = []
    if any(not version.commit.id for version in following.history.versions):
        lines.append("not committed: the file in the working tree")
    if any(len(each.steps) > 1 for each in moved):
        lines.append("(+1): the metric moved once more, by less")
    return lines
