"""Baseline files for people: what is in one, and what differs between two. Every function gives lines of text."""

import collections
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import tabulate

from perfsuite.gate.baseline import Baselines, Entry
from perfsuite.gate.environment import VERSION_FIELDS, Environment
from perfsuite.history.comparing import OUTCOMES, Difference, Outcome, version_lines
from perfsuite.history.source import CALIBRATION, Source
from perfsuite.measure.words import number, plural, span
from perfsuite.report.text import growth

Style = Literal["bold", "red", "green", "yellow", "cyan", "faint"]
Paint = Callable[[str, Style], str]
"""A text in a style: what `plain` leaves as it is, and `colored` puts into a terminal's codes."""

_CODES: dict[Style, str] = {"bold": "1", "red": "31", "green": "32", "yellow": "33", "cyan": "36", "faint": "2"}
_STYLES: dict[Outcome, Style] = {
    "worse": "red", "better": "green", "unclear": "yellow", "not comparable": "yellow", "added": "cyan",
    "removed": "cyan", "info": "faint", "tolerated": "faint", "same": "faint",
}  # fmt: skip
_MEANING: dict[Outcome, str] = {
    "unclear": "noise does not tell",
    "info": "differ, and never gate",
    "tolerated": "differ by no more than the gate allows",
}
_LISTED: tuple[Outcome, ...] = ("worse", "better", "unclear", "not comparable", "added", "removed")
LONGEST_NAME = 60
_OF = "of"


def plain(text: str, style: Style) -> str:
    """The text alone."""
    return text


def colored(text: str, style: Style) -> str:
    """The text with the codes of a terminal."""
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if text else text


def shown(source: Source, selected: Baselines, paint: Paint = plain) -> list[str]:
    """The header of a file, and those of its metrics that were selected, test by test."""
    if selected.device.startswith(CALIBRATION):
        return [*_header(source, selected, paint), "", *_calibration(selected, paint)]
    return [*_header(source, selected, paint), "", *_metrics(selected, paint)]


def differences(
    old: Source, new: Source, found: Sequence[Difference], everything: bool = False, paint: Paint = plain
) -> list[str]:
    """What differs between two files: a table of each outcome that is worth one, or of all, then the number of each.

    `found` is what `comparing.compare` gives. Metrics that came or went are counted by their tests.
    """
    lines = [paint(f"{old.name} -> {new.name}", "bold")]
    if old.baselines.device != new.baselines.device:
        lines.append(
            f"different devices, {old.baselines.device} and {new.baselines.device}: counts and sizes of programs are "
            "compared, where a test has them on both; ratios and times are not comparable"
        )
    lines += [f"versions: {line}" for line in version_lines(found)]
    for outcome in OUTCOMES:
        of_outcome = [each for each in found if each.outcome == outcome]
        if not of_outcome or not (everything or outcome in _LISTED):
            continue
        table = _by_test if outcome in ("added", "removed") and not everything else _table
        lines += ["", paint(_title(outcome, len(of_outcome)), _STYLES[outcome]), *table(of_outcome)]
    return [*lines, "", counts_line(found)]


def counts_line(found: Iterable[Difference]) -> str:
    """`2 worse, 1 better, 30 the same`."""
    counts = collections.Counter(each.outcome for each in found)
    named = [_title(each, counts[each]) for each in OUTCOMES if counts[each]]
    return ", ".join(named) or "no metrics"


def percent(change: float | None) -> str:
    """`+7 %`; `x 12` from a tenfold on, `-99.9 %`; `from 0`; empty where there is none."""
    if change is None:
        return ""
    if math.isinf(change):
        return "from 0"
    if change >= 9:
        return f"x {number(change + 1)}"
    shown = float(f"{100 * change:.2g}")
    if change < 0 and shown <= -99:
        shown = float(f"{100 * change:.4g}")
    return f"{shown:+g} %"


def clipped(name: str, most: int = LONGEST_NAME) -> str:
    """A name that does not push the other columns off the screen, cut in the middle."""
    half = (most - 3) // 2
    return name if len(name) <= most else f"{name[: most - 3 - half]}...{name[-half:]}"


def environment_line(environment: Environment) -> str:
    """`8 x cpu (Xeon), python 3.11.7, jax 0.10.2, x64, XLA_FLAGS=...`."""
    host = f" ({environment.processor})" if environment.processor else ""
    versions = [
        f"{name} {version}"
        for name in VERSION_FIELDS
        if (version := getattr(environment, name, None)) not in (None, "")
    ]
    settings = (["x64"] if environment.x64 else []) + (
        [f"XLA_FLAGS={environment.xla_flags}"] if environment.xla_flags else []
    )
    return ", ".join([f"{environment.device_count} x {environment.device_kind}{host}", *versions, *settings])


