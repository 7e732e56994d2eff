"""`dispatches`: the compiled programs that one warm call runs, by name and by the user's line.

Twice the programs is twice the work of the device, and no gate of a single program sees it. The count has no noise, so
any increase is a change of code.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax

from perfsuite.measure.call import Call
from perfsuite.measure.compiles import callsite
from perfsuite.measure.compiles.compiles import Compiles, steady_state
from perfsuite.measure.compiles.settle import agreed_run, borrowed, settle
from perfsuite.measure.metric import Metric
from perfsuite.measure.private.execution import ProgramRun, observing_programs
from perfsuite.measure.words import plural

if TYPE_CHECKING:
    from perfsuite.measure.program.program import Program  # for types: most calls need no facts

LINES_NAMED = 3
"""How many lines a message names for each program."""

SUFFIXES = " dispatches", " eager operations"

MOVE_IN = "each operation outside jit is a program of its own: do it inside the jitted function"


@dataclasses.dataclass(frozen=True)
class Dispatch:
    """One run of a compiled program, by the user's `file:line`, with the program's facts where they were asked for.

    `eager` is an operation of JAX's, outside any jit.
    """

    program: str
    location: str
    eager: bool
    facts: "Program | None" = None


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
        return sum(not run.eager for run in self.runs)

    @property
    def eager_operations(self) -> int:
        """Runs of operations outside any jitted function."""
        return sum(run.eager for run in self.runs)

    @property
    def by_program(self) -> dict[str, int]:
        """The runs of each jitted function's program, the most first."""
        return {program: lines.total() for program, lines in self._lines(eager=False).items()}

    @property
    def by_operation(self) -> dict[str, int]:
        """The runs of each eager operation, the most first."""
        return {program: lines.total() for program, lines in self._lines(eager=True).items()}

    def places(self, *, eager: bool) -> dict[str, str]:
        """The lines that run each program, the one that runs it most often first."""
        return {program: _in_words(lines) for program, lines in self._lines(eager=eager).items()}

    def metrics(self, name: str) -> list[Metric]:
        """Two counts, of jitted functions and of eager operations, each with its programs as detail."""
        metrics = []
        for suffix, unit, eager in zip(SUFFIXES, ("programs", "operations"), (False, True), strict=True):
            programs = self.by_operation if eager else self.by_program
            places = self.places(eager=eager) or None
            value = sum(programs.values())
            metrics.append(Metric(name + suffix, value, unit, "count", detail=programs or None, places=places))
        return metrics

    def of_budget(self, name: str) -> list[Metric]:
        """All programs as one count, as `Budget(dispatches=)` has them, and the eager operations among them."""
        jitted, eager = self.metrics(name)
        parts = Counter(jitted.detail) + Counter(eager.detail)
        places = self.places(eager=True) | self.places(eager=False)
        return [dataclasses.replace(jitted, value=self.total, detail=parts, places=places), eager]

    def __str__(self) -> str:
        kinds = []
        for title, eager in (("", False), ("eager: ", True)):
            programs = self._lines(eager=eager).items()
            parts = [f"{program} ({lines.total()}) at {_in_words(lines)}" for program, lines in programs]
            kinds += [title + ", ".join(parts)] if parts else []
        return "; ".join(kinds) + (f"\n  {MOVE_IN}" if self.eager_operations else "")

    def _lines(self, *, eager: bool) -> dict[str, Counter[str]]:
        """How often each line runs each program, the program that runs most often first."""
        programs: dict[str, Counter[str]] = {}
        for run in self.runs:
            if run.eager == eager:
                programs.setdefault(run.program, Counter())[run.location] += 1
        return dict(sorted(programs.items(), key=lambda item: (-item[1].total(), item[0])))


def dispatches(call: Call, facts_of: Callable[[ProgramRun], "Program | None"] = lambda run: None) -> Dispatches:
    """Count the programs that `call` runs, in any thread, until its outputs are ready.

    `facts_of` gives the `facts` of each run while it is observed. Takes what two runs in a row after warming agree on;
    where every second run runs more programs, the more. Raises `MeasurementError` when none agree, because the code
    under test then does something else each time.
    """
    __tracebackhide__ = True
    runs: list[Dispatch] = []

    def observe(run: ProgramRun) -> None:
        with Compiles().building_inputs():
            facts = facts_of(run)
        runs.append(Dispatch(run.name, callsite.location(run.frame), run.operation, facts))

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


def _in_words(lines: Counter[str]) -> str:
    ordered = sorted(lines.items(), key=lambda item: (-item[1], item[0]))
    named = [f"{line} ({plural(count, 'time')})" if count > 1 else line for line, count in ordered[:LINES_NAMED]]
    more = len(ordered) - LINES_NAMED
    return ", ".join(named) + (f" and {plural(more, 'more line')}" if more > 0 else "")
