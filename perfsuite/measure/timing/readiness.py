"""Waiting for the device without the host's own work getting into the metric.

`jax.block_until_ready(outputs)` first flattens `outputs`, and for an Equinox module that is Python code: 0.35 ms for
the 600 arrays of a BERT-base train state, as much as the step's own host work. So the timed part waits for one array
of each program, which it reaches by attribute and index, and the harness waits for the rest outside the timed part.
"""

import operator
import warnings
from collections.abc import Callable
from typing import Any

import jax

from perfsuite.measure.compat.program_runs import is_ready, keeping_outputs
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.timing.clock import now_ns

_TRIES = 10
SLOW_NS = 50_000_000
"""From here on (50 ms a call) the host's own work is under 1 %, and measuring it would take seconds."""

_MOST_WAITED_FOR = 8
"""Arrays that the timed part waits for, each of another program, where one is not enough."""


class _WaitForSome:
    """Waits for the arrays at paths of attributes and indices. `depth` has the number of steps of each."""

    def __init__(self, paths: list["_Steps"]):
        self.paths = paths
        self.depth = tuple(map(len, paths))

    def __call__(self, outputs: Any) -> None:
        for steps in self.paths:
            _at(steps, outputs).block_until_ready()


def wait_for_nothing(outputs: Any) -> None:
    """For outputs without an array."""


def waiting_for(run: Callable[[], Any], label: str = "the call") -> Callable[[Any], None]:
    """Choose how to wait for the outputs of `run`, which this calls a few times and which must be warm.

    The function returned takes the outputs of one run, in the timed part. What it costs on outputs that are ready is
    the harness's own cost. Where it has a `depth`, it waits for one array of each program that the call runs: all that
    a program puts out is ready at once. Which array is of which program is seen, and not told from times: on a busy
    machine a second program often seems to be ready with the first.

    Raises `MeasurementError` where it returns no array, and its programs go on: nothing could wait for them.
    """
    before = jax.block_until_ready(run())
    if not any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(before)):
        _refuse_left_running(run, label)
        return wait_for_nothing
    started = now_ns()
    with keeping_outputs() as kept:
        outputs = run()
    jax.block_until_ready(outputs)
    slow = now_ns() - started > SLOW_NS
    programs = {id(leaf): place for place, made in enumerate(kept) for leaf in jax.tree.leaves(made)}
    passed_on = {id(leaf) for leaf in jax.tree.leaves(before)}  # what the call was given is ready
    found: dict[object, list[_Steps]] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(outputs)[0]:
        if isinstance(leaf, jax.Array) and id(leaf) not in passed_on:
            reached = found.setdefault(programs.get(id(leaf), f"of no program: {id(leaf)}"), [])
            if (steps := _steps_to(leaf, path, outputs)) is not None:
                reached.append(steps)
    if not found:
        _refuse_left_running(run, label)
        return wait_for_nothing
    if slow or not all(found.values()) or len(found) > _MOST_WAITED_FOR:
        return jax.block_until_ready
    return _WaitForSome([reached[-1] for reached in found.values()])


def _refuse_left_running(run: Callable[[], Any], label: str) -> None:
    """Raise `MeasurementError` where a program of `run` still goes on when it has returned, seen once in a few tries.

    After a run that waits for its programs none ever does.
    """
    for _ in range(_TRIES):
        started = now_ns()
        with keeping_outputs() as kept:
            run()
        if not all(_is_ready(made) for made in reversed(kept)):
            raise MeasurementError(
                f"{label} returns no array of its own, and its programs go on when it has returned. Nothing can wait "
                "for them, so its times say nothing: return an array of it, such as its loss or its new state"
            )
        if now_ns() - started > SLOW_NS:
            return


def _is_ready(outputs: Any) -> bool:
    """Whether the outputs of one program are ready, as one of them tells; so are those that another one was given."""
    while isinstance(outputs, list | tuple) and outputs:  # at once: to flatten hundreds of arrays takes a while
        outputs = outputs[-1]
    arrays = (leaf for leaf in jax.tree.leaves(outputs) if isinstance(leaf, jax.Array))
    return all(array.is_deleted() or is_ready(array) for array in arrays)


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
    except (AttributeError, KeyError, IndexError, TypeError, Warning):
        return None


def _path_step(key: Any) -> tuple[Callable[[Any, Any], Any], Any]:
    match key:
        case jax.tree_util.GetAttrKey(name=name):
            return getattr, name
        case jax.tree_util.SequenceKey(idx=index) | jax.tree_util.DictKey(key=index):
            return operator.getitem, index
    raise KeyError(key)
