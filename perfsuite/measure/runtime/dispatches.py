"""`dispatches`: the compiled programs that one warm call runs, by name and by the user's line.

Twice the programs is twice the work of the device, and no gate of a single program sees it. The count has no noise, so
any increase is a change of code.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable

import jax

from perfsuite.measure.call import Call
from perfsuite.measure.compiles import callsite, compiles
from perfsuite.measure.compiles.warmup import borrowed, settle
from perfsuite.measure.metric import Metric
from perfsuite.measure.private.program_runs import ProgramRun, observing_programs
from perfsuite.measure.runtime.repeats import agreed
from perfsuite.measure.words import plural

PROGRAMS_KEPT = 12
"""How many programs a metric names."""
LINES_NAMED = 3
"""How many lines a message names for each program."""

SUFFIXES = " dispatches", " eager operations"

MOVE_IN = "each operation outside jit is a program of its own: do it inside the jitted function"


@dataclasses.dataclass(frozen=True)
class Dispatch:
    """One run of a compiled program, by the user's `file:line`. `eager` is an operation of JAX's, outside any jit."""

    program: str
    location: str
    eager: bool


@dataclasses.dataclass(frozen=True)
class Dispatches:
    """The programs that one warm call runs. `by_program` has those of jitted functions, `by_operation` the eager ones.

    Both map a name to its runs, the most first.
    """

    label: str
    runs: tuple[Dispatch, ...]

    @property
    def total(self) -> int:
        """Programs of jitted functions and eager operations together."""
        return len(self.runs)

    @property
    def jitted(self) -> int:
        """Runs of jitted functions' programs."""
        return sum(self.by_program.values())

    @property
    def eager_operations(self) -> int:
        """Runs of operations outside any jitted function."""
        return sum(self.by_operation.values())

    @property
    def by_program(self) -> dict[str, int]:
        """The runs of each jitted function's program, the most first."""
        return _most(run.program for run in self.runs if not run.eager)

    @property
    def by_operation(self) -> dict[str, int]:
        """The runs of each eager operation, the most first."""
        return _most(run.program for run in self.runs if run.eager)

    def places(self, *, eager: bool) -> dict[str, str]:
        """The lines that run each program, the one that runs it most often first."""
        lines: dict[str, Counter[str]] = {}
        for run in self.runs:
            if run.eager == eager:
                lines.setdefault(run.program, Counter())[run.location] += 1
        return {program: _in_words(counts) for program, counts in lines.items()}

    def metrics(self, name: str) -> list[Metric]:
        """Two counts, of jitted functions and of eager operations, each with its programs as detail."""
        made = []
        for suffix, runs, eager in zip(SUFFIXES, (self.by_program, self.by_operation), (False, True), strict=True):
            kept = dict(list(runs.items())[:PROGRAMS_KEPT])
            places = {program: place for program, place in self.places(eager=eager).items() if program in kept}
            value, unit = sum(runs.values()), "operations" if eager else "programs"
            made.append(Metric(name + suffix, value, unit, "count", detail=kept or None, places=places or None))
        return made

    def __str__(self) -> str:
        said = []
        for title, runs, eager in (("", self.by_program, False), ("eager: ", self.by_operation, True)):
            places = self.places(eager=eager)
            parts = ", ".join(f"{program} ({count}) at {places[program]}" for program, count in runs.items())
            said += [title + parts] if parts else []
        return "; ".join(said) + (f"\n  {MOVE_IN}" if self.eager_operations else "")


def dispatches(call: Call) -> Dispatches:
    """Count the programs that `call` runs, in any thread, until its outputs are ready.

    Takes what two runs in a row after warming agree on; where every second run runs more programs, the more. Raises
    `MeasurementError` when none agree, because the code under test then does something else each time.
    """
    __tracebackhide__ = True
    seen: list[Dispatch] = []

    def observe(run: ProgramRun) -> None:
        seen.append(Dispatch(run.name, callsite.location(run.frame), run.operation))

    def once() -> Dispatches:
        seen.clear()
        jax.block_until_ready(subject.run())
        return Dispatches(call.label, tuple(seen))

    # Warmed inside too: a thread that traces a function while nobody observes may not be heard later.
    with borrowed(call) as subject, observing_programs(observe):
        settle(subject)
        with compiles.steady_state():
            return agreed(
                once,
                lambda counted: (counted.jitted, counted.eager_operations),
                f"{call.label}: the number of programs differs",
            )


def _most(programs: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(programs).items(), key=lambda item: (-item[1], item[0])))


def _in_words(lines: Counter[str]) -> str:
    ordered = sorted(lines.items(), key=lambda item: (-item[1], item[0]))
    named = [f"{line} ({plural(count, 'time')})" if count > 1 else line for line, count in ordered[:LINES_NAMED]]
    more = len(ordered) - LINES_NAMED
    return ", ".join(named) + (f" and {plural(more, 'more line')}" if more > 0 else "")
