"""The terminal's table of a calibration: false alarms, planted slowdowns, and the smallest that is surely caught."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import tabulate

from perfsuite.measure.timing.calibrating import rate_below
from perfsuite.report.terminal.terminal import LONGEST_NAME, relative

if TYPE_CHECKING:
    from perfsuite.gate.calibration_file import Calibrated
    from perfsuite.hooks.calibration import Calibration

_CONDITIONS = {False: "quiet", True: "busy"}


def header(calibration: "Calibration", rootpath: Path) -> str:
    """What the session is about to do, for its top."""
    where = relative(calibration.path, rootpath)
    return f"perfsuite: calibrating for about {calibration.minutes:g} minutes, into {where}; nothing is gated"


def nothing(left_out: int) -> str:
    """What is said of a session without a workload."""
    tests = "1 test that does not name it was" if left_out == 1 else f"{left_out} tests that do not name it were"
    others = f" ({tests} left out)" if left_out else ""
    return f"nothing to calibrate: no test of this session called perf.compare{others}"


def summary(
    reporter: pytest.TerminalReporter, calibration: "Calibration", rootpath: Path, saved: bool, message: str
) -> None:
    """The table, how to read it, the rate of false alarms, and where it was written or why not."""
    results = calibration.results()
    if results or message:
        reporter.section("perfsuite: calibration", sep="=")
    if results:
        _table(reporter, results)
        _legend(reporter, results, calibration)
        _alarms(reporter, results, calibration)
    if calibration.unreached:
        more = f"{calibration.unreached} more workloads were not reached in time: allow more --perf-calibrate-minutes"
        reporter.line(more, yellow=True)
    if saved:
        reporter.line(f"written: {relative(calibration.path, rootpath)}")
    if message:
        reporter.line(message, red=True, bold=True)


def percent(share: float) -> str:
    """Two significant digits: 0.0123 is `1.2 %`."""
    return f"{float(f'{100 * share:.2g}'):g} %"


def _table(reporter: pytest.TerminalReporter, results: "Sequence[Calibrated]") -> None:
    sizes = sorted({size for result in results for size in result.found.caught})
    columns = (
        "workload",
        "machine",
        "A/A gates",
        "false alarms",
        *(f"+{percent(size)}" for size in sizes),
        "99 in 100",
    )
    rows = [_row(f"  {_clipped(result.workload)}", [result], sizes, result.found.effect) for result in results]
    for busy in _CONDITIONS:
        if alike := [result for result in results if result.busy == busy]:
            effects = [result.found.effect for result in alike]
            known = [effect for effect in effects if effect is not None]
            rows.append(_row("in all", alike, sizes, max(known) if len(known) == len(effects) else None))
    text = tabulate.tabulate(rows, columns, tablefmt="plain", disable_numparse=True, preserve_whitespace=True)
    head, *lines = text.splitlines()
    reporter.line(head, bold=True)
    test = None
    for place, line in enumerate(lines):
        if place < len(results) and results[place].test != test:
            test = results[place].test
            reporter.line(test)
        alarmed = place < len(results) and results[place].found.alarms
        reporter.line(line, **({"red": True} if alarmed else {}))


def _row(name: str, results: "Sequence[Calibrated]", sizes: Sequence[float], effect: float | None) -> tuple[str, ...]:
    gates = sum(result.found.gates for result in results)
    alarms = sum(result.found.alarms for result in results)
    of_sizes = []
    for size in sizes:
        counted = [result.found.caught.get(size, (0, 0)) for result in results]
        caught, tried = (sum(column) for column in zip(*counted, strict=True))
        of_sizes.append(f"{caught}/{tried}" if tried else "-")
    derived = "-" if effect is None else f"+{percent(effect)}"
    return name, _CONDITIONS[results[0].busy], str(gates), str(alarms), *of_sizes, derived


def _legend(reporter: pytest.TerminalReporter, results: "Sequence[Calibrated]", calibration: "Calibration") -> None:
    reporter.line("counted: A/A gates (the reference against itself, limit 1), and planted slowdowns caught/tried")
    reporter.line(
        "derived: the slowdown that the next gate catches 99 times in 100, from how far the A/A gates were from an "
        "alarm; in all: on every workload"
    )
    most, least = (round(1 / error) for error in (calibration.promised, calibration.least_promised))
    between = f"{most}" if most == least else f"{most} to {least}"
    reporter.line(f"error: a gate may raise a false alarm once in {between}, its share of what a session of these may")
    reporter.line(f"busy: beside {calibration.cores} processes that compute all the time, one a core")
    if any(result.found.effect is None for result in results):
        reporter.line(
            "-: not tried, or not known: too few A/A gates, or too few pairs for an interval; allow more "
            "--perf-calibrate-minutes, or more --perf-seconds",
            yellow=True,
        )


def _alarms(reporter: pytest.TerminalReporter, results: "Sequence[Calibrated]", calibration: "Calibration") -> None:
    gates = sum(result.found.gates for result in results)
    alarms = sum(result.found.alarms for result in results)
    rate = f" ({percent(alarms / gates)})" if gates else ""
    bound = f"the rate is below {percent(rate_below(alarms, gates))} (95 %, Clopper and Pearson)"
    color = {"red": True, "bold": True} if alarms else {"green": True}
    reporter.line(f"{alarms} false alarms in {gates} A/A gates{rate}: {bound}", **color)
    if calibration.alarms_too_often:
        reporter.line(
            f"that is more often than 1 in {round(1 / calibration.promised)}, as promised: "
            "do not trust this machine's gates before it is known why",
            red=True,
            bold=True,
        )


def _clipped(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 3]}..."
