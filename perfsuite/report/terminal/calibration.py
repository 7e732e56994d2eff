"""The terminal's table of a calibration: false alarms, planted slowdowns, and the smallest slowdown that is caught."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from perfsuite.gate.calibration_file import BUILDS_DIFFER, Calibrated
from perfsuite.measure.io import relative
from perfsuite.measure.stats.error_rates import DECIDING_ERROR
from perfsuite.measure.timing.calibrating import LEAST_BUILDS, Builds, rate_below
from perfsuite.measure.words import percent, plural
from perfsuite.report.terminal.output import by_test, clipped

_CONDITIONS = {False: "quiet", True: "busy"}


@dataclasses.dataclass(frozen=True)
class CalibrationOutcome:
    """What a calibration measured. `path` is its file; the time ended before `unreached` workloads.

    `builds_differ` is the share by which two builds differ, as the saved file has it, None where that is unknown;
    `not_again` says, by test and workload, why a fresh process gave no ratio. `alarms_too_often` when the gates raise
    more false alarms than promised. A busy machine has a busy process on each of `cores` cores.
    """

    path: Path
    results: Sequence[Calibrated]
    unreached: int
    builds_differ: float | None
    not_again: Mapping[tuple[str, str], str]
    alarms_too_often: bool
    cores: int


def calibration_header(path: Path, minutes: float, rootpath: Path) -> str:
    """The line at the top of a session that calibrates."""
    return f"perfsuite: calibrating for about {minutes:g} minutes, into {relative(path, rootpath)}; nothing is gated"


def nothing_to_calibrate(left_out: int) -> str:
    """The message of a session without a workload."""
    tests = f"{plural(left_out, 'test')} that {'does' if left_out == 1 else 'do'} not name it"
    others = f" ({tests} {'was' if left_out == 1 else 'were'} left out)" if left_out else ""
    return f"nothing to calibrate: no test of this session called perf.compare{others}"


def calibration_summary(
    reporter: pytest.TerminalReporter, outcome: CalibrationOutcome, rootpath: Path, saved: bool, message: str
) -> None:
    """The table, how to read it, the rate of false alarms, and the file it was written to, or why not."""
    if outcome.results or message:
        reporter.section("perfsuite: calibration", sep="=")
    if outcome.results:
        _table(reporter, outcome.results)
        _legend(reporter, outcome)
        _alarms(reporter, outcome)
        _builds(reporter, outcome)
    if outcome.unreached:
        count = plural(outcome.unreached, "more workload")
        verb = "was" if outcome.unreached == 1 else "were"
        reporter.line(f"{count} {verb} not measured in time: increase --perf-calibrate-minutes", yellow=True)
    if saved:
        reporter.line(f"written: {relative(outcome.path, rootpath)}")
    if message:
        reporter.line(message, red=True, bold=True)


def _table(reporter: pytest.TerminalReporter, results: Sequence[Calibrated]) -> None:
    sizes = sorted({size for result in results for size in result.found.caught})
    slowdowns = [percent(size, 2) for size in sizes]
    columns = ("workload", "machine", "A/A gates", "false alarms", *slowdowns, "99 in 100", "builds")
    rows = [_row(f"  {clipped(result.workload)}", [result], sizes, result.found.effect) for result in results]
    tests = [result.test for result in results]
    for busy in _CONDITIONS:
        if alike := [result for result in results if result.busy == busy]:
            effects = [result.found.effect for result in alike]
            known = [effect for effect in effects if effect is not None]
            rows.append(_row("in all", alike, sizes, max(known) if len(known) == len(effects) else None))
            tests.append("")
    head, lines = by_test(columns, rows, tests)
    reporter.line(head, bold=True)
    for line, index in lines:
        alarmed = index is not None and index < len(results) and results[index].found.alarms > 0
        reporter.line(line, **({"red": True} if alarmed else {}))


def _row(name: str, results: Sequence[Calibrated], sizes: Sequence[float], effect: float | None) -> tuple[str, ...]:
    gates = sum(result.found.gates for result in results)
    alarms = sum(result.found.alarms for result in results)
    of_sizes = []
    for size in sizes:
        counted = [result.found.caught.get(size, (0, 0)) for result in results]
        caught, tried = (sum(column) for column in zip(*counted, strict=True))
        of_sizes.append(f"{caught}/{tried}" if tried else "-")
    derived = "-" if effect is None else percent(effect, 2)
    builds = _scatter(results[0].builds) if len(results) == 1 else ""
    return name, _CONDITIONS[results[0].busy], str(gates), str(alarms), *of_sizes, derived, builds


def _scatter(builds: Builds | None) -> str:
    return "" if builds is None else f"{builds.count}: {_unsigned(builds.spread)}"


def _legend(reporter: pytest.TerminalReporter, outcome: CalibrationOutcome) -> None:
    reporter.line(
        "counted: A/A gates (the reference compared with itself, limit 1), and planted slowdowns: caught/tried"
    )
    reporter.line(
        "99 in 100: the slowdown that the next gate catches 99 times in 100, estimated from the A/A gates; in all: on "
        "every workload"
    )
    if any(result.builds for result in outcome.results):
        reporter.line(
            "builds: processes that built both sides anew, and the standard deviation of the ratio between them"
        )
    reporter.line(f"promised: a gate raises a false alarm at most once in {round(1 / DECIDING_ERROR)}")
    reporter.line(f"busy: {plural(outcome.cores, 'process', 'processes')} computing all the time, one on each core")
    if any(result.found.effect is None for result in outcome.results):
        reporter.line(
            "-: not tried, or unknown: too few A/A gates, or too few pairs for an interval; increase "
            "--perf-calibrate-minutes or --perf-seconds",
            yellow=True,
        )


def _alarms(reporter: pytest.TerminalReporter, outcome: CalibrationOutcome) -> None:
    gates = sum(result.found.gates for result in outcome.results)
    alarms = sum(result.found.alarms for result in outcome.results)
    rate = f" ({_unsigned(alarms / gates)})" if gates else ""
    bound = f"the rate is below {_unsigned(rate_below(alarms, gates))} (95 %, Clopper and Pearson)"
    color = {"red": True, "bold": True} if alarms else {"green": True}
    reporter.line(f"{plural(alarms, 'false alarm')} in {plural(gates, 'A/A gate')}{rate}: {bound}", **color)
    if outcome.alarms_too_often:
        reporter.line(
            f"that is more often than the promised 1 in {round(1 / DECIDING_ERROR)}: "
            "do not trust this machine's gates until you know why",
            red=True,
            bold=True,
        )


def _builds(reporter: pytest.TerminalReporter, outcome: CalibrationOutcome) -> None:
    if outcome.builds_differ is None:
        reporter.line(
            f"fewer than {LEAST_BUILDS} builds are too few to say by what two of the same code differ: gates take "
            f"{_unsigned(BUILDS_DIFFER)}; increase --perf-calibrate-minutes",
            yellow=True,
        )
    else:
        reporter.line(
            f"two builds of the same code differ by up to {_unsigned(outcome.builds_differ)} (95 %): a gate does not "
            "fail a ratio that is above its limit by less"
        )
    for (_, workload), reason in outcome.not_again.items():
        reporter.line(f"a fresh process gave no ratio of {workload}: {reason}", yellow=True)


def _unsigned(share: float) -> str:
    return percent(share, 2).removeprefix("+")
