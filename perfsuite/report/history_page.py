"""The history of baselines as a page: each metric that moved drawn over the commits, with the versions marked."""

import contextlib
import dataclasses
import os
import secrets
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from perfsuite.gate.baseline import Entry
from perfsuite.history.following import CommitSteps, Followed, Following, follow
from perfsuite.history.reading import HistoryError, read_history
from perfsuite.history.source import baseline_files, title_of
from perfsuite.history.steps import By, Step
from perfsuite.measure.words import number, plural
from perfsuite.report.terminal.baselines import environment_line, percent
from perfsuite.report.terminal.history import largest, span, where_from
from perfsuite.report.terminal.terminal import relative

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAGE = "history.html"
DRAWN = 20
"""How many metrics are drawn of each file."""

FOUND_BY: dict[By, str] = {"gate": "one save against another", "drift": "little by little"}

_FIXED_SPACE = "\N{NO-BREAK SPACE}"
_MOST_TICKS = 5
_MOST_MARKS = 4
"""New versions that are named in a picture; of more, only the lines are drawn."""

_LOGARITHMIC = 20
"""From which ratio of the largest value to the smallest on the axis is logarithmic."""


class PageError(Exception):
    """The page cannot be made or written: the message says why, and what to do."""


@dataclasses.dataclass(frozen=True)
class _Picture:
    drawn: Markup
    name: str
    test: str
    lines: tuple[tuple[str, str], ...]
    """What is said beside it: (class of the style sheet, text)."""


@dataclasses.dataclass(frozen=True)
class _Row:
    followed: Followed
    step: Step
    commit: str
    day: str
    how: str


@dataclasses.dataclass(frozen=True)
class _File:
    anchor: str
    following: Following
    span: str
    notes: tuple[str, ...]
    environment: str
    versions: tuple[tuple[str, str], ...]
    pictures: tuple[_Picture, ...]
    rows: tuple[_Row, ...]
    commits: tuple[tuple[CommitSteps, str], ...]


def history_page(followings: Sequence[Following], most: int = DRAWN) -> str:
    """The page, in which the `most` metrics of each file that moved most are drawn. Needs jinja2 and matplotlib.

    Raises `PageError` where they are not installed.
    """
    try:
        from perfsuite.report.page import render
    except ImportError as error:
        raise PageError(f'{error.name} is not installed: pip install "perfsuite[report]"') from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the drawing library, in a session that makes errors of them
        files = [_file(following, f"f{place}", most) for place, following in enumerate(followings, 1)]
        return render("history.html", files=files, moved=sum(len(each.rows) for each in files), percent_of=percent)


def write_history(followings: Sequence[Following], path: Path, most: int = DRAWN) -> None:
    """Write the page, whole or not at all. Raises `PageError`."""
    content = history_page(followings, most).encode(errors="replace")
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        try:
            beside.write_bytes(content)
            os.replace(beside, path)
        except BaseException:
            with contextlib.suppress(OSError):
                beside.unlink()
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise PageError(f"{path} cannot be written ({reason}): make its folder writable, or choose another") from None


def history_beside(
    report: Path, baselines: Path, root: Path | None = None, most: int = DRAWN
) -> tuple[Path | None, str]:
    """Write `history.html` into the folder of a report: (the page, what there is to say of it), for a session's end.

    Files are named as they are seen from `root`. Without a page the text says why: no repository, no baseline file,
    nothing committed, or an extra that is missing. Never raises for those.
    """
    followings, problems = [], []
    for path in baseline_files(baselines):
        try:
            following = follow(read_history(path))
        except HistoryError as error:
            problems.append(str(error))
        except ImportError as error:
            return None, f'no history: {error.name} is not installed: pip install "perfsuite[report]"'
        else:
            name = str(path) if root is None else relative(path, root)
            followings.append(dataclasses.replace(following, history=dataclasses.replace(following.history, path=name)))
    if not followings:
        return None, f"no history: {problems[0] if problems else f'no baseline file in {baselines}'}"
    try:
        write_history(followings, report / PAGE, most)
    except PageError as error:
        return None, f"no history: {error}"
    moved = sum(len(following.moved) for following in followings)
    files = plural(len(followings), "baseline file")
    return report / PAGE, f"{plural(moved, 'metric')} moved in the history of {files}"


def _file(following: Following, anchor: str, most: int) -> _File:
    history = following.history
    moved = following.moved
    notes = [f"skipped {title_of(each.commit)}: {each.why}" for each in history.skipped] + list(history.notes)
    if len(history.versions) == 1:
        notes.append("one version only: there is nothing to follow before a second save is committed")
    for version, why, count in following.breaks:
        commit = title_of(history.versions[version].commit)
        notes.append(f"{commit}: {plural(count, 'metric')} not comparable with what they were before: {why}")
    environments = list(history.versions[-1].baselines.environments.values()) if history.versions else []
    return _File(
        anchor,
        following,
        span(following) if history.versions else "no version of it can be read",
        tuple(notes),
        environment_line(environments[0]) if environments else "",
        tuple((title_of(history.versions[at].commit), ", ".join(changes)) for at, changes in following.versions),
        tuple(_picture(following, each) for each in moved[:most]),
        tuple(_row(following, each) for each in moved),
        tuple((each, where_from(each)) for each in following.commits),
    )


