"""`report.html`: one page with everything in a report, and pictures of the comparisons, the lines and the variants."""

import dataclasses
from collections.abc import Sequence

from perfsuite.measure.words import number, plural
from perfsuite.report import drawings, text
from perfsuite.report.model import VERDICTS, Recorded, Report, Row, Test
from perfsuite.report.page import render
from perfsuite.report.pictures import Picture
from perfsuite.report.variants import Variants, variants_of, worse
from perfsuite.session.plots import Distribution, FittedLine, ProgramRecord

_EXPLAINED = ("inconclusive", "not comparable", "improved")
"""The page lists the reasons of these verdicts."""

_MOST_PARTS = 12
_MOST_DOTS = 24


@dataclasses.dataclass(frozen=True)
class _Section:
    """One test: its pictures, its programs with (name, metric) of each fact, and the metrics of no program."""

    test: Test
    anchor: str
    pictures: tuple[Picture, ...]
    programs: tuple[tuple[ProgramRecord, list[tuple[str, Row]]], ...]
    metrics: tuple[Row, ...]


def html(report: Report) -> str:
    """The page."""
    anchors = {test.id: f"t{place}" for place, test in enumerate(report.tests, 1)}
    functions: dict[str, list[_Section]] = {}
    for test in report.tests:
        functions.setdefault(test.function, []).append(_section(test, anchors[test.id]))
    documents: dict[tuple[str, str], list[Recorded]] = {}
    for each in report.reported:
        documents.setdefault((each.device, each.source), []).append(each)
    return render(
        "report.html",
        report=report,
        anchors=anchors,
        metrics=sorted(report.metrics, key=lambda pair: VERDICTS.index(pair[1].verdict)),
        explained={
            verdict: [(test, each) for test, each in report.metrics if each.verdict == verdict and each.reason]
            for verdict in _EXPLAINED
        },
        functions=functions,
        tables=[(each, _dots(each)) for each in variants_of(report.tests)],
        traces=[(test, trace) for test in report.tests for trace in test.traces],
        documents=documents,
        parts_of=_changed_parts,
        bounds=text.bounds,
        without_estimate=text.without_estimate,
    )


def _section(test: Test, anchor: str) -> _Section:
    by_title: dict[str, Row] = {}
    for metric in test.metrics:
        by_title[metric.title] = worse(by_title.get(metric.title), metric)
    pictures = [_ratios(each, test.metrics) for each in test.distributions if each.ratios]
    pictures += [_line(each, by_title) for each in test.lines]
    programs = []
    for program in test.programs:
        facts = [by_title[title] for title in program.titles if title in by_title]
        programs.append((program, [(fact.name.removeprefix(f"{program.label} "), fact) for fact in facts]))
    of_programs = {title for program in test.programs for title in program.titles}
    others = (metric for metric in test.metrics if metric.title not in of_programs or metric.source == "budget")
    return _Section(test, anchor, tuple(pictures), tuple(programs), tuple(others))


def _ratios(made: Distribution, metrics: Sequence[Row]) -> Picture:
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
        lines.append(f"{what} ({how if drawings.in_picture(value, made) else 'off the picture'}): {number(value)}")
    return Picture(drawings.distribution(made, limits, baseline), made.title, lines)


def _line(made: FittedLine, by_title: dict[str, Row]) -> Picture:
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
    return Picture(drawings.line(made, *before), made.title, lines)


def _dots(variants: Variants) -> list[Picture]:
    pictures = []
    for row in variants.metrics:
        named = [(test.parameters, cell) for test, cell in zip(variants.tests, row.cells, strict=True) if cell]
        if row.kind in ("ratio", "time") and 3 <= len(named) <= _MOST_DOTS:
            pictures.append(Picture(drawings.dots(row.name, named), row.name, ["tick: the baseline"]))
    return pictures


def _changed_parts(metric: Row) -> list[tuple[str, int | None, int | None, str]]:
    """The parts that changed: (name, then, now, place); the largest change comes first."""
    now, then, places = metric.detail or {}, metric.baseline_detail or {}, metric.places or {}
    if not now or not then:
        return []
    names = [name for name in {**now, **then} if now.get(name) != then.get(name)]
    names.sort(key=lambda name: -abs(now.get(name, 0) - then.get(name, 0)))
    return [(name, then.get(name), now.get(name), places.get(name, "")) for name in names[:_MOST_PARTS]]
