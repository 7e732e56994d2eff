"""What `perf.stays_async`, `perf.stalls` and `perf.fast_path` need of gates: what fails, what stays open, the words.

What waits or stalls is held by a limit of 0 that needs no baseline. A verdict that could not be reached is left open
and says what would settle it: it never passes by luck.
"""

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfsuite.measure.compiles.fastpath import FastPath
    from perfsuite.measure.timing.asynchrony import Asynchrony
    from perfsuite.measure.timing.stalls import Stalls
    from perfsuite.session.recorder import Recorder


def judge_asynchrony(metrics: "Recorder", name: str, made: "Asynchrony") -> None:
    """Record the share, and raise `BudgetExceeded` where the call waits."""
    __tracebackhide__ = True
    from perfsuite.measure.timing.asynchrony import EARLY

    share, *waits = made.metrics(name)
    metrics.record(share)
    if not waits:
        metrics.leave_open(
            metrics.budget_gate(share, EARLY), note=f"{name} may or may not wait for the device: {made.reason}"
        )
        return
    gate = metrics.budget_gate(waits[0], 0)
    if gate.failed:
        at = made.where[0] if made.where else "a place that was not seen"
        said = f"{name} waits for the device before it returns: it {made}, asleep for {made.asleep:.0%} of it"
        _fail(metrics, said, f"it waits at {at}", *(f"it was also seen at {place}" for place in made.where[1:]))


def judge_stalls(metrics: "Recorder", name: str, made: "Stalls") -> None:
    """Record the stalls and the longest call, and raise `BudgetExceeded` where stalls repeat."""
    __tracebackhide__ = True
    stalls, longest = made.metrics(name)
    metrics.record(longest)
    gate = metrics.budget_gate(stalls, 0)
    held_up = f"; the machine held up {made.machine} more" if made.machine else ""
    if made.repeats and gate.failed:
        seen = [f"meanwhile it was at {place}" for place in made.where]
        _fail(metrics, f"{name}: {made}{held_up}", *(seen or ["where was not seen: C code that keeps Python's lock"]))
    elif made.stalls:
        at = f", at {made.where[0]}" if made.where else ""
        once = "one can be the machine's: run it again, or allow more --perf-seconds"
        if made.count > 1 and not made.repeats:
            once = "this system does not tell what the machine held up, and fewer than two were seen: run it again"
        metrics.leave_open(gate, note=f"{name}: {made}{at}{held_up}; {once}")
    elif not made.enough:
        metrics.leave_open(gate, note=f"{name}: {made}{held_up}; {_too_few(made)}")


def judge_misses(metrics: "Recorder", name: str, made: "FastPath", limits: dict[str, float]) -> None:
    """Record the misses; against a baseline any more fail. Raises `BudgetExceeded` for more than the budget."""
    __tracebackhide__ = True
    (misses,) = made.metrics(name)
    metrics.record(misses)
    if made.misses:
        metrics.causes[misses.title] = str(made)
    if "fast_path_misses" in limits:
        metrics.check_budget(misses, limits["fast_path_misses"], lambda: str(made))


def _too_few(made: "Stalls") -> str:
    from perfsuite.measure.timing.stalls import ENOUGH

    # The calls that the machine held up say nothing of the code.
    needed = 1 + int(made.seconds / max(1, made.calls - made.machine) * ENOUGH * 1.1)
    return f"a stall in one of a hundred shows for certain in {ENOUGH}: --perf-seconds={needed}"


def _fail(metrics: "Recorder", reason: str, *lines: str) -> None:
    """Let the gate that was applied last say `reason`, and raise `BudgetExceeded` with it."""
    __tracebackhide__ = True
    gate = metrics.gates[-1] = dataclasses.replace(metrics.gates[-1], verdict="fail", note=reason)
    metrics.fail(gate, "\n".join(lines))
