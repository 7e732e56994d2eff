"""One pytest session with --perf: its options, device and baselines, and the gates of all its tests."""

import dataclasses
from pathlib import Path

from perfsuite.gate import baseline, verdict
from perfsuite.gate.baseline_file import SaveResult, check_writable, load, save
from perfsuite.gate.environment import Environment, device_slug, present_environment
from perfsuite.gate.verdict import Gate
from perfsuite.measure.measurement import Measurement
from perfsuite.options import Options

_SIZE = " --perf-size="


@dataclasses.dataclass(frozen=True)
class TestRecord:
    """What one test measured, as it travels from a pytest-xdist worker to the process that saves and reports."""

    __test__ = False  # no test class, whatever its name

    test: str
    passed: bool
    ended: bool
    """Whether the test's body came to its end, so that a figure it did not measure is really gone."""
    gates: tuple[Gate, ...]
    measurements: tuple[Measurement, ...]

    def to_dict(self) -> dict:
        """Plain values only."""
        return {
            "test": self.test,
            "passed": self.passed,
            "ended": self.ended,
            "gates": [gate.to_dict() for gate in self.gates],
            "measurements": [measurement.to_dict() for measurement in self.measurements],
        }

    @classmethod
    def from_dict(cls, values: dict) -> "TestRecord":
        """The inverse of `to_dict`."""
        return cls(
            values["test"],
            values["passed"],
            values["ended"],
            tuple(Gate.from_dict(gate) for gate in values["gates"]),
            tuple(Measurement.from_dict(measurement) for measurement in values["measurements"]),
        )


class PerfSession:
    """Made once a session, when --perf is given; it starts JAX's backend.

    `timing_refused` says why nothing can be timed here, or is empty. Raises `BaselineError` when the baselines cannot
    be read, or cannot be written although they are to be saved.
    """

    def __init__(self, options: Options, *, timing_refused: str):
        self.options = options
        self.timing_refused = timing_refused
        self.environment: Environment = present_environment()
        self.path: Path = options.baselines / f"{device_slug(self.environment.device_kind)}.json"
        if options.save:
            check_writable(options.baselines)
        self.baselines = load(self.path)
        self.records: list[TestRecord] = []
        self.collected: set[str] = set()
        """Every test of the files that were collected, where they were collected whole."""

    def test_key(self, test: str) -> str:
        """A test's name in the baseline file. Figures of the full size stand beside those of the small one."""
        return test if self.options.size == "small" else f"{test}{_SIZE}{self.options.size}"

    def ratio_limit(self, test: str, figure: str, tolerance: float | None) -> list[float]:
        """The limit that the baseline puts on a ratio, as a list of one; empty where there is none."""
        if self.options.save:
            return []
        limit = verdict.ratio_limit(self._entry(test, figure), self.environment, tolerance)
        return [] if limit is None else [limit]

    def judge(self, test: str, measurement: Measurement, tolerance: float | None, *, cause: str = "") -> Gate:
        """A measurement against its baseline."""
        entry = self._entry(test, measurement.name)
        gate = verdict.judge_baseline(test, measurement, entry, now=self.environment, tolerance=tolerance, cause=cause)
        if gate.verdict == "new" and self.options.strict:
            return dataclasses.replace(
                gate,
                verdict="fail",
                reason=f"{measurement.name} has no baseline (--perf-strict): pytest --perf-save records it",
            )
        return gate

    def failures(self, gates: list[Gate]) -> list[Gate]:
        """Those that fail the test. While baselines are being saved, only budgets do."""
        return [gate for gate in gates if gate.failed and not (self.options.save and gate.source != "budget")]

    def missing(self) -> list[tuple[str, str]]:
        """Recorded figures that their tests, which ran to their end, did not measure: (test, figure)."""
        lost = []
        for record in self.records:
            made = {measurement.name for measurement in record.measurements}
            entries = self.baselines.figures.get(self.test_key(record.test), {})
            if record.ended:
                lost += [(record.test, name) for name, entry in entries.items() if name not in made and entry.gates]
        return lost

    def save(self) -> SaveResult:
        """Record the figures of the tests that passed. Raises `BaselineError` and leaves the file as it was."""
        passed = [record for record in self.records if record.passed]
        new = {
            self.test_key(record.test): {
                measurement.name: baseline.entry_of(measurement, self.environment)
                for measurement in record.measurements
            }
            for record in passed
        }
        return save(self.path, new, trim=set(new), gone=self._gone())

    def _gone(self) -> set[str]:
        """Recorded tests that are not in their file any more."""
        files = {test.partition("::")[0] for test in self.collected}
        keys = {self.test_key(test) for test in self.collected}
        of_this_size = {key for key in self.baselines.figures if key == self.test_key(key.partition(_SIZE)[0])}
        return {key for key in of_this_size if key.partition("::")[0] in files and key not in keys}

    def _entry(self, test: str, figure: str) -> baseline.Entry | None:
        return self.baselines.get(self.test_key(test), figure)
