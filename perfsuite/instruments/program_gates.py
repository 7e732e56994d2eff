"""The programs of one perf test: compiled, kept for later, and told apart from those of the baselines."""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from perfsuite.gate.verdict import Gate
from perfsuite.measure.call import Call
from perfsuite.measure.measurement import Metric
from perfsuite.measure.program.compilation import Compilation, compile_call
from perfsuite.measure.program.lowering import HostCallbackError
from perfsuite.measure.program.program import Program
from perfsuite.measure.program.program_diff import program_differences
from perfsuite.measure.program.program_metrics import gated_facts, metrics_of
from perfsuite.measure.targets import cache as facts_cache
from perfsuite.measure.targets.target_compiler import CompileFailed
from perfsuite.session.plots import ProgramRecord

if TYPE_CHECKING:
    from perfsuite.session.session import PerfSession


class ProgramGates:
    """Compiles programs and remembers them until the test is judged.

    When baselines are saved, what the compiler said goes into the cache under the name of test and program, so that a
    later failure on the same machine can show what is different; the baseline file alone has only the parts of metrics.
    """

    def __init__(self, session: "PerfSession", test: str):
        self._session = session
        self._test = test
        self._made: list[tuple[Compilation, Program]] = []
        self._records: list[ProgramRecord] | None = None

    @property
    def compiled(self) -> int:
        """Programs that a compiler was run for."""
        return len(self._made) - self.cached

    @property
    def cached(self) -> int:
        """Programs whose facts were in the cache."""
        return sum(program.cached for _, program in self._made)

    def compile(self, call: Call, target: str | None, chips: int | None, label: str) -> Program:
        """The program of a call, under a label. Raises what `compile_call` raises."""
        compilation = compile_call(call, target, chips=chips, cache=self._session.cache)
        compilation = dataclasses.replace(compilation, origin=dataclasses.replace(compilation.origin, label=label))
        program = compilation.program()
        self._made.append((compilation, program))
        return program

    def keep(self) -> None:
        """Keep the programs as those of the baselines that are being saved."""
        self.records()  # against the baselines as they were
        for compilation, program in self._made:
            facts_cache.write(self._session.cache, self._key(program), compilation.to_dict())

    def records(self) -> list[ProgramRecord]:
        """What a report shows of the programs; nothing without --perf-report."""
        if self._records is None:
            wanted = self._session.options.report is not None
            self._records = [self._record(program) for _, program in self._made] if wanted else []
        return self._records

    def _record(self, program: Program) -> ProgramRecord:
        recorded, now = self._recorded(program), gated_facts(program)
        same = all(recorded.get(f"{program.label} {metric}") == value for metric, value in now.items())
        lines = () if same else self._against_baseline(program)
        return ProgramRecord(
            program.label,
            program.target,
            program.device_kind,
            program.compiler,
            program.partitions,
            program.cached,
            tuple(made.title for made in metrics_of(program)),
            compared=same or bool(lines),
            differences=lines,
        )

    def explained(self, gates: Sequence[Gate]) -> list[Gate]:
        """The same gates; the first failed one of each program says how the program differs from the baseline's."""
        explained = list(gates)
        for _, program in self._made:
            titles = {made.title for made in metrics_of(program)}
            failed = [i for i, gate in enumerate(explained) if gate.failed and gate.metric.title in titles]
            if failed and (lines := self._against_baseline(program)):
                explained[failed[0]] = dataclasses.replace(explained[failed[0]], program=lines)
        return explained

    def _against_baseline(self, program: Program) -> tuple[str, ...]:
        entry = facts_cache.read(self._session.cache, self._key(program))
        if entry is None:
            return ()
        try:
            before = Compilation.from_dict(entry).program()
        except (KeyError, TypeError, ValueError):  # of another version of perfsuite
            return ()
        recorded = self._recorded(program)
        for metric, value in gated_facts(before).items():
            if recorded.get(f"{program.label} {metric}") != value:
                return ()  # the baseline was saved elsewhere since
        return tuple(line.strip() for line in program_differences(before, program).splitlines())

    def _recorded(self, program: Program) -> dict[str, float]:
        entries = self._session.baselines_of(program.target).metrics.get(self._session.test_key(self._test), {})
        return {name: entry.value for name, entry in entries.items()}

    def _key(self, program: Program) -> str:
        named = json.dumps([self._session.test_key(self._test), program.label, program.target, self._session.device])
        return hashlib.sha256(f"baseline {named}".encode()).hexdigest()


def refusal(test: str, label: str, target: str | None, error: CompileFailed | HostCallbackError) -> Gate:
    """The gate of a program that cannot be: as failed as one over its budget, with the reason."""
    if isinstance(error, HostCallbackError):
        metric = Metric(f"{label} host transfers", error.calls, "transfers", "count", target=target)
    else:
        metric = Metric(f"{label} refused", 1, "programs", "count", target=target)
    return Gate(test, metric, "fail", "budget", limit=0, note=str(error))


def in_words(parts: dict[str, int]) -> str:
    """The parts of a metric, the largest first."""
    return ", ".join(f"{name} {value:,}" for name, value in sorted(parts.items(), key=lambda part: -part[1]))
