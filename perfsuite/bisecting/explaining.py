"""What changed between two steps: all metrics of the test, by the gate's rules, and the parts of one."""

from pathlib import Path
from typing import Any

from perfsuite.against.changes import metrics_changed
from perfsuite.against.found import MetricChange
from perfsuite.against.notes import Notes, Place
from perfsuite.against.runs import FirstRun, Run
from perfsuite.bisecting import metric
from perfsuite.bisecting.metric import Recorded
from perfsuite.gate.baseline import Entry
from perfsuite.gate.verdict import Part
from perfsuite.measure.targets import cache as facts_cache


def changes_between(test: str, before: Recorded, after: Recorded) -> tuple[MetricChange, ...]:
    """The metrics of the test that are worse, better, new or gone, but for those of which one run says too little."""
    found = metrics_changed(_run(test, before), _run(test, after))
    return tuple(each for each in found if each.called in ("worse", "better", "new", "gone"))


def grown_between(test: str, name: str, better: Recorded, worse: Recorded) -> tuple[Part, ...]:
    """The parts of a metric that the worse of two steps has more of."""
    old, new = better.entries.get(name), worse.entries.get(name)
    return metric.judged(test, name, new, old).grown if old and new else ()


def program_between(name: str, before: Recorded, after: Recorded, folders: tuple[Path, Path]) -> tuple[str, ...]:
    """How the program of a metric differs, a line each; none where either program is not in its folder of facts."""
    programs = [_program(name, *each) for each in zip((before, after), folders, strict=True)]
    if None in programs:
        return ()
    # Here, not above: it imports jax.
    from perfsuite.measure.program.program_diff import program_differences

    return tuple(line.strip() for line in program_differences(*programs).splitlines())


def _program(name: str, recorded: Recorded, folder: Path) -> Any:
    """The program of a metric, as its compiler told it; None for a metric of no program."""
    from perfsuite.measure.program.compilation import kept_program  # it imports jax
    from perfsuite.measure.program.program_metrics import FACTS

    place = recorded.place(name)
    if place is None:
        return None
    device, test, id = place
    measured = next((id.removesuffix(f" {fact}") for fact in FACTS if id.endswith(f" {fact}")), "")
    target = None if device == recorded.device else device
    entry = facts_cache.read(folder, facts_cache.key_of_baseline(test, measured, target, recorded.device))
    return kept_program(entry)


def _run(test: str, recorded: Recorded) -> FirstRun:
    sampled = {name: Place(sampled=True) for name, entry in recorded.entries.items() if _is_sampled(entry)}
    notes = Notes(tests={test: ("passed", "")}, device=recorded.device, places={test: sampled})
    return FirstRun(Run(notes, 0.0), recorded.baselines)


def _is_sampled(entry: Entry) -> bool:
    return entry.kind == "ratio" and (entry.samples is not None or entry.interval is not None)
