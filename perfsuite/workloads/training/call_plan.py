"""How a function's arguments are taken apart for `jax.jit`, remembered from one call to the next."""

import dataclasses
import inspect
import operator
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import equinox as eqx
import jax

from perfsuite.workloads.structure import Structure, picker, static_keys
from perfsuite.workloads.training.bounded import BoundedCache

# Structures remembered for a function, and static values for a structure.
_CAPACITY = 1024

Leaves = Sequence[Any]


@dataclasses.dataclass(frozen=True)
class Donation:
    """Whether the buffers of the first argument, and of all others, are donated; and whether to warn of unused ones."""

    first: bool
    rest: bool
    quiet: bool


class _Identified:
    """Holds a value and equals itself alone, so that the static part of an output need not be hashable."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


@dataclasses.dataclass(frozen=True)
class FlatOutput:
    """A function's output as `jax.jit` sees it: a flat list of arrays, and how to put it together again."""

    arrays: list[Any]
    structure: _Identified

    def tree(self) -> Any:
        """The output as the function returned it."""
        return self.structure.value.join(self.arrays)


jax.tree_util.register_dataclass(FlatOutput, data_fields=["arrays"], meta_fields=["structure"])


@dataclasses.dataclass(frozen=True, eq=False)
class Entry:
    """One set of static leaves, and the `jax.jit` that holds them: `jitted(donated, kept, own)` gives `FlatOutput`."""

    static: tuple[Any, ...]
    jitted: Any


class Partition:
    """Where the leaves of one tree definition go: donated arrays, kept arrays, static leaves."""

    __slots__ = ("_order", "donated", "kept", "static", "treedef")

    def __init__(self, treedef: jax.tree_util.PyTreeDef, mask: tuple[bool, ...], donation: Donation) -> None:
        positional = treedef.children()[0].children()
        in_first = positional[0].num_leaves if positional else 0
        donated, kept, static = [], [], []
        for i, is_array in enumerate(mask):
            if not is_array:
                static.append(i)
            elif donation.first if i < in_first else donation.rest:
                donated.append(i)
            else:
                kept.append(i)
        self.treedef = treedef
        self.donated = picker(donated)
        self.kept = picker(kept)
        self.static = picker(static)
        shuffled = [*donated, *kept, *static]
        self._order = picker(sorted(range(len(shuffled)), key=shuffled.__getitem__))

    def join(self, donated: Leaves, kept: Leaves, static: Leaves) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The positional and keyword arguments that these leaves came from."""
        return self.treedef.unflatten(self._order([*donated, *kept, *static]))


class Plan:
    """One partition, and an entry for each set of static leaves seen with it."""

    __slots__ = ("_entries", "_last", "_make", "partition")

    def __init__(self, partition: Partition, make: Callable[[Partition, tuple[Any, ...]], Any]) -> None:
        self.partition = partition
        self._make = make
        self._entries: BoundedCache[tuple[Hashable, ...], Entry] = BoundedCache(_CAPACITY)
        self._last: Entry | None = None

    def entry(self, leaves: Leaves) -> Entry:
        """The entry for the static ones among `leaves`. Raises `ValueError` if one is not hashable."""
        static = self.partition.static(leaves)
        last = self._last
        # Identity first, because static leaves hardly ever change and hashing them can be slow.
        if last is not None and all(map(operator.is_, static, last.static)):
            return last
        held = tuple(static)
        entry = self._entries.get(static_keys(held), lambda: Entry(held, self._make(self.partition, held)))
        self._last = entry
        return entry


class Program:
    """All plans of one function.

    `function(own)` gives the function to call from its own arrays. `Program` does not refer to the function otherwise,
    so that a cache of programs need not keep functions alive.
    """

    def __init__(
        self,
        function: Callable[[Leaves], Callable[..., Any]],
        name: str,
        signature: inspect.Signature,
        donation: Donation,
    ) -> None:
        self._function = function
        self._name = name
        self._signature = signature
        self.donation = donation
        self._plans: BoundedCache[Hashable, Plan] = BoundedCache(_CAPACITY)
        self._by_kinds: BoundedCache[Hashable, Plan] = BoundedCache(_CAPACITY)
        self._last: tuple[tuple[type, ...], Plan] | None = None

    def find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Entry, Leaves, Leaves]:
        """The entry for these arguments, the arrays to donate, and the arrays to keep."""
        if kwargs:
            # An argument given by keyword is the same argument, and the first one is the first one.
            bound = self._signature.bind(*args, **kwargs)
            args, kwargs = bound.args, bound.kwargs
        leaves, treedef = jax.tree_util.tree_flatten((args, kwargs))
        kinds = tuple(map(type, leaves))
        last = self._last
        if last is not None and kinds == last[0] and _same(treedef, last[1].partition.treedef):
            plan = last[1]
        else:
            plan = self._plan(leaves, treedef, kinds)
        return plan.entry(leaves), plan.partition.donated(leaves), plan.partition.kept(leaves)

    def _plan(self, leaves: Leaves, treedef: jax.tree_util.PyTreeDef, kinds: tuple[type, ...]) -> Plan:
        def by_mask() -> Plan:
            mask = tuple(map(eqx.is_array, leaves))
            # NumPy in place of JAX arrays is another set of types but the same program.
            return self._plans.get((treedef, mask), lambda: Plan(Partition(treedef, mask, self.donation), self._jit))

        # Proxies claim a class that their type does not have, so their types say nothing about them.
        if any(leaf.__class__ is not kind for leaf, kind in zip(leaves, kinds, strict=True)):
            return by_mask()
        plan = self._by_kinds.get((treedef, kinds), by_mask)
        self._last = (kinds, plan)
        return plan

    def _jit(self, partition: Partition, static: tuple[Any, ...]) -> Any:
        function = self._function

        def run(donated: Leaves, kept: Leaves, own: Leaves) -> FlatOutput:
            args, kwargs = partition.join(donated, kept, static)
            arrays, structure = Structure.split(function(own)(*args, **kwargs))
            return FlatOutput(arrays, _Identified(structure))

        run.__name__ = run.__qualname__ = self._name
        donated = (0, 2) if self.donation.rest else (0,) if self.donation.first else ()
        return jax.jit(run, donate_argnums=donated)


def _same(a: jax.tree_util.PyTreeDef, b: jax.tree_util.PyTreeDef) -> bool:
    try:
        return a == b
    except Exception:  # A static field without a usable `==`. If it matters, looking the plan up says so.
        return False
