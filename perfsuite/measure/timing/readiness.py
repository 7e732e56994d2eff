"""Waiting for the device without the host's own work getting into the metric.

`jax.block_until_ready(outputs)` first flattens `outputs`, and for an Equinox module that is Python code: 0.35 ms for
the 600 arrays of a BERT-base train state, as much as the step's own host work. So the timed part waits for one array,
which it reaches by attribute and index, and the harness waits for the rest outside the timed part. It checks first
whether all outputs are ready once that array is.
"""

import operator
import warnings
from collections.abc import Callable
from typing import Any

import jax

from perfsuite.measure.compat.program_runs import keeping_outputs
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.timing.clock import now_ns

_TRIES = 5
_NOISE_NS = 20_000
SLOW_NS = 50_000_000
"""From here on (50 ms a call) the host's own work is under 1 %, and measuring it would take seconds."""

_LEFT = 0.1
"""The share of a call's time for which its programs may go on after it, where it returns nothing to wait for."""


class _WaitForOne:
    """Waits for the array at a path of attributes and indices. `depth` is the number of steps into the outputs."""

    def __init__(self, steps: list[tuple[Callable[[Any, Any], Any], Any]]):
        self.steps = steps
        self.depth = len(steps)

    def array_of(self, outputs: Any) -> jax.Array:
        for step, key in self.steps:
            outputs = step(outputs, key)
        return outputs

    def __call__(self, outputs: Any) -> None:
        self.array_of(outputs).block_until_ready()


def wait_for_nothing(outputs: Any) -> None:
    """For outputs without an array."""


def waiting_for(run: Callable[[], Any], label: str = "the call") -> Callable[[Any], None]:
    """Choose how to wait for the outputs of `run`, which this calls a few times and which must be warm.

    Raises `MeasurementError` where it returns no array, and its programs go on: nothing could wait for them.

    The function returned takes the outputs of one run, in the timed part. What it costs on outputs that are ready is
    the harness's own cost. Where it has a `depth`, it waits for one array.
    """
    outputs = jax.block_until_ready(run())
    if not any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(outputs)):
        _refuse_left_running(run, label)
        return wait_for_nothing
    waits = _waits_for_one(outputs)
    # The least of several runs on outputs that are ready is what the waiting itself costs.
    cost_ns = min(_waited_ns(jax.block_until_ready, outputs) for _ in range(20))
    # From here on `outputs` may be deleted: the next run may donate them.
    start = now_ns()
    jax.block_until_ready(run())
    if now_ns() - start > SLOW_NS:
        return jax.block_until_ready
    for wait in waits:
        # The least of several tries: a neighbour on the machine can hold one up, a second program holds up all.
        if min(_left_to_wait_ns(run(), wait) for _ in range(_TRIES)) <= 3 * cost_ns + _NOISE_NS:
            return wait
    return jax.block_until_ready


def _refuse_left_running(run: Callable[[], Any], label: str) -> None:
    """Raise `MeasurementError` where the programs of most runs go on when the run has returned."""
    left: list[int] = []
    for _ in range(_TRIES):
        started = now_ns()
        with keeping_outputs() as kept:
            run()
        took = now_ns() - started
        arrays = [leaf for leaf in jax.tree.leaves(kept) if isinstance(leaf, jax.Array) and not leaf.is_deleted()]
        waited = _waited_ns(jax.block_until_ready, arrays) - _waited_ns(jax.block_until_ready, arrays)
        left += [waited] if waited > _LEFT * took + _NOISE_NS else []
        if max(took, waited) > SLOW_NS:  # a moment of the machine is nothing beside it
            break
    else:
        if len(left) <= _TRIES / 2:
            return
    if left:
        raise MeasurementError(
            f"{label} returns no array, and its programs go on for {max(left) / 1e6:.3g} ms when it has returned. "
            "Nothing can wait for them, so its times say nothing: return an array of it, such as its loss or its new "
            "state"
        )


def _waits_for_one(outputs: Any) -> list[_WaitForOne]:
    """For the last and for the first array that attributes and indices reach.

    Where `outputs` come from several programs, the last output is the likeliest to be ready last.
    """
    waits = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(outputs)[0]:
        if isinstance(leaf, jax.Array):
            try:
                wait = _WaitForOne([_path_step(key) for key in path])
                with warnings.catch_warnings():
                    warnings.simplefilter("error")  # it would come again with every block: `nnx.State` warns so
                    if wait.array_of(outputs) is leaf:
                        waits.append(wait)
            except (AttributeError, KeyError, IndexError, TypeError, Warning):
                pass  # a custom node whose keys are not its attributes, or not to be used
    return [waits[-1], waits[0]] if len(waits) > 1 else waits


def _path_step(key: Any) -> tuple[Callable[[Any, Any], Any], Any]:
    match key:
        case jax.tree_util.GetAttrKey(name=name):
            return getattr, name
        case jax.tree_util.SequenceKey(idx=index) | jax.tree_util.DictKey(key=index):
            return operator.getitem, index
    raise KeyError(key)


def _waited_ns(wait: Callable[[Any], Any], outputs: Any) -> int:
    start = now_ns()
    wait(outputs)
    return now_ns() - start


def _left_to_wait_ns(outputs: Any, wait: Callable[[Any], None]) -> int:
    """How long the other arrays keep the host waiting once `wait` has returned."""
    wait(outputs)
    return _waited_ns(jax.block_until_ready, outputs)
