"""What the programs of a call put out: which array is of which program, and which programs still go on.

Programs are seen as they run (`private.execution`). Told from times, a second program often seems to be ready with
the first where the machine is busy.
"""

import collections
import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import jax

from perfsuite.measure.private.execution import is_ready, telling_outputs

_LARGE = 1_000_000
_MOST_LARGE = 2
"""Arrays of more bytes are kept of the last programs only. An accelerator frees those that a loop drops before the
programs have ended, so one of each program that is under way could be more than the device has."""


class Outputs:
    """The arrays that programs put out, in the order of the programs. Keeps none of them alive."""

    def __init__(self) -> None:
        self._of_programs: list[list[weakref.ref[jax.Array]]] = []

    def add(self, outputs: Any) -> None:
        arrays = (leaf for leaf in jax.tree.leaves(outputs) if isinstance(leaf, jax.Array))
        self._of_programs.append(list(map(weakref.ref, arrays)))

    def programs(self) -> dict[int, int]:
        """For the `id` of each array that is still alive the place of its program."""
        alive = ((place, ref()) for place, refs in enumerate(self._of_programs) for ref in refs)
        return {id(array): place for place, array in alive if array is not None}


class Running:
    """Programs that have begun, each known by one array. Those that have ended are forgotten."""

    def __init__(self) -> None:
        self._arrays: dict[int, list[jax.Array]] = collections.defaultdict(list)
        """By the thread that ran the program."""
        self._here = threading.get_ident()

    def add(self, outputs: Any) -> None:
        arrays = self._arrays[threading.get_ident()]
        under_way = [array for array in (*arrays, *_an_array(outputs)) if not is_ready(array)]
        large = [array for array in under_way if getattr(array, "nbytes", 0) > _LARGE]
        dropped = set(map(id, large[:-_MOST_LARGE]))
        arrays[:] = [array for array in under_way if id(array) not in dropped]

    def here(self) -> bool:
        """Whether one goes on that this thread ran."""
        return any(map(_goes_on, reversed(self._arrays[self._here])))

    def elsewhere(self) -> bool:
        """Whether one goes on that another thread ran."""
        others = [arrays for thread, arrays in list(self._arrays.items()) if thread != self._here]
        return any(_goes_on(array) for arrays in others for array in list(arrays))

    def wait(self) -> None:
        """Wait for those that this thread ran."""
        jax.block_until_ready([array for array in self._arrays[self._here] if not array.is_deleted()])


@contextlib.contextmanager
def outputs_seen() -> Iterator[Outputs]:
    """See what programs put out that run inside, in any thread."""
    outputs = Outputs()
    with telling_outputs(outputs.add):
        yield outputs


@contextlib.contextmanager
def running_seen() -> Iterator[Running]:
    """See the programs that begin inside, in any thread."""
    running = Running()
    with telling_outputs(running.add):
        yield running


def _goes_on(array: jax.Array) -> bool:
    """Whether the program of an array goes on, on each of its devices.

    Where a call has waited for one of several devices, the others are a moment behind: after `float(loss)` of a step
    over 8 virtual devices of two busy cores for 10 to 20 % of the call's time (load of 7, in 78 of 120 runs).
    """
    if is_ready(array):
        return False
    if len(array.sharding.device_set) == 1:
        return True
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    try:
        return not any(is_ready(shard.data) for shard in array.addressable_shards)
    except RuntimeError:  # deleted in the meantime, by another thread
        return False


def _an_array(outputs: Any) -> list[jax.Array]:
    """An array of a program's outputs, the last; none where it has none that is still there.

    To flatten them takes a while where they are hundreds, and the program may end meanwhile.
    """
    if isinstance(outputs, list | tuple):
        return next(filter(None, map(_an_array, reversed(outputs))), [])
    arrays = [leaf for leaf in jax.tree.leaves(outputs) if isinstance(leaf, jax.Array) and not leaf.is_deleted()]
    return arrays[-1:]
