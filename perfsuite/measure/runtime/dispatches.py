"""`dispatches`: the compiled programs that one warm call runs, by name and by the user's line.

Twice the programs is twice the work of the device, and no gate of a single program sees it. The count has no noise, so
any increase is a change of code.
"""

import dataclasses
from collections import Counter

import jax

from perfsuite.measure.call import Call
from perfsuite.measure.compiles import callsite
from perfsuite.measure.compiles.compiles import steady_state
from perfsuite.measure.compiles.settle import agreed_run, borrowed, settle
from perfsuite.measure.metric import Metric
from perfsuite.measure.private.execution import ProgramRun, observing_programs
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
        return self.total - self.eager_operations

    @property
    def eager_operations(self) -> int:
        """Runs of operations outside any jitted function."""
        return sum(run.eager for run in self.runs)

    @property
    def by_program(self) -> dict[str, int]:
        """The runs of each jitted function's program, the most first."""
        return self._counts(eager=False)

    @property
    def by_operation(self) -> dict[str, int]:
        """The runs of each eager operation, the most first."""
        return self._counts(eager=True)

    def places(self, *, eager: bool) -> dict[str, str]:
        """The lines that run each program, the one that runs it most often first."""
        lines: dict[str, Counter[str]] = {}
        for run in self.runs:
            if run.eager == eager:
                lines.setdefault(run.program, Counter())[run.location] += 1
        return {program: _in_words(_most_first(counts)) for program, counts in lines.items()}

    def metrics(self, name: str) -> list[Metric]:
        """Two counts, of jitted functions and of eager operations, each with its programs as detail."""
        metrics = []
        for suffix, unit, eager in zip(SUFFIXES, ("programs", "operations"), (False, True), strict=True):
            counts, places = self._counts(eager=eager), self.places(eager=eager)
            detail = dict(list(counts.items())[:PROGRAMS_KEPT])
            named = {program: places[program] for program in detail}
            value = sum(counts.values())
            metrics.append(Metric(name + suffix, value, unit, "count", detail=detail or None, places=named or None))
        return metrics

    def __str__(self) -> str:
        kinds = []
        for title, eager in (("", False), ("eager: ", True)):
            places = self.places(eager=eager)
            parts = [
                f"{program} ({count}) at {places[program]}" for program, count in self._counts(eager=eager).items()
            ]
            kinds += [title + ", ".join(parts)] if parts else []
        return "; ".join(kinds) + (f"\n  {MOVE_IN}" if self.eager_operations else "")

    def _counts(self, *, eager: bool) -> dict[str, int]:
        return _most_first(Counter(run.program for run in self.runs if run.eager == eager))


def dispatches(call: Call) -> Dispatches:
    """Count the programs that `call` runs, in any thread, until its outputs are ready.

    Takes what two runs in a row after warming agree on; where every second run runs more programs, the more. Raises
    `MeasurementError` when none agree, because the code under test then does something else each time.
    """
    __tracebackhide__ = True
    runs: list[Dispatch] = []

    def observe(run: ProgramRun) -> None:
        runs.append(Dispatch(run.name, callsite.location(run.frame), run.operation))

    def once() -> Dispatches:
        runs.clear()
        jax.block_until_ready(subject.run())
        return Dispatches(call.label, tuple(runs))

    # Warmed inside too: a thread that traces a function while nobody observes may not be heard later.
    with borrowed(call) as subject, observing_programs(observe):
        settle(subject)
        with steady_state():
            return agreed_run(
                once,
                lambda counted: (counted.jitted, counted.eager_operations),
                f"{call.label}: the number of programs differs",
            )


def _most_first(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _in_words(lines: dict[str, int]) -> str:
    named = [f"{line} ({plural(count, 'time')})" if count > 1 else line for line, count in lines.items()]
    more = len(named) - LINES_NAMED
    return ", ".join(named[:LINES_NAMED]) + (f" and {plural(more, 'more line')}" if more > 0 else "")
