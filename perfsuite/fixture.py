"""The `perf` fixture: one object a test, which measures, checks budgets at once, and baselines when the test ends."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from perfsuite.gate.budget import Budget, BudgetExceeded
from perfsuite.instruments.base import NO_BUDGET
from perfsuite.instruments.counted import CountedInstruments
from perfsuite.instruments.timed import TimedInstruments
from perfsuite.measure.call import Call, checked
from perfsuite.measure.measurement import Better, Interval, Kind, Metric, title
from perfsuite.measure.profiler.trace_recording import RUNS

if TYPE_CHECKING:
    from perfsuite.gate.verdict import Gate
    from perfsuite.measure.profiler.trace_recording import Traced
    from perfsuite.measure.profiler.traces import Trace
    from perfsuite.measure.program.program import Program


class Perf(TimedInstruments, CountedInstruments):
    """The instruments, for one test. Get it by asking for the fixture `perf`.

    Every metric is recorded under a name that is unique in the test: the name of the function, or `name=`. A budget is
    checked where it is given and raises `BudgetExceeded`; baselines are checked when the test's body has ended.
    """

    def trace(self, call: Call, *, runs: int = RUNS, name: str | None = None) -> "Trace":
        """Trace `runs` warm runs of a call: where its time goes, on the host and on the devices. Never gates by itself.

        The files are kept under --perf-trace. Raises `MeasurementError` where a trace is being recorded already and
        where no device ran anything, and `RecompilationError` when a run compiles.
        """
        trace = self.traces.trace(checked(call, "perf.trace"), name or call.label, runs)
        for metric in trace.metrics(self.metrics.unique(name or call.label, *trace.suffixes)):
            self.metrics.record(metric)
        return trace

    @contextlib.contextmanager
    def trace_block(self, name: str) -> Iterator["Traced"]:
        """Context manager: trace what the block does, compilations included. `.trace` is there once it has ended.

        For what is no single call: a loop, a pipeline. Nothing that gates should be timed in the block.
        """
        with self.traces.block(name) as traced:
            yield traced
        for metric in traced.trace.metrics(self.metrics.unique(name, *traced.trace.suffixes)):
            self.metrics.record(metric)

    def program(
        self,
        call: Call,
        target: str | None = None,
        *,
        chips: int | None = None,
        budget: Budget = NO_BUDGET,
        name: str | None = None,
    ) -> "Program":
        """Compile a call without running it, and record its program's facts: FLOPs, bytes, fusions, collectives.

        `target` names a device that need not be here, such as "tpu-v5e"; None is the present one. A sharded program
        (its arguments lie on a mesh, or are `jax.ShapeDtypeStruct`s with shardings) is compiled for as many devices of
        the target as its mesh has, in a slice of `chips` chips or the smallest that has them. The metrics of a target
        are gated by the target's own baseline file. `Budget(peak_bytes=)` limits the memory.

        A program that the compiler refuses, because it needs more memory than there is, fails as a budget does. Where
        the target's compiler is not installed the test is skipped, and fails under --perf-strict.
        """
        __tracebackhide__ = True
        from perfsuite.instruments.program_gates import ProgramGates, in_words, refusal
        from perfsuite.measure.program.lowering import HostCallbackError
        from perfsuite.measure.program.program_metrics import metrics_of
        from perfsuite.measure.targets.target_compiler import CompileFailed, TargetUnavailable

        limits = budget.only("perf.program", "peak_bytes")
        call = checked(call, "perf.program")
        # perf.warm has compile seconds of the function, too.
        label = self.metrics.unique(name or call.label, " flops", " compile seconds", target=target)
        self.programs = self.programs or ProgramGates(self._session, self._test)
        self._session.baselines_of(target)  # a damaged file is an error before minutes of compiling
        try:
            program = self.programs.compile(call, target, chips, label)
        except TargetUnavailable as error:
            self._session.unavailable(str(error))
        except (CompileFailed, HostCallbackError) as error:
            self.metrics.gates.append(refusal(self._test, label, target, error))
            # Not `from error`: that would print the source of perfsuite and of jax above the reason.
            raise BudgetExceeded(str(error)) from None
        for made in metrics_of(program):
            self.metrics.record_once(made)
        if "peak_bytes" in limits:
            peak = self.metrics.metrics[title(f"{label} peak bytes", target)]
            self.metrics.check_budget(peak, limits["peak_bytes"], lambda: in_words(program.memory_use))
        return program

    def record(
        self,
        name: str,
        value: float,
        *,
        unit: str,
        kind: Kind,
        better: Better = "lower",
        interval: "tuple[float, float] | None" = None,
        tolerance: float | None = None,
        target: str | None = None,
    ) -> None:
        """Record any other metric, gated like the rest.

        `interval` is (low, high), for a metric that was sampled. `target` names the device that it was compiled for,
        None says that it was made on the present one.
        """
        made = Metric(name, value, unit, kind, better, Interval(*interval) if interval else None, target=target)
        self.metrics.record_once(made, tolerance)

    def judge_baselines(self) -> "list[Gate]":
        """Every metric of this test against its baseline. The plugin calls it when the test's body has ended."""
        gates = self.processes.explained(self.metrics.judge_baselines())
        if self.programs is not None:
            gates = self.programs.explained(gates)
        if self._session.options.save:
            self.traces.keep()
            if self.programs is not None:
                self.programs.keep()
        self.metrics.gates += gates
        return gates
