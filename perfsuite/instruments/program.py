"""`perf.program`: the facts of a compiled program, for this device or for one that is not present."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from perfsuite.gate import messages
from perfsuite.gate.advice import SELECTED
from perfsuite.gate.baseline import Entry, digest
from perfsuite.gate.budget import Budget, BudgetExceeded
from perfsuite.gate.verdict import Evidence, Result, Verdict
from perfsuite.instruments.base import NO_BUDGET, Instrument, declare
from perfsuite.measure.call import Call, checked
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.metric import Metric, title
from perfsuite.measure.private import capabilities
from perfsuite.measure.program.compilation import compile_call, kept_program
from perfsuite.measure.program.lowering import HostCallbackError, runs_as_one
from perfsuite.measure.program.program import Program
from perfsuite.measure.program.program_diff import program_differences
from perfsuite.measure.program.program_metrics import (
    FACTS,
    alive_at_peak,
    gated_facts,
    metrics_of,
    named_places,
    places_of,
    why_no_time,
)
from perfsuite.measure.runtime.programs import program_of_all
from perfsuite.measure.targets import cache as facts_cache
from perfsuite.measure.targets.target_compiler import CompileFailed, TargetUnavailable
from perfsuite.measure.words import leaf_lines
from perfsuite.session.recorder import Measured
from perfsuite.session.records import ProgramRecord, timeline_of

PROGRAM = declare(
    "perf.program",
    {
        "peak_bytes": "device memory at the compiled program's peak",
        "estimated_us": "estimated time of one run of the compiled program",
    },
)

_FOR_A_TARGET = (capabilities.LOWERING, capabilities.ABSENT_COMPILERS)


class ProgramInstrument(Instrument):
    def program(
        self,
        call: Call,
        target: str | None = None,
        *,
        chips: int | None = None,
        slices: int = 1,
        budget: Budget = NO_BUDGET,
        name: str | None = None,
    ) -> Program:
        """Compile a call without running it, and record its program's facts: FLOPs, bytes, fusions, collectives.

        A call of a function that is not jitted runs, warm, and the facts are the sum over all programs that it runs.

        `target` names a device that need not be present, such as "tpu-v5e" or "gpu-h100"; None is the present one. A
        sharded program (its arguments lie on a mesh, or are `jax.ShapeDtypeStruct`s with shardings) is compiled for as
        many devices of the target as its mesh has, in a slice of `chips` chips (or so many GPUs) or the smallest that
        has them. With `slices` the chips are in as many slices, which the network joins: the outermost axis of the mesh
        leads from slice to slice, and collectives that leave their slice are counted apart. The metrics of a target are
        gated by the target's own baseline file. `Budget(peak_bytes=)` limits the memory, and
        `Budget(estimated_us=)` the estimated time of one run.

        A program that the compiler refuses, because it needs more memory than there is, fails as a budget does. Where
        the target's compiler is not installed the test is skipped, and fails if it has baselines for the target.
        """
        __tracebackhide__ = True
        limits = self._begin(PROGRAM, budget)
        for capability in _FOR_A_TARGET if target is not None else ():
            capability.check("perf.program for a target")
        call = checked(call, "perf.program")
        # perf.warm has compile seconds of the function, too.
        suffixes = " flops", " compile seconds"
        measured = self._recorder.measured("program", call.label, *suffixes, name=name, target=target)
        label = measured.name
        self._judge.baselines_of(target)  # a damaged file is an error before minutes of compiling
        program, kept = self._compiled(call, target, label, chips=chips, slices=slices)
        program = dataclasses.replace(program, label=label)
        self._record_program(kept, program, measured)
        if "peak_bytes" in limits:
            peak = self._recorder.metrics[title(f"{label} peak bytes", target)]
            self._recorder.check_budget(peak, limits["peak_bytes"], lambda: alive_at_peak(program))
        if "estimated_us" in limits:
            if program.estimated_us is None:
                raise MeasurementError(f"Budget(estimated_us=): not known of {label}{why_no_time(program)}")
            estimated = self._recorder.metrics[title(f"{label} estimated us", target)]
            self._recorder.check_budget(estimated, limits["estimated_us"], lambda: _slowest(program))
        return program

    def _compiled(self, call: Call, target: str | None, label: str, **where: Any) -> tuple[Program, Mapping[str, Any]]:
        """The program, and what to keep of it for a comparison with a later one: nothing of several programs."""
        __tracebackhide__ = True
        cache = self._session.cache if target is None else self._session.target_cache
        try:
            if not runs_as_one(call):
                capabilities.PROGRAM_RUNS.check("perf.program of a function that is not jitted")
                return program_of_all(call, target, cache=cache, **where), {}
            compilation = compile_call(call, target, cache=cache, **where)
            return compilation.program(), compilation.to_dict()
        except TargetUnavailable as error:
            assert target is not None
            self._recorder.uninstalled[target] = str(error)
            raise capabilities.CapabilityLost(str(error), "") from None
        except (CompileFailed, HostCallbackError) as error:
            refused = _refusal(self._test, label, target, error)
        # Not inside the handler: that would print the source of perfsuite and of jax above the reason.
        self._recorder.apply([refused])
        raise BudgetExceeded(refused.note)  # also where nothing gates: there is no program

    def _record_program(self, kept: Mapping[str, Any], program: Program, measured: Measured) -> None:
        """Record the metrics; the one that matters most says how the program differs from that of the baseline.

        When baselines are saved, what the compiler said goes into the cache under the name of test and program, so that
        a later failure on the same machine can show what is different. The baseline file has the parts of metrics only.
        """
        if program.cached:
            self._recorder.cached += 1
        else:
            self._recorder.compiled += 1
        self._recorder.unestimated += named_places(program.unestimated)
        metrics = measured.metrics(metrics_of(program))
        why = f": {messages.without_estimate(named_places(program.unestimated))}" if program.unestimated else ""
        for what in FACTS:
            reason = ": data-dependent loops" if what in ("launches", "sequential steps") and program.at_least else why
            reason = why_no_time(program) if what in ("estimated us", "waiting us") else reason
            self._recorder.unknown[measured.id_of(what), program.target] = f"not known of this program{reason}"
            self._recorder.unknown[measured.id_of(f"known {what}"), program.target] = "known as a whole by now"
        gravest = self._recorder.gravest(metrics)
        entries = self._judge.entries(self._test, program.target)
        for metric in metrics:
            entry = entries.get(metric.id)
            gone = (entry.detail or {}).keys() - (metric.detail or {}).keys() if entry is not None else set()
            # Of what is gone, only a conditional has a place: that of the select in its function.
            causes = [SELECTED] if gone & (metric.places or {}).keys() else []
            wide = metric.id == measured.id_of("float64 operations") and entry is not None and not entry.value
            if wide and not self._judge.environment.x64:
                causes.append("64-bit types are on (jax_enable_x64), and this session began without them")
            before = self._baseline_program(program, measured) if metric is gravest else None
            if metric is gravest:
                causes += _lost_shardings(entries.get(measured.id_of("shards")), program)
            self._recorder.add(
                metric, evidence=Evidence("\n".join(causes), program=_difference_lines(before, program)), once=True
            )
        if self._session.options.report is not None:
            self._recorder.programs.append(self._program_record(program, measured, metrics))
        key = self._program_key(program, measured)
        keep = functools.partial(facts_cache.write, self._session.cache, key, kept)
        self._recorder.when_saved(keep)

    def _program_record(self, program: Program, measured: Measured, metrics: Sequence[Metric]) -> ProgramRecord:
        same = self._is_recorded(program, measured)
        before = None if same else self._baseline_program(program, measured)
        lines = _difference_lines(before, program)
        return ProgramRecord(
            program.label,
            program.target,
            program.device_kind,
            program.compiler,
            program.partitions,
            program.cached,
            tuple(metric.title for metric in metrics),
            compared=same or bool(lines),
            differences=lines,
            at_least=places_of(program.at_least),
            at_most=named_places(program.at_most),
            unestimated=named_places(program.unestimated),
            timeline=timeline_of(program),
            timeline_before=None if before is None else timeline_of(before),
        )

    def _baseline_program(self, program: Program, measured: Measured) -> Program | None:
        """The program of the baseline; None where the cache lacks it, or the baseline was saved elsewhere since."""
        before = kept_program(facts_cache.read(self._session.cache, self._program_key(program, measured)))
        return before if before is not None and self._is_recorded(before, measured) else None

    def _is_recorded(self, program: Program, measured: Measured) -> bool:
        """Whether every gated fact of a program is as the baseline has it."""
        entries = self._judge.entries(self._test, program.target)
        recorded = {id: entry.value for id, entry in entries.items()}
        return all(recorded.get(measured.id_of(what)) == value for what, value in gated_facts(program).items())

    def _program_key(self, program: Program, measured: Measured) -> str:
        test = self._judge.key(self._test)
        return facts_cache.key_of_baseline(test, measured.id, program.target, self._judge.device)


def _difference_lines(before: Program | None, after: Program) -> tuple[str, ...]:
    return tuple(line.strip() for line in program_differences(before, after).splitlines()) if before else ()


def _lost_shardings(before: Entry | None, program: Program) -> list[str]:
    """The arguments and outputs of which a device had fewer elements when the baseline was saved: a line each."""
    recorded, lines = (before and before.detail) or {}, []
    remedies = (
        (program.argument_sizes, "jax.device_put(x, sharding), or in_shardings="),
        (program.output_sizes, "out_shardings="),
    )
    for sizes, remedy in remedies:
        for path in sizes:
            count, now = recorded.get(path, recorded.get(digest(path), 1)), program.shards.get(path, 1)
            state = "whole on each device" if now == 1 else f"in {now:,}"
            if now < count:
                lines.append((path, f"in {count:,} shards before, {state} now: {remedy}"))
    return [f"{place}: {what}" for place, what in leaf_lines(lines)]


def _refusal(test: str, label: str, target: str | None, error: CompileFailed | HostCallbackError) -> Result:
    """The gate of a program that the compiler refuses: it fails as one over its budget does, for the error's reason."""
    if isinstance(error, HostCallbackError):
        metric = Metric(f"{label} host transfers", error.calls, "transfers", "count", target=target)
    else:
        metric = Metric(f"{label} refused", 1, "programs", "count", target=target)
    return Result(test, metric, Verdict.FAIL, "budget", limit=0, note=str(error))


def _slowest(program: Program) -> str:
    """The operations that take most of the estimated time."""
    slowest = sorted(program.operations, key=lambda operation: -operation.total_us)[:3]
    return ", ".join(f"{each.what} at {each.where} takes {each.total_us:,.4g} us" for each in slowest)
