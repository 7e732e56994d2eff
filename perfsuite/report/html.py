"""`report.html`: one page with everything in a report, and pictures of the comparisons and the lines.

The page is complete in itself. Its content security policy lets a browser load nothing, and run only the script whose
hash it names.
"""

import base64
import dataclasses
import hashlib
import importlib.resources
import math
import re
from collections.abc import Sequence
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from perfsuite.measure.words import number, percent, plural
from perfsuite.report import pictures, text
from perfsuite.report.model import VERDICTS, Report, Row, Test
from perfsuite.session.plots import Distribution, FittedLine, ProgramRecord

_EXPLAINED = ("inconclusive", "not comparable", "improved")
"""The page lists the reasons of these verdicts."""

_MOST_PARTS = 12

_TEMPLATES = importlib.resources.files("perfsuite.report").joinpath("templates")


@dataclasses.dataclass(frozen=True)
class _Picture:
    """A drawing with its title, and lines about it."""

    drawn: Markup
    title: str
    lines: Sequence[str]


@dataclasses.dataclass(frozen=True)
class _Section:
    """One test: its pictures, its programs with (name, metric) of each fact, and the metrics of no program."""

    test: Test
    anchor: str
    pictures: tuple[_Picture, ...]
    programs: tuple[tuple[ProgramRecord, list[tuple[str, Row]]], ...]
    metrics: tuple[Row, ...]


def html(report: Report) -> str:
    """The page. Every text of the report is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_source),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "breakable": breakable,
        "css": lambda verdict: verdict.replace(" ", "-"),
        "number": number,
        "path": quote,
        "percent": percent,
        "plural": plural,
    }
    environment.globals["infinity"] = math.inf
    script = _source("page.js")
    anchors = {test.id: f"t{place}" for place, test in enumerate(report.tests, 1)}
    return environment.get_template("report.html").render(
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=Markup(_source("style.css")),
        report=report,
        anchors=anchors,
        metrics=sorted(report.metrics, key=lambda pair: _order(pair[1])),
        explained={
            verdict: [(test, each) for test, each in report.metrics if each.verdict == verdict and each.reason]
            for verdict in _EXPLAINED
        },
        sections=[_section(test, anchors[test.id]) for test in report.tests],
        parts_of=_changed_parts,
        bounds=text.bounds,
        without_estimate=text.without_estimate,
    )


def breakable(name: str) -> Markup:
    """A test's id that may be broken between its words."""
    return Markup("<wbr>").join(re.split(r"(?<=[/_:])(?![/_:])", name))  # it escapes the parts


def _source(name: str) -> str:
    # With the line ends that the hash of the script was taken with, whatever the checkout made of them.
    return "\n".join(_TEMPLATES.joinpath(name).read_text(encoding="utf-8").splitlines()) + "\n"


def _order(metric: Row) -> int:
    return VERDICTS.index(metric.verdict)


def _section(test: Test, anchor: str) -> _Section:
    by_title: dict[str, Row] = {}
    for metric in test.metrics:
        by_title[metric.title] = min(by_title.get(metric.title, metric), metric, key=_order)
    drawn = [_ratios(each, test.metrics) for each in test.distributions if each.ratios]
    drawn += [_line(each, by_title) for each in test.lines]
    programs = []
    for program in test.programs:
        facts = [by_title[title] for title in program.titles if title in by_title]
        programs.append((program, [(fact.name.removeprefix(f"{program.label} "), fact) for fact in facts]))
    of_programs = {title for program in test.programs for title in program.titles}
    others = (metric for metric in test.metrics if metric.title not in of_programs or metric.source == "budget")
    return _Section(test, anchor, tuple(drawn), tuple(programs), tuple(others))


def _ratios(made: Distribution, metrics: Sequence[Row]) -> _Picture:
    gates = [metric for metric in metrics if metric.title == made.title]
    limits = list(dict.fromkeys(gate.limit for gate in gates if gate.limit is not None))
    baseline = next((gate.baseline for gate in gates if gate.baseline is not None), None)
    lines = [
        f"{made.candidate}: median {number(made.candidate_median_us)} us",
        f"{made.reference}: median {number(made.reference_median_us)} us",
        plural(made.pairs, "pair"),
    ]
    drawn = [("limit", "dashed", limit) for limit in limits]
    drawn += [] if baseline is None else [("baseline", "dotted", baseline)]
    for what, how, value in drawn:
        lines.append(f"{what} ({how if pictures.in_picture(value, made) else 'off the picture'}): {number(value)}")
    return _Picture(pictures.ratios(made, limits, baseline), made.title, lines)


def _line(made: FittedLine, by_title: dict[str, Row]) -> _Picture:
    rounds = f", {made.rounds} rounds" if made.rounds > 1 else ""
    lines = [
        f"{number(made.per_unit)} {made.unit} a unit, and {number(made.intercept)} {made.unit}",
        f"R\N{SUPERSCRIPT TWO} {made.r_squared:.4f}, {plural(len(made.units), 'size')}{rounds}",
    ]
    slope = by_title.get(made.title)
    intercept = by_title.get(f"{made.title.removesuffix(' per unit')} intercept")
    before = [each.baseline if each else None for each in (slope, intercept)]
    if before[0] is not None and before[1] is not None:
        lines.append(f"baseline (dotted): {number(before[0])} {made.unit} a unit")
    return _Picture(pictures.line(made, *before), made.title, lines)


def _changed_parts(metric: Row) -> list[tuple[str, int | None, int | None, str]]:
    """The parts that changed: (name, then, now, place); the largest change comes first."""
    now, then, places = metric.detail or {}, metric.baseline_detail or {}, metric.places or {}
    if not now or not then:
        return []
    names = [name for name in {**now, **then} if now.get(name) != then.get(name)]
    names.sort(key=lambda name: -abs(now.get(name, 0) - then.get(name, 0)))
    return [(name, then.get(name), now.get(name), places.get(name, "")) for name in names[:_MOST_PARTS]]
