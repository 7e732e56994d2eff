"""Donation that did not happen: carried state whose old arrays live on beside the new ones, so that it needs twice
its memory.

JAX deletes a donated array when the call that it was given to returns, on CPU too (jax 0.10.2), and leaves it where
the program has no output to put into its memory. So an argument that a step carries on and that is not deleted after
the step was not donated, or in vain.
"""

import dataclasses
from typing import Any

import jax

from perfsuite.measure.call import Call
from perfsuite.measure.compiles.description import text_of_array
from perfsuite.measure.compiles.warmup import borrowed, warm
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.measurement import Metric

NAMED = 12
"""How many arrays a metric names, the largest first."""


@dataclasses.dataclass(frozen=True)
class Undonated:
    """One array of the carried state that outlived the step: `path` such as "args[0]['kernel']", `what` such as
    "float32[64,64]", its `bytes`, and the `reason` in words.
    """

    path: str
    what: str
    bytes: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path} {self.what} ({self.bytes:,} bytes): {self.reason}"


@dataclasses.dataclass(frozen=True)
class Donation:
    """What became of the carried state of one step: `carried` arrays, of which those in `undonated` lived on."""

    label: str
    carried: int
    carried_bytes: int
    undonated: tuple[Undonated, ...]

    @property
    def undonated_bytes(self) -> int:
        """What the state needs beyond its own size while a step runs."""
        return sum(leaf.bytes for leaf in self.undonated)

    def metrics(self, name: str) -> list[Metric]:
        """How many arrays were not donated, and their bytes."""
        parts = {leaf.path: leaf.bytes for leaf in sorted(self.undonated, key=lambda leaf: -leaf.bytes)[:NAMED]}
        return [
            Metric(f"{name} undonated arrays", len(self.undonated), "arrays", "count"),
            Metric(f"{name} undonated bytes", self.undonated_bytes, "bytes", "size", detail=parts or None),
        ]

    def in_words(self) -> str:
        """One line for each of the largest arrays that were not donated."""
        largest = sorted(self.undonated, key=lambda leaf: -leaf.bytes)
        lines = [str(leaf) for leaf in largest[:NAMED]]
        return "\n".join(lines + [f"and {len(largest) - NAMED} more"] * (len(largest) > NAMED))


def donation_of(call: Call) -> Donation:
    """Run one warm step of a call that carries, and see which of the carried arrays it left alive.

    An array that the step returns as it is, the same object, needs no memory of its own and is not counted as carried.
    Moves the call on. Raises `MeasurementError` for a call that carries no array, and what `warm` raises.
    """
    if not call.carry:
        raise MeasurementError(
            f"perf.donation: {call.label} carries nothing, so no argument is dead after a step; "
            f"say how many outputs are the next arguments: call({call.label}, ..., carry=n)"
        )
    with borrowed(call) as subject:
        warm(subject.fn, over=[subject])
        args, kwargs = subject.args, subject.kwargs
        before = _arrays(args[: call.carry])
        if not before:
            raise MeasurementError(f"perf.donation: the first {call.carry} arguments of {call.label} hold no jax.Array")
        jax.block_until_ready(subject.run())
    after = _arrays(subject.args[: call.carry])
    same = {id(leaf) for leaf in after.values()}
    moved = {path: leaf for path, leaf in before.items() if id(leaf) not in same}
    alive = {path: leaf for path, leaf in moved.items() if not leaf.is_deleted()}
    asked = _donated(subject.fn, args, kwargs) if alive else None
    none = len(alive) == len(moved)
    reasons = {path: _reason(path, leaf, after.get(path), asked, none_deleted=none) for path, leaf in alive.items()}
    found = [Undonated(path, text_of_array(leaf), leaf.nbytes, reasons[path]) for path, leaf in alive.items()]
    return Donation(call.label, len(moved), sum(leaf.nbytes for leaf in moved.values()), tuple(found))


def _arrays(args: tuple) -> dict[str, jax.Array]:
    leaves = jax.tree_util.tree_flatten_with_path(args)[0]
    return {f"args{jax.tree_util.keystr(path)}": leaf for path, leaf in leaves if isinstance(leaf, jax.Array)}


def _donated(fn: Any, args: tuple, kwargs: dict[str, Any]) -> dict[str, bool] | None:
    """Which arguments `fn` asks to be donated, by path; None where `fn` is no jitted function that says so."""
    try:
        # `trace` is answered from JAX's cache, `lower` would take the time of a lowering.
        given, _ = fn.trace(*args, **kwargs).args_info
        leaves = jax.tree_util.tree_flatten_with_path(given, is_leaf=lambda leaf: hasattr(leaf, "donated"))[0]
        return {f"args{jax.tree_util.keystr(path)}": leaf.donated for path, leaf in leaves}
    except Exception:
        return None


def _reason(
    path: str, leaf: jax.Array, successor: jax.Array | None, asked: dict[str, bool] | None, *, none_deleted: bool
) -> str:
    donated = asked.get(path) if asked is not None else None
    if donated is False or (donated is None and none_deleted):
        number = path.removeprefix("args[").partition("]")[0]
        return f"not donated; jit the step with donate_argnums for argument {number}"
    if successor is None:
        change = "the step does not return it"
    elif text_of_array(successor) != text_of_array(leaf):
        change = f"the step returns {text_of_array(successor)} in its place"
    elif successor.sharding != leaf.sharding:
        change = "the step returns it with another sharding"
    else:
        change = "the program does not read it, or has no output of its shape and dtype left"
    return f"donated but not used, because {change}" if donated else f"not donated, or in vain: {change}"
