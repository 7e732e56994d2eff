"""`report.html`: one page with everything that a report has, and pictures of what people would rather look at."""

import dataclasses
from collections.abc import Iterable, Sequence

from markupsafe import Markup

from perfsuite.measure.words import number
from perfsuite.report import drawings
from perfsuite.report.model import VERDICTS, Report, Reported, Row, Test
from perfsuite.report.page import render
from perfsuite.report.variants import Variants, variants_of, worse
from perfsuite.session.plots import Distribution, Line, ProgramRecord

_EXPLAINED = ("inconclusive", "not comparable", "improved")
"""Verdicts whose reasons are listed."""

_MOST_PARTS = 12
_MOST_DOTS = 24


@dataclasses.dataclass(frozen=True)
class _Part:
    name: str
    then: int | None
    now: int | None
    place: str


@dataclasses.dataclass(frozen=True)
class _Picture:
    drawn: Markup
    title: str
    lines: tuple[str, ...]
    """What it shows, in words and numbers."""


@dataclasses.dataclass(frozen=True)
class _Program:
    record: ProgramRecord
    facts: tuple[tuple[str, Row], ...]


@dataclasses.dataclass(frozen=True)
class _Section:
    """One test, with the anchor that leads to it."""

    test: Test
    anchor: str
    pictures: tuple[_Picture, ...]
    programs: tuple[_Program, ...]
    metrics: tuple[Row, ...]
    """Those of no program."""


@dataclasses.dataclass(frozen=True)
class _Table:
    variants: Variants
    anchors: tuple[str, ...]
    pictures: tuple[_Picture, ...]

    @property
    def upright(self) -> bool:
        """Whether the variants are the rows: the more numerous are."""
        return len(self.variants.tests) >= len(self.variants.metrics)


def html(report: Report, history: str = "") -> str:
    """The page. `history` is the address of the baselines' history, if there is one."""
    anchors = {test.id: f"t{number}" for number, test in enumerate(report.tests, 1)}
    metrics = sorted(report.metrics, key=lambda pair: VERDICTS.index(pair[1].verdict))
    return render(
        "report.html",
        report=report,
        history=history,
        anchors=anchors,
        metrics=metrics,
        verdicts=[(verdict, count) for verdict, count in report.counts.items()],
        explained={
            verdict: [(test, each) for test, each in report.metrics if each.verdict == verdict and each.reason]
            for verdict in _EXPLAINED
        },
        functions=_by_function([_section(test, anchors[test.id]) for test in report.tests]),
        tables=[_table(each, anchors) for each in variants_of(report.tests)],
        traces=[(test, trace) for test in report.tests for trace in test.traces],
        documents=_by_source(report.reported),
        slowdowns=sorted({size for row in report.calibration for size, _, _ in row.caught}),
        parts_of=_changed_parts,
    )


def _section(test: Test, anchor: str) -> _Section:
    by_title: dict[str, Row] = {}
    for metric in test.metrics:
        by_title[metric.title] = worse(by_title.get(metric.title), metric)
    of_programs = {title for program in test.programs for title in program.titles}
    return _Section(
        test,
        anchor,
        tuple(
            [_of_distribution(made, test.metrics) for made in test.distributions if made.ratios]
            + [_of_line(made, by_title) for made in test.lines]
        ),
        tuple(
            _Program(
                record,
                tuple(
                    (by_title[title].name.removeprefix(f"{record.label} "), by_title[title])
                    for title in record.titles
                    if title in by_title
                ),
            )
            for record in test.programs
        ),
        tuple(metric for metric in test.metrics if metric.title not in of_programs or metric.source == "budget"),
    )


def _by_function(sections: Iterable[_Section]) -> dict[str, list[_Section]]:
    grouped: dict[str, list[_Section]] = {}
    for section in sections:
        grouped.setdefault(section.test.function, []).append(section)
    return grouped


def _of_distribution(made: Distribution, metrics: Sequence[Row]) -> _Picture:
    gates = [metric for metric in metrics if metric.title == made.title]
    limits = list(dict.fromkeys(gate.limit for gate in gates if gate.limit is not None))
    baseline = next((gate.baseline for gate in gates if gate.baseline is not None), None)
    lines = [
        f"{made.candidate}: median {number(made.candidate_median_us)} us",
        f"{made.reference}: median {number(made.reference_median_us)} us",
        f"{number(made.pairs)} pairs" + (f" in {made.processes} processes" if made.processes > 1 else ""),
    ]
    drawn = [("limit", "dashed", limit) for limit in limits]
    drawn += [] if baseline is None else [("baseline", "dotted", baseline)]
    for what, how, value in drawn:
        lines.append(f"{what} ({how if drawings.shown(value, made) else 'off the picture'}): {number(value)}")
    lines += [made.unsettled] if made.unsettled else []
    return _Picture(drawings.distribution(made, limits, baseline), made.title, tuple(lines))


def _of_line(made: Line, by_title: dict[str, Row]) -> _Picture:
    slope = by_title.get(made.title)
    intercept = by_title.get(f"{made.title.removesuffix(' per unit')} intercept")
    before = [each.baseline if each else None for each in (slope, intercept)]
    lines = [
        f"{number(made.per_unit)} {made.unit} a unit, and {number(made.intercept)} {made.unit}",
        f"R\N{SUPERSCRIPT TWO} {made.r_squared:.4f}, {len(made.units)} sizes"
        + (f", {made.rounds} rounds" if made.rounds > 1 else ""),
    ]
    lines += [f"baseline (dotted): {number(before[0])} {made.unit} a unit"] if None not in before else []  # type: ignore[arg-type]
    return _Picture(drawings.line(made, *before), made.title, tuple(lines))


def _table(variants: Variants, anchors: dict[str, str]) -> _Table:
    pictures = []
    for row in variants.metrics:
        named = [(name, cell) for name, cell in zip(variants.names, row.cells, strict=True) if cell is not None]
        if row.kind in ("ratio", "time") and 3 <= len(named) <= _MOST_DOTS:
            pictures.append(_Picture(drawings.dots(row.name, named), row.name, ("tick: the baseline",)))
    return _Table(variants, tuple(anchors[test.id] for test in variants.tests), tuple(pictures))


def _changed_parts(metric: Row) -> list[_Part]:
    """The parts that are not what they were, those first that changed most."""
    now, then = metric.detail or {}, metric.baseline_detail or {}
    if not now or not then:
        return []
    names = [name for name in {**now, **then} if now.get(name) != then.get(name)]
    names.sort(key=lambda name: -abs(now.get(name, 0) - then.get(name, 0)))
    places = metric.places or {}
    return [_Part(name, then.get(name), now.get(name), places.get(name, "")) for name in names[:_MOST_PARTS]]


def _by_source(reported: Iterable[Reported]) -> dict[tuple[str, str], list[Reported]]:
    grouped: dict[tuple[str, str], list[Reported]] = {}
    for each in reported:
        grouped.setdefault((each.device, each.source), []).append(each)
    return grouped
