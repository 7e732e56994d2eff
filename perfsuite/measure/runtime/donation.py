"""Donation that did not happen: old arrays of the carried state live on beside the new ones, in twice the memory.

JAX deletes a donated array when the call returns, on CPU too (jax 0.10.2), and keeps it if the program has no output
that fits its memory. So an array that a step carries on and that is not deleted after the step either was not donated,
or was donated without use.
"""

import dataclasses
from typing import Any

import jax

from perfsuite.measure.arguments import leaves_with_paths
from perfsuite.measure.call import Call
from perfsuite.measure.compiles.description import text_of_array
from perfsuite.measure.compiles.warmup import borrowed, settle
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.metric import Metric
from perfsuite.measure.words import folded

NAMED = 12
"""How many arrays a metric names, the largest first."""


@dataclasses.dataclass(frozen=True)
class UndonatedArray:
    """An array of the carried state that outlived the step: `path` is `args[0]['kernel']`, `what` "float32[64,64]"."""

    path: str
    what: str
    bytes: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path} {self.about}"

    @property
    def about(self) -> str:
        """What it is and why it lives on."""
        return f"{self.what} ({self.bytes:,} bytes): {self.reason}"


@dataclasses.dataclass(frozen=True)
class StepDonation:
    """The donation of one step's state: how many arrays it `carried`; the `undonated` ones, the largest first."""

    label: str
    carried: int
    carried_bytes: int
    undonated: tuple[UndonatedArray, ...]

    @property
    def undonated_bytes(self) -> int:
        """What the state needs beyond its own size while a step runs."""
        return sum(leaf.bytes for leaf in self.undonated)

    def metrics(self, name: str) -> list[Metric]:
        """How many arrays were not donated, and their bytes."""
        parts = {leaf.path: leaf.bytes for leaf in self.undonated[:NAMED]}
        return [
            Metric(f"{name} undonated arrays", len(self.undonated), "arrays", "count"),
            Metric(f"{name} undonated bytes", self.undonated_bytes, "bytes", "size", detail=parts or None),
        ]

    def in_words(self) -> str:
        """The largest arrays that were not donated, those that are alike in one line."""
        lines = [f"{place} {about}" for place, about in folded((leaf.path, leaf.about) for leaf in self.undonated)]
        more = [f"and {len(lines) - NAMED} more"] if len(lines) > NAMED else []
        return "\n".join(lines[:NAMED] + more)


def donation_of(call: Call) -> StepDonation:
    """Run one warm step of a call that carries, and see which of the carried arrays live on.

    An array that the step returns unchanged, as the same object, needs no second copy and does not count as carried.
    Moves the call on. Raises `MeasurementError` for a call that carries no array, and what `warm` raises.
    """
    if not call.carry:
        raise MeasurementError(
            f"perf.donation: {call.label} carries nothing, so every argument is still needed after a step; "
            f"say how many outputs are the next arguments: call({call.label}, ..., carry=n)"
        )
    with borrowed(call) as subject:
        settle(subject)
        args, kwargs = subject.args, subject.kwargs
        before = _arrays(args[: call.carry])
        if not before:
            raise MeasurementError(f"perf.donation: the first {call.carry} arguments of {call.label} hold no jax.Array")
        jax.block_until_ready(subject.run())
    after = _arrays(subject.args[: call.carry])
    same = {id(leaf) for leaf in after.values()}
    carried = {path: leaf for path, leaf in before.items() if id(leaf) not in same}
    alive = {path: leaf for path, leaf in carried.items() if not leaf.is_deleted()}
    asked = _asked(subject.fn, args, kwargs) if alive else {}
    none_deleted = len(alive) == len(carried)
    undonated: list[UndonatedArray] = []
    for path, leaf in alive.items():
        reason = _reason(path, leaf, after.get(path), asked.get(path), none_deleted=none_deleted)
        undonated.append(UndonatedArray(path, text_of_array(leaf), leaf.nbytes, reason))
    undonated.sort(key=lambda leaf: -leaf.bytes)
    return StepDonation(call.label, len(carried), sum(leaf.nbytes for leaf in carried.values()), tuple(undonated))


def _arrays(args: tuple) -> dict[str, jax.Array]:
    return {path: leaf for path, leaf in leaves_with_paths(args) if isinstance(leaf, jax.Array)}


def _asked(fn: Any, args: tuple, kwargs: dict[str, Any]) -> dict[str, bool]:
    """Which arguments `fn` asks to be donated, by path; empty if `fn` is no jitted function that says so."""
    try:
        # `trace` is answered from JAX's cache, `lower` would take the time of a lowering.
        infos, _ = fn.trace(*args, **kwargs).args_info
        found = leaves_with_paths(infos, is_leaf=lambda leaf: hasattr(leaf, "donated"))
        return {path: info.donated for path, info in found}
    except Exception:
        return {}


def _reason(path: str, leaf: jax.Array, successor: jax.Array | None, asked: bool | None, *, none_deleted: bool) -> str:
    if asked is False or (asked is None and none_deleted):
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
    return f"donated but not used, because {change}" if asked else f"not donated, or donated without use: {change}"
