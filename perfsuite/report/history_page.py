"""The history of baselines as a page: each metric that moved, drawn over the commits, with the versions marked."""

import dataclasses
import warnings
from collections.abc import Sequence
from pathlib import Path

from perfsuite.history import HistoryError
from perfsuite.history.following import Followed, Following, follow
from perfsuite.history.reading import read_history
from perfsuite.history.source import baseline_files
from perfsuite.history.steps import Step
from perfsuite.measure.io import relative, write_atomically
from perfsuite.measure.words import change, number, plural
from perfsuite.report.drawings import course
from perfsuite.report.history_text import history_notes, same_versions, version_span, where_to_look
from perfsuite.report.page import render
from perfsuite.report.pictures import Picture

PAGE = "history.html"
DRAWN = 20
"""How many metrics are drawn of each file."""

_FOR_THE_TEMPLATE = {
    "change_of": change,
    "notes_of": history_notes,
    "same_versions": same_versions,
    "span_of": version_span,
    "where_to_look": where_to_look,
}


class PageError(Exception):
    """The page cannot be written: the message says why, and what to do."""


def history_page(followings: Sequence[Following], most: int = DRAWN) -> str:
    """The page; it draws the `most` metrics of each file that moved most."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of matplotlib, in a session that turns warnings into errors
        drawn = [[_picture(each, metric) for metric in each.moved[:most]] for each in followings]
        return render("history.html", files=list(zip(followings, drawn, strict=True)), **_FOR_THE_TEMPLATE)


def write_history(followings: Sequence[Following], path: Path, most: int = DRAWN) -> None:
    """Write the page atomically. Raises `PageError`."""
    try:
        write_atomically(path, history_page(followings, most))
    except OSError as error:
        reason = error.strerror or str(error)
        raise PageError(f"{path} cannot be written ({reason}): make its folder writable, or choose another") from None


def history_beside(report: Path, baselines: Path, root: Path | None = None) -> tuple[Path | None, str]:
    """Write `history.html` into the folder of a report, at a session's end: (the page, what the terminal says of it).

    The page names files relative to `root`. Without a page the text says why: no repository, no baseline file, or
    nothing committed. Never raises for those.
    """
    followings, problems = [], []
    for path in baseline_files(baselines):
        try:
            following = follow(read_history(path))
            history = dataclasses.replace(following.history, path=relative(path, root) if root else str(path))
            followings.append(dataclasses.replace(following, history=history))
        except HistoryError as error:
            problems.append(str(error))
    if not followings:
        return None, f"no history: {problems[0] if problems else f'no baseline file in {baselines}'}"
    try:
        write_history(followings, report / PAGE)
    except PageError as error:
        return None, f"no history: {error}"
    moved = plural(sum(following.moved_count for following in followings), "metric")
    return report / PAGE, f"{moved} moved in the history of {plural(len(followings), 'baseline file')}"


def _picture(following: Following, each: Followed) -> Picture:
    lines = [line for step in each.steps[::-1] for line in _about(following, step)]
    for of_break in each.breaks:
        commit = following.history.versions[of_break.version].commit
        lines.append(("inconclusive", f"not comparable before {commit.short}: {of_break.why}"))
    return Picture(course(following, each), each.series.name, tuple(lines), each.series.test)


def _about(following: Following, step: Step) -> list[tuple[str, str]]:
    """Lines about a step: (class of the style sheet, text)."""
    commit = following.history.versions[step.version].commit
    values = f"{number(step.before)} \N{RIGHTWARDS ARROW} {number(step.after)} {step.entry.unit}"
    share = change(step.change).replace(" ", "\N{NO-BREAK SPACE}")
    lines = [
        ("fail" if step.worse else "improved", f"{values}, {share}"),
        ("", f"at {commit.title}" if commit.id else "not committed yet"),
    ]
    lines += [("faint", where_to_look(each)) for each in following.commits if each.commit == commit]
    lines.append(("", f"with it: {', '.join(step.versions)}" if step.versions else ""))
    return [(style, text) for style, text in lines if text]