def _row(following: Following, each: Followed) -> _Row:
    step = largest(each)
    commit = following.history.versions[step.version].commit
    return _Row(each, step, commit.short, commit.day, FOUND_BY.get(step.by, step.by))


def _picture(following: Following, each: Followed) -> _Picture:
    lines = [line for step in each.steps[::-1] for line in _said(following, step)]
    for of_break in each.breaks:
        commit = following.history.versions[of_break.version].commit
        lines.append(("inconclusive", f"not comparable before {commit.short}: {of_break.why}"))
    return _Picture(_course(following, each), each.series.name, each.series.test, tuple(lines))


def _said(following: Following, step: Step) -> list[tuple[str, str]]:
    commit = following.history.versions[step.version].commit
    values = f"{number(step.before)} \N{RIGHTWARDS ARROW} {number(step.after)} {step.entry.unit}"
    lines = [
        ("fail" if step.worse else "improved", f"{values}, {percent(step.change).replace(' ', _FIXED_SPACE)}"),
        ("", f"at {title_of(commit)}" if commit.id else "not committed yet"),
    ]
    since = [where_from(each) for each in following.commits if each.commit == commit]
    lines += [("faint", text) for text in since if text]
    if step.versions:
        lines.append(("", f"with it: {', '.join(step.versions)}"))
    if step.by in FOUND_BY:
        lines.append(("faint", FOUND_BY[step.by]))
    return lines


def _course(following: Following, each: Followed) -> Markup:
    """The values over the commits, intervals where there are any, the levels before and after each step."""
    from matplotlib.ticker import FuncFormatter

    from perfsuite.report.pictures import ACCENT, FAIL, FAINT, GOOD, INK, WARN, blank, plain, quiet, svg, themed

    entries = each.series.entries
    with themed():
        metric = blank()
        axes = metric.subplots()
        at = [place for place, entry in enumerate(entries) if entry is not None]
        known = [entry for entry in entries if entry is not None]
        axes.plot(at, [entry.value for entry in known], color=ACCENT, alpha=0.5, drawstyle="steps-post")
        axes.plot(at, [entry.value for entry in known], "o", color=ACCENT, markersize=3 if len(at) < 60 else 1.5)
        for place, entry in zip(at, known, strict=True):
            if entry.interval is not None:
                axes.vlines(place, entry.interval.low, entry.interval.high, color=ACCENT, linewidth=1, alpha=0.6)
        for step in each.steps:
            axes.axvline(step.version - 0.5, color=FAIL if step.worse else GOOD, linewidth=1.2)
        for of_break in each.breaks:
            axes.axvline(of_break.version - 0.5, color=WARN, linewidth=1.2, linestyle=(0, (5, 3)))
        for version, _ in each.marks:
            axes.axvline(version, color=FAINT, linewidth=1, linestyle=(0, (1, 2)))
        for row, (version, changes) in enumerate(each.marks if len(each.marks) <= _MOST_MARKS else ()):
            _named(axes, row, version, changes, INK, left=version > len(entries) / 2)
        if _spread(known) > _LOGARITHMIC:
            axes.set_yscale("log")
        axes.set_ylabel(plain(known[-1].unit, 24))
        axes.set_xlim(-0.6, len(entries) - 0.4)
        places = _ticks(each, len(entries))
        quiet(axes)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
        axes.set_xticks(places, [following.history.versions[place].commit.short for place in places])
        label = f"{plain(each.series.name)} over {plural(len(entries), 'version')}"
        return svg(metric, label)


def _named(axes: "Axes", row: int, version: int, changes: Sequence[str], color: str, left: bool) -> None:
    """The new versions at the top of their line, each in a row of its own: the lines may lie close."""
    from perfsuite.report.pictures import plain

    shown = [f"{change.split()[0]} {change.split()[-1]}" for change in changes if not change.startswith("jaxlib")]
    axes.annotate(
        plain(", ".join(shown), 60),
        (version, 1),
        xycoords=("data", "axes fraction"),
        xytext=(2 if left else -2, 2 + 10 * row),
        textcoords="offset points",
        ha="right" if left else "left",
        va="bottom",
        fontsize=8,
        color=color,
    )


def _ticks(each: Followed, count: int) -> list[int]:
    """The first, the last, and those of the largest steps that leave room for a hash."""
    places = [0] if count == 1 else [0, count - 1]
    room = max(1, count / _MOST_TICKS)
    for step in sorted(each.steps, key=lambda step: -step.amount):
        if all(abs(step.version - place) >= room for place in places):
            places.append(step.version)
    return sorted(places)


def _spread(entries: Sequence[Entry]) -> float:
    values = [entry.value for entry in entries]
    return max(values) / min(values) if min(values) > 0 else 0.0