def _header(source: Source, selected: Baselines, paint: Paint) -> list[str]:
    every = _entries(source.baselines)
    some = _entries(selected)
    of_all = f" of {len(every):,}" if len(some) < len(every) else ""
    tests = plural(len(selected.metrics), "test")
    head = f"{source.name}: {source.baselines.device}, {len(some):,}{of_all} metrics of {tests}"
    made = collections.Counter(entry.environment for entry in every)
    lines = [paint(head, "bold")]
    lines += [
        f"  {environment_line(environment)}: {plural(count, 'metric')}"
        for environment, count in made.most_common()
        if environment is not None
    ]
    if made[None]:
        lines.append(f"  no environment: {plural(made[None], 'metric')}")
    return lines


def _metrics(selected: Baselines, paint: Paint) -> list[str]:
    rows, tests = [], []
    for test, entries in sorted(selected.metrics.items()):
        for name, entry in sorted(entries.items()):
            tests.append(test)
            kind = f"{entry.kind}, higher is better" if entry.better == "higher" else entry.kind
            rows.append(
                (
                    f"  {clipped(name)}",
                    span(entry.value, entry.interval),
                    entry.unit,
                    kind,
                    _origin(entry),
                )
            )
    return _under_their_tests(("metric", "value", "unit", "kind", "provenance"), rows, tests, paint)


def _calibration(selected: Baselines, paint: Paint) -> list[str]:
    """A row for each workload and condition. The columns are what the names of the metrics end with."""
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for test, entries in sorted(selected.metrics.items()):
        for name, entry in sorted(entries.items()):
            workload, _, what = name.rpartition(": ")
            of = (entry.detail or {}).get(_OF)
            shown = f"{number(entry.value)} of {of}" if of is not None else f"{number(entry.value)} {entry.unit}"
            cells.setdefault((test, workload), {})[what] = shown
    columns = sorted({what for of_row in cells.values() for what in of_row}, key=_by_size)
    rows = [(f"  {workload}", *(row.get(what, "-") for what in columns)) for (_, workload), row in cells.items()]
    about = (
        "what pytest --perf-calibrate found: false alarms, and planted slowdowns caught, of so many gates; none gates"
    )
    return [about, *_under_their_tests(("workload", *columns), rows, [test for test, _ in cells], paint)]


def _by_size(column: str) -> tuple[int, float, str]:
    size = re.match(r"\+([0-9.]+) %", column)
    return (1, float(size[1]), "") if size else (0 if "alarm" in column else 2, 0.0, column)


def _under_their_tests(
    columns: Sequence[str], rows: Sequence[Sequence[str]], tests: Sequence[str], paint: Paint
) -> list[str]:
    """A table in which the rows of each test, one after another, stand under the test's id."""
    head, *body = aligned([columns, *rows])
    lines = [paint(head, "bold")]
    test = None
    for of_row, line in zip(tests, body, strict=True):
        if of_row != test:
            test = of_row
            lines.append(test)
        lines.append(line)
    return lines


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table, one for each row."""
    text = tabulate.tabulate(rows, (), tablefmt="plain", disable_numparse=True, preserve_whitespace=True)
    return [line.rstrip() for line in text.splitlines()]


def _title(outcome: Outcome, count: int) -> str:
    meaning = f" ({_MEANING[outcome]})" if outcome in _MEANING else ""
    return f"{count:,} {'the same' if outcome == 'same' else outcome}{meaning}"


def _table(found: Sequence[Difference]) -> list[str]:
    rows = [(f"  {percent(each.change)}", _values(each), clipped(each.name), clipped(each.test, 90)) for each in found]
    lines = []
    for each, line in zip(found, aligned(rows), strict=True):
        lines.append(line)
        if each.reason:
            lines.append(f"      {each.reason}")
        if each.grown:
            lines.append(f"      {growth(each.grown, each.entry.unit)}")
    return lines


def _by_test(found: Sequence[Difference]) -> list[str]:
    counts = collections.Counter(each.test for each in found)
    return aligned([(f"  {plural(count, 'metric')}", test) for test, count in sorted(counts.items())])


def _values(each: Difference) -> str:
    old, new = each.old, each.new
    if old is None or new is None:
        entry = each.entry
        return f"{span(entry.value, entry.interval)} {entry.unit}"
    was = span(old.value, old.interval)
    unit = f" {old.unit}" if old.unit != new.unit else ""
    return f"{was}{unit} -> {span(new.value, new.interval)} {new.unit}"


def _origin(entry: Entry) -> str:
    return f"reported: {entry.source}" if entry.source else entry.provenance


def _entries(baselines: Baselines) -> list[Entry]:
    return [entry for entries in baselines.metrics.values() for entry in entries.values()]
