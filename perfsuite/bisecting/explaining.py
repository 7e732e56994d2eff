"""What changed between two steps: all metrics of the test, by the gate's rules, and the parts of one."""

from perfsuite.against.changes import metrics_changed
from perfsuite.against.found import MetricChange
from perfsuite.against.notes import Notes
from perfsuite.against.runs import FirstRun, Run
from perfsuite.bisecting import metric
from perfsuite.bisecting.metric import Recorded
from perfsuite.gate.verdict import Part


def changes_between(test: str, before: Recorded, after: Recorded) -> tuple[MetricChange, ...]:
    """The metrics of the test that are worse, better, new or gone."""
    found = metrics_changed(_run(test, before), _run(test, after))
    return tuple(each for each in found if each.called in ("worse", "better", "new", "gone"))


def grown_between(test: str, name: str, better: Recorded, worse: Recorded) -> tuple[Part, ...]:
    """The parts of a metric that the worse of two steps has more of."""
    old, new = better.entries.get(name), worse.entries.get(name)
    return metric.judged(test, name, new, old).grown if old and new else ()


def _run(test: str, recorded: Recorded) -> FirstRun:
    notes = Notes(tests={test: ("passed", "")}, device=recorded.device)
    return FirstRun(Run(notes, 0.0), recorded.baselines)
