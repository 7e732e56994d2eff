"""What `pytest --perf-calibrate` found, in `calibration-<device>.json` beside the baselines.

It has the format of the baselines and is saved like them: one metric a line, under a lock, atomically; metrics of other
tests stay, and damage is refused with file and line. Nothing in it gates.
"""

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from perfsuite.gate.baseline import Entry
from perfsuite.gate.baseline_file import BaselineError, SaveResult, load, save
from perfsuite.gate.environment import Environment
from perfsuite.measure.timing.calibrating import Builds, GateCounts, builds_within

_METRIC = re.compile(
    r"(?P<workload>.+), (?P<condition>quiet|busy): "
    r"(?:(?P<alarms>false alarms)|\+(?P<size>[0-9.]+) % caught|(?P<effect>caught 99 in 100)|(?P<builds>builds scatter))"
)
_EFFECT = "caught 99 in 100"
_BUILDS = "builds scatter"
_OF = "of"
"""How many gates a count is of."""
_SEEN = "builds"
"""How many builds a spread is of."""
_PERCENT = 100
_AGAIN = "delete the file and run pytest --perf-calibrate"

BUILDS_DIFFER = 0.02
"""By what share two builds of the same code differ where too little is known of the device."""
BUILDS_DIFFER_AT_LEAST = 0.005
"""No calibration says that they differ by less: it has few of the ways in which builds differ."""


@dataclasses.dataclass(frozen=True)
class Calibrated:
    """The gates of one workload, of a test, on a quiet machine or beside a busy process on each core.

    `builds` is how the workload's ratio scatters over processes, None where there was one process.
    """

    test: str
    workload: str
    busy: bool
    found: GateCounts
    environment: Environment
    builds: Builds | None = None


def calibration_path(baselines: Path, device: str) -> Path:
    """The calibration file of a device, by the name of its baseline file."""
    return baselines / f"calibration-{device}.json"


def save_calibration(path: str | os.PathLike[str], calibrated: Iterable[Calibrated]) -> SaveResult:
    """Record these in place of what the file has of their tests, and keep the rest. Raises `BaselineError`."""
    metrics: dict[str, dict[str, Entry]] = {}
    for each in calibrated:
        metrics.setdefault(each.test, {}).update(_entries(each))
    return save(path, metrics, trim=set(metrics))


def load_calibration(path: str | os.PathLike[str]) -> list[Calibrated]:
    """What the file has, sorted by test and workload; nothing where there is no file.

    Raises `BaselineError` for a file that is damaged, or that has metrics which are none of a calibration.
    """
    path = Path(path)
    return [
        _calibrated(path, test, workload, condition == "busy", entries)
        for test, of_test in sorted(load(path).metrics.items())
        for (workload, condition), entries in sorted(_grouped(path, test, of_test).items(), key=_quiet_first)
    ]


def builds_differ(baselines: Path, device: str) -> float:
    """By what share the ratio of two builds of the same code differs from 1 on a device, 19 times in 20.

    `BUILDS_DIFFER` where `--perf-calibrate` has seen too few builds there. Raises `BaselineError` for a damaged file.
    """
    seen = builds_seen(load_calibration(calibration_path(baselines, device)))
    return BUILDS_DIFFER if seen is None else seen


def builds_seen(calibrated: Iterable[Calibrated]) -> float | None:
    """What a calibration has of that, `BUILDS_DIFFER_AT_LEAST` or more; None where it has too few builds."""
    within = builds_within(each.builds for each in calibrated if each.builds)
    return None if within is None else max(within, BUILDS_DIFFER_AT_LEAST)


def _entries(each: Calibrated) -> dict[str, Entry]:
    name = f"{each.workload}, {'busy' if each.busy else 'quiet'}"
    found = each.found
    entries = {}
    if found.gates:
        entries["false alarms"] = _count(each, found.alarms, found.gates)
    for size, (caught, tried) in found.caught.items():
        entries[f"+{size * _PERCENT:g} % caught"] = _count(each, caught, tried)
    if found.effect is not None:
        entries[_EFFECT] = Entry(found.effect * _PERCENT, "%", "ratio", "measured", each.environment)
    if each.builds is not None:
        of = {_SEEN: each.builds.count}
        spread = each.builds.spread * _PERCENT
        entries[_BUILDS] = Entry(spread, "%", "ratio", "measured", each.environment, detail=of)
    return {f"{name}: {metric}": entry for metric, entry in entries.items()}


def _count(each: Calibrated, value: int, gates: int) -> Entry:
    # In the detail, and not as samples: an entry stays where another run differs in its samples alone.
    return Entry(value, "gates", "count", "measured", each.environment, detail={_OF: gates})


def _quiet_first(group: tuple[tuple[str, str], Any]) -> tuple[str, bool]:
    (workload, condition), _ = group
    return workload, condition != "quiet"


def _grouped(path: Path, test: str, entries: Mapping[str, Entry]) -> dict[tuple[str, str], dict[str, Entry]]:
    groups: dict[tuple[str, str], dict[str, Entry]] = {}
    for name, entry in entries.items():
        match = _METRIC.fullmatch(name)
        of = match and (_SEEN if match["builds"] else _OF)
        if match is None or entry.environment is None or (not match["effect"] and of not in (entry.detail or {})):
            raise BaselineError(path, f"{name!r} of {test!r} is no metric of a calibration: {_AGAIN}")
        groups.setdefault((match["workload"], match["condition"]), {})[name] = entry
    return groups


def _calibrated(path: Path, test: str, workload: str, busy: bool, entries: Mapping[str, Entry]) -> Calibrated:
    gates = alarms = 0
    caught: dict[float, tuple[int, int]] = {}
    effect = builds = None
    for name, entry in entries.items():
        match = _METRIC.fullmatch(name)
        assert match is not None
        if match["effect"]:
            effect = entry.value / _PERCENT
            continue
        detail = entry.detail or {}
        if match["builds"]:
            seen = detail[_SEEN]
            if seen < 2 or entry.value < 0:
                raise BaselineError(path, f"{name!r} of {test!r}: {entry.value} % of {seen} builds cannot be: {_AGAIN}")
            builds = Builds(seen, entry.value / _PERCENT)
            continue
        of = detail[_OF]
        if not 0 <= entry.value <= of:
            raise BaselineError(path, f"{name!r} of {test!r}: {entry.value} of {of} gates cannot be: {_AGAIN}")
        if match["alarms"]:
            alarms, gates = int(entry.value), of
        else:
            caught[float(match["size"]) / _PERCENT] = int(entry.value), of
    (environment,) = {entry.environment for entry in list(entries.values())[:1]}
    assert environment is not None
    found = GateCounts(gates, alarms, dict(sorted(caught.items())), effect)
    return Calibrated(test, workload, busy, found, environment, builds)
