"""The metric that is asked for: its name on the command line, its value at a step, and what the gate says of it."""

import dataclasses
import re
from collections.abc import Mapping

from perfsuite.against.runs import FirstRun
from perfsuite.bisecting.found import BisectFailed, Step, Verdict
from perfsuite.gate.baseline import Baselines, Entry, name_of
from perfsuite.gate.baseline_format import parse, render
from perfsuite.gate.environment import Environment
from perfsuite.gate.verdict import Gate, judge_baseline
from perfsuite.measure.metric import Kind, Metric, title
from perfsuite.measure.words import number

EXACT: tuple[Kind, ...] = ("count", "size")

_SAME = Environment("the same at all steps", 1, "", "", "", "")
_SIZE = " --perf-size="
_LISTED = 12


@dataclasses.dataclass(frozen=True)
class Wanted:
    """A test, and a metric's title as `perfsuite show` prints it; empty for the only one that differs."""

    test: str
    metric: str = ""

    @property
    def node(self) -> str:
        """The test as pytest knows it: a baseline file adds the size."""
        return self.test.partition(_SIZE)[0]


@dataclasses.dataclass(frozen=True)
class Recorded:
    """The metrics of one test at one step. `device` is the name of the present device's baseline file."""

    device: str
    baselines: Mapping[str, Baselines]

    @property
    def entries(self) -> dict[str, Entry]:
        """By title."""
        return {
            title(name_of(id, entry), None if device == self.device else device): entry
            for device, each in self.baselines.items()
            for metrics in each.metrics.values()
            for id, entry in metrics.items()
        }

    def place(self, name: str) -> tuple[str, str, str] | None:
        """Where a metric is recorded: its device, its test as the file has it, and its id."""
        for device, each in self.baselines.items():
            for test, metrics in each.metrics.items():
                for id, entry in metrics.items():
                    if title(name_of(id, entry), None if device == self.device else device) == name:
                        return device, test, id
        return None

    def texts(self) -> dict[str, str]:
        """The baselines as the texts of files."""
        return {device: render(each) for device, each in self.baselines.items()}


def reading(text: str) -> Wanted:
    """The test and the metric that a text names: `tests/test_a.py::test_step::step host calls`, or the test alone.

    The metric follows the last `::`, unless a test's name does. Raises `BisectFailed`.
    """
    test, _, last = (part.strip() for part in text.rpartition("::"))
    inside_brackets = last.count("]") > last.count("[")
    after_a_test = not inside_brackets and _is_test(test.rpartition("::")[2])
    if "::" in test and last and not inside_brackets and (after_a_test or not _is_test(last)):
        return Wanted(test, last)
    if test and last:
        return Wanted(text.strip())
    raise BisectFailed(
        f'"{text}" names no metric of a test: give "tests/test_a.py::test_step::step host calls", as `perfsuite show` '
        "prints them"
    )


def _is_test(part: str) -> bool:
    return re.fullmatch(r"test\w*(\[.*\])?", part) is not None


def of_test(run: FirstRun, test: str) -> Recorded:
    """What a run recorded for one test."""
    found = {}
    for device, each in run.baselines.items():
        metrics = {key: entries for key, entries in each.metrics.items() if key.partition(_SIZE)[0] == test}
        if metrics:
            found[device] = Baselines(device, metrics)
    return Recorded(run.run.notes.device, found)


def of_step(step: Step) -> Recorded:
    """What a step that was kept recorded."""
    return Recorded(step.device, {device: parse(text) for device, text in step.baselines.items()})


def chosen(wanted: Wanted, good: Recorded, bad: Recorded | None) -> tuple[str, Entry]:
    """The metric's title, and its entry at the good end. `bad` is needed where no metric is named.

    Raises `BisectFailed` where there is none, or more than one.
    """
    entries = good.entries
    if not wanted.metric:
        return _only_one_that_differs(wanted, good, bad)
    if wanted.metric not in entries:
        listed = ", ".join(f'"{name}"' for name in sorted(entries)[:_LISTED]) or "none"
        more = f" and {len(entries) - _LISTED} more" if len(entries) > _LISTED else ""
        raise BisectFailed(f'{wanted.test} makes no metric "{wanted.metric}" at the good end: it makes {listed}{more}')
    entry = entries[wanted.metric]
    if entry.kind == "info":
        raise BisectFailed(f'"{wanted.metric}" is information, which no gate judges: name a count, size, ratio or time')
    if entry.kind == "time" and wanted.metric.endswith(" p99"):
        raise BisectFailed(f'"{wanted.metric}" differs too much between processes: name the time to ready or to return')
    return wanted.metric, entry


def _only_one_that_differs(wanted: Wanted, good: Recorded, bad: Recorded | None) -> tuple[str, Entry]:
    ends = bad.entries if bad else {}
    worse = {
        name: entry
        for name, entry in good.entries.items()
        if entry.kind in EXACT and name in ends and judged(wanted.test, name, ends[name], entry).failed
    }
    if len(worse) == 1:
        return next(iter(worse.items()))
    names = ", ".join(f'"{name}" ({_both(entry, ends[name])})' for name, entry in worse.items())
    which = f"these are: {names}" if worse else "none is"
    raise BisectFailed(f'name the metric, as in "{wanted.test}::step host calls": of its counts and sizes that are worse at the bad end, {which}')  # fmt: skip # noqa: E501


def judged(test: str, name: str, entry: Entry, good: Entry) -> Gate:
    """What the gate says of an entry, with that of the good end as the baseline."""
    detail = dict(entry.detail) if entry.detail else None
    metric = Metric(name, entry.value, entry.unit, entry.kind, entry.better, entry.interval, entry.samples, detail)
    # One machine and one Python: only the versions differ, and those never make an exact metric incomparable.
    return judge_baseline(test, metric, good, now=good.environment or _SAME)


def verdict_of(test: str, name: str, entry: Entry, good: Entry) -> tuple[Verdict, str]:
    """Bad is what the gate fails with the good end as its baseline; and why a step says nothing."""
    gate = judged(test, name, entry, good)
    if gate.verdict == "not comparable":
        return "skipped", gate.incomparable
    return ("bad" if gate.failed else "good"), ""


def check_ends(test: str, name: str, good: Entry, bad: Entry) -> None:
    """Raise `BisectFailed` where the bad end is not worse."""
    gate = judged(test, name, bad, good)
    if gate.failed:
        return
    both = _both(good, bad)
    if gate.verdict == "not comparable":
        raise BisectFailed(f"{name}: the ends cannot be compared: {gate.incomparable}")
    if gate.verdict == "improved":
        raise BisectFailed(
            f"{name} is better at the bad end ({both}; {good.better} is better): swap --good and --bad; the bad end "
            "may be the older one"
        )
    raise BisectFailed(f"{name} does not differ between the ends by more than its gate allows: {both}")


def _both(good: Entry, bad: Entry) -> str:
    return f"good {number(good.value)}, bad {number(bad.value)} {bad.unit}"
