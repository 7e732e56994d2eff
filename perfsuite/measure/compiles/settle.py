"""Making a call ready: `settle` runs it until nothing compiles; `agreed_run` repeats it until two runs do the same."""

import contextlib
import gc
import warnings
from collections.abc import Callable, Iterator
from typing import TypeVar

import jax
import numpy as np

from perfsuite.measure import progress
from perfsuite.measure.call import Call, check_flattens, leaves_with_paths, refuse_ended, text_of_array
from perfsuite.measure.compiles import compiles
from perfsuite.measure.errors import MeasurementError, RecompilationError, SignatureWarning
from perfsuite.measure.switches import switches_first

_MOST_RUNS = 3

FEWEST_RUNS = 3
"""The first run after warming may fill a cache still."""

T = TypeVar("T")


class WarmFunction:
    """What `warm` returns: a call of it is measured as a call of `fn`."""

    fn: Callable


def unwrapped(fn: Callable) -> Callable:
    """The function itself, where `fn` is what `warm` returned."""
    return fn.fn if isinstance(fn, WarmFunction) else fn


@contextlib.contextmanager
def borrowed(call: Call) -> Iterator[Call]:
    """A call to run in place of `call`, with the same arguments, of the function behind `warm`.

    When the context closes, also after an error, `call` gets the arguments that were carried last.
    """
    subject = Call(unwrapped(call.fn), call.args, call.kwargs, call.carry)
    try:
        yield subject
    finally:
        call.take_over(subject)


@contextlib.contextmanager
def collector_off() -> Iterator[None]:
    """Collect no garbage inside: a collection takes milliseconds, and its finalizers make calls."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def settle(call: Call, where: str = "", before: Callable[[Call], None] | None = None) -> list[compiles.Compiles]:
    """Run a call until a run compiles nothing, and wait: once, or two or three times where it carries, and moves on.

    Gives what compiled in each run; `before` gets the call before each of them. Raises `MeasurementError` for arguments
    that were donated before or cannot be used again, and for a carrying call that compiles in every run.
    """
    __tracebackhide__ = True
    refuse_deleted(call, where)
    first = _carried_arrays(call) if call.carry else {}
    runs: list[compiles.Compiles] = []
    while len(runs) < _MOST_RUNS:
        last = _carried_arrays(call) if call.carry else {}
        if before is not None:
            before(call)
        runs.append(watch := run_once(call))
        if donated := _deleted_arrays(call):
            why = f"so the call cannot run again. Carry what it returns in its place: call({call.label}, ..., carry=n)"
            if call.carry:
                why = f"which carry={call.carry} does not replace. Carry more outputs, or do not donate it"
            raise MeasurementError(f"{where}{call.label} donates {donated}, {why}")
        compiled = watch.compiles if compiles.TRACING_ON_PURPOSE.get() else watch.events
        if not call.carry or (len(runs) > 1 and not compiled):
            if last != first:
                _warn_of_another_carry(call, first, last)
            return runs
    raise MeasurementError(f"{where}{call.label} compiled in each of {_MOST_RUNS} runs{_what_compiles(call)}")


def run_once(call: Call) -> compiles.Compiles:
    """Run a call, wait, and give what compiled."""
    __tracebackhide__ = True
    arguments = call.args, call.kwargs
    # Nothing is timed here, and on an accelerator the first run may compile for minutes.
    with progress.waiting(f"warming {call.label}"), compiles.open_context(compiles.Compiles()) as watch:
        outputs = call.run()
        check_flattens(f"what {call.label} returns", outputs, "return its arrays in its place")
        after = jax.tree.leaves(arguments)  # the call may have put arrays into them
        if any(isinstance(leaf, Iterator) for leaf in after):
            refuse_ended((), dict(leaves_with_paths(*arguments)), call.label)
        arrays = [leaf for leaf in (*jax.tree.leaves(outputs), *after) if isinstance(leaf, jax.Array)]
        jax.block_until_ready([array for array in arrays if not array.is_deleted()])
    return watch


def _what_compiles(call: Call) -> str:
    """What stops a further run that may not compile, in its own words: which function, where, and why."""
    try:
        with compiles.forbid():
            call.run()
    except RecompilationError as error:
        return f":\n{error}"
    except Exception:  # a run that was stopped half-way may stop elsewhere
        return ""
    return ""


def _carried_arrays(call: Call) -> dict[str, str]:
    """Shape and dtype of the arrays that the next run takes from the last one, by path."""
    return {path: text_of_array(leaf) for path, leaf in call.state() if isinstance(leaf, jax.Array | np.ndarray)}


def _warn_of_another_carry(call: Call, first: dict[str, str], last: dict[str, str]) -> None:
    """Warn where a carried argument has another shape or dtype than in the first run: another call is measured."""
    changes = [f"  {path} was {first[path]}, is {text}" for path, text in last.items() if first.get(path, text) != text]
    if changes:
        lines = [f"call({call.label}, ..., carry={call.carry}): from the second run on it has other arguments:"]
        lines += [*changes[:6], "  Are the outputs that it carries those that are to replace these arguments?"]
        warnings.warn("\n".join(lines), SignatureWarning, stacklevel=3)


def refuse_deleted(call: Call, where: str = "") -> None:
    """Raise `MeasurementError` where arrays of a call are deleted."""
    if donated := _deleted_arrays(call):
        raise MeasurementError(
            f"{where}call({call.label}, ...) cannot run: {donated} was deleted, because an earlier call donated it. "
            f"Make the state anew for each call, call({call.label}, *make_state(), ...), or let one call carry it, "
            "call(fn, ..., carry=n)"
        )


def _deleted_arrays(call: Call) -> str:
    """The paths of arguments whose arrays are deleted, as text; empty if there are none."""
    leaves = jax.tree.leaves((call.args, call.kwargs))
    if not any(isinstance(leaf, jax.Array) and leaf.is_deleted() for leaf in leaves):
        return ""
    named = leaves_with_paths(call.args, call.kwargs)
    paths = [path for path, leaf in named if isinstance(leaf, jax.Array) and leaf.is_deleted()]
    return ", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")


def agreed_run(run: Callable[[], T], counts: Callable[[T], tuple[int, ...]], differs: str, *, exact: bool = True) -> T:
    """Run until two runs in a row have the same counts, and return the last of them.

    So neither what fills a cache counts, nor what happens once by chance. The least of all runs would also leave out
    what the call does every second time: where the counts alternate, this is the larger of the two.

    Raises `MeasurementError`, which begins with `differs`, where three runs in a row all differ; with `exact=False` it
    returns the least of them. It ends after five runs at most.
    """
    __tracebackhide__ = True

    def size(counted: T) -> tuple[int, tuple[int, ...]]:
        return sum(counts(counted)), counts(counted)

    runs = [run() for _ in range(FEWEST_RUNS)]
    while True:
        values = [counts(each) for each in runs]
        if values[-1] == values[-2]:
            return runs[-1]
        if values[-4:-2] == values[-2:]:
            return max(runs[-2:], key=size)
        if len(set(values[-3:])) == 3:
            break
        runs.append(run())
    if exact:
        totals = [sum(each) for each in values]
        shown = ", ".join(map(str, totals if len(set(totals)) > 1 else values))
        why = "a count gates only code that does the same each time"
        raise MeasurementError(switches_first("perf.host_calls", f"{differs} from run to run ({shown}); {why}"))
    return min(runs, key=size)
