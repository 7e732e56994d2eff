"""Waiting for the device without the host's own work getting into the metric.

`jax.block_until_ready(outputs)` first flattens `outputs`, and for an Equinox module that is Python code: 0.35 ms for
the 600 arrays of a BERT-base train state, as much as the step's own host work. So the timed part waits for one array
of each program, which it reaches by attribute and index, and the harness waits for the rest outside the timed part.
"""

import operator
import statistics
import warnings
from collections.abc import Callable
from typing import Any

import jax

from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.private.capabilities import PROGRAM_RUNS
from perfsuite.measure.runtime.program_outputs import Running, outputs_seen, running_seen
from perfsuite.measure.timing.clock import now_ns

_TRIES = 10
_SLOW_TRIES = 3
LEFT = 0.1
"""The share of its time that a call may leave to its programs when it has returned, and nothing can wait for them."""
SLOW_NS = 50_000_000
"""From here on (50 ms a call) the host's own work is under 1 %, and measuring it would take seconds."""

_MOST_WAITED_FOR = 8
"""Arrays that the timed part waits for, each of another program, where one is not enough."""


class _WaitForSome:
    """Waits for the arrays at paths of attributes and indices. `depth` has the number of steps of each.

    For all outputs of a run whose outputs have other places.
    """

    def __init__(self, paths: list["_Steps"]):
        self.paths = paths
        self.depth = tuple(map(len, paths))

    def __call__(self, outputs: Any) -> None:
        try:
            for steps in self.paths:
                _at(steps, outputs).block_until_ready()
        except (AttributeError, KeyError, IndexError, TypeError):
            jax.block_until_ready(outputs)


def wait_for_nothing(outputs: Any) -> None:
    """For outputs without an array."""


def waiting_for(run: Callable[[], Any], label: str = "the call") -> Callable[[Any], None]:
    """Choose how to wait for the outputs of `run`, which this calls a few times and which must be warm.

    The function returned takes the outputs of one run, in the timed part. What it costs on outputs that are ready is
    the harness's own cost. Where it has a `depth`, it waits for one array of each program that the call runs: all that
    a program puts out is ready at once. Where this jax does not tell which programs run, it waits for all outputs.

    Raises `MeasurementError` where it returns no array, and its programs go on: nothing could wait for them; and
    `CapabilityLost` where it returns none, and nobody can tell.
    """
    if PROGRAM_RUNS.lost():
        if not _arrays_in(jax.block_until_ready(run())):  # its programs may go on, unseen
            PROGRAM_RUNS.check(f"timing {label}, which returns no array,")
        PROGRAM_RUNS.falls_back("times include waiting for every output of a call, and not for programs that it leaves")
        return jax.block_until_ready
    before = _arrays_in(jax.block_until_ready(run()))
    if not before:
        _refuse_left_running(run, label)
        return wait_for_nothing
    started = now_ns()
    with outputs_seen() as seen:
        outputs = run()
    jax.block_until_ready(outputs)
    slow = now_ns() - started > SLOW_NS
    arrays, programs = _arrays_in(outputs), seen.programs()
    passed_on = {id(array) for _, array in before}  # what the call was given is ready
    found: dict[object, list[_Steps]] = {}
    for path, array in arrays:
        if id(array) not in passed_on:
            reached = found.setdefault(programs.get(id(array), f"of no program: {id(array)}"), [])
            if (steps := _steps_to(array, path, outputs)) is not None:
                reached.append(steps)
    if not found:
        _refuse_left_running(run, label)
        return wait_for_nothing
    alike = [path for path, _ in before] == [path for path, _ in arrays]
    if slow or not alike or not all(found.values()) or len(found) > _MOST_WAITED_FOR:
        return jax.block_until_ready
    return _WaitForSome([reached[-1] for reached in found.values()])


def _arrays_in(outputs: Any) -> list[tuple[tuple[Any, ...], jax.Array]]:
    """The arrays with their paths. Of outputs that the next run changes they are those of now."""
    leaves = jax.tree_util.tree_flatten_with_path(outputs)[0]
    return [(path, leaf) for path, leaf in leaves if isinstance(leaf, jax.Array)]


def _refuse_left_running(run: Callable[[], Any], label: str) -> None:
    """Raise `MeasurementError` where programs of `run` go on, for a good part of what it takes, when it has returned.

    The median of a few tries: of a program whose result `float` has read one in three still seemed to run for a moment
    (2-core x86-64 machine). Programs of other threads, which may not be the call's, have to be seen in every try.
    """
    shares: list[float] = []
    always_elsewhere = True
    while len(shares) < _TRIES:
        started = now_ns()
        with running_seen() as running:
            run()
        always_elsewhere = always_elsewhere and running.elsewhere()
        goes_on = goes_on_ns(running)
        took = max(1, now_ns() - started)
        shares.append(goes_on / took)
        left = always_elsewhere or statistics.median(shares) > LEFT
        if took > SLOW_NS and (not left or len(shares) == _SLOW_TRIES):
            break
    if left:
        raise MeasurementError(
            f"{label} returns no array of its own, and its programs go on when it has returned. Nothing can wait for "
            "them, so its times say nothing: return an array of it, such as its loss or its new state"
        )


def goes_on_ns(running: Running) -> int:
    """For how long programs that this thread ran go on from now, which this waits for; 0 where none does."""
    if not running.here():
        return 0
    began = now_ns()
    running.wait()
    return now_ns() - began


_Steps = list[tuple[Callable[[Any, Any], Any], Any]]


def _at(steps: _Steps, outputs: Any) -> jax.Array:
    for step, key in steps:
        outputs = step(outputs, key)
    return outputs


def _steps_to(array: jax.Array, path: tuple[Any, ...], outputs: Any) -> _Steps | None:
    """The attributes and indices that reach an array; None for that of a custom node whose keys do not, or warn."""
    try:
        steps = [_path_step(key) for key in path]
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # it would come again with every block: `nnx.State` warns so
            return steps if _at(steps, outputs) is array else None
    except Exception:  # whatever a property of a custom node raises, or warns of
        return None


def _path_step(key: Any) -> tuple[Callable[[Any, Any], Any], Any]:
    match key:
        case jax.tree_util.GetAttrKey(name=name):
            return getattr, name
        case jax.tree_util.SequenceKey(idx=index) | jax.tree_util.DictKey(key=index):
            return operator.getitem, index
    raise KeyError(key)
