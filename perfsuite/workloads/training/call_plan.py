"""How `cached_filter_jit` takes a function's arguments apart for `jax.jit`, remembered from one call to the next."""

import dataclasses
import inspect
import operator
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

import equinox as eqx
import jax

from perfsuite.workloads.structure import Structure, picker, static_keys

K = TypeVar("K")
V = TypeVar("V")
Leaves = Sequence[Any]

CAPACITY = 1024
"""Structures remembered for a function, and sets of static leaves for a structure."""


class BoundedCache(Generic[K, V]):
    """Keeps at most `CAPACITY` entries and forgets the oldest. Safe to share between threads.

    Reading takes no lock and does not make an entry younger: a hit must cost a dictionary lookup and no more.
    """

    __slots__ = ("_capacity", "_entries", "_lock")

    def __init__(self, capacity: int | None = None) -> None:
        self._capacity = CAPACITY if capacity is None else capacity
        self._entries: dict[K, V] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K, make: Callable[[], V]) -> V:
        """The entry at `key`; without one, `make()`, which is kept. Of two threads that race, the first one's is."""
        found = self._entries.get(key)
        if found is not None:
            return found
        made = make()
        with self._lock:
            if key not in self._entries and len(self._entries) >= self._capacity:
                del self._entries[next(iter(self._entries))]
            return self._entries.setdefault(key, made)


@dataclasses.dataclass(frozen=True)
class DonationRule:
    """Whether the buffers of the first argument, and of all others, are donated; and whether unused ones are silent."""

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
class JittedCall:
    """One set of static leaves, and the `jax.jit` that holds them: `jitted(donated, kept, own)` gives `FlatOutput`."""

    static: tuple[Any, ...]
    jitted: Any


class TreePlan:
    """Where the leaves of one tree definition go, and a `JittedCall` for each set of static leaves seen with it.

    `donated`, `kept` and `static` pick the donated arrays, the kept arrays and the static leaves.
    """

    __slots__ = ("_calls", "_last", "_make", "_order", "donated", "kept", "static", "treedef")

    def __init__(
        self,
        treedef: jax.tree_util.PyTreeDef,
        mask: tuple[bool, ...],
        donation: DonationRule,
        make: Callable[["TreePlan", tuple[Any, ...]], Any],
    ) -> None:
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
        self.donated, self.kept, self.static = picker(donated), picker(kept), picker(static)
        shuffled = [*donated, *kept, *static]
        self._order = picker(sorted(range(len(shuffled)), key=shuffled.__getitem__))
        self._make = make
        self._calls: BoundedCache[tuple[Hashable, ...], JittedCall] = BoundedCache()
        self._last: JittedCall | None = None

    def join(self, donated: Leaves, kept: Leaves, static: Leaves) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The positional and keyword arguments that these leaves came from."""
        return self.treedef.unflatten(self._order([*donated, *kept, *static]))

    def call(self, leaves: Leaves) -> JittedCall:
        """The call for the static ones among `leaves`. Raises `ValueError` if one is not hashable."""
        static = self.static(leaves)
        last = self._last
        # Identity first, because static leaves hardly ever change and hashing them can be slow.
        if last is not None and all(map(operator.is_, static, last.static)):
            return last
        held = tuple(static)
        self._last = call = self._calls.get(static_keys(held), lambda: JittedCall(held, self._make(self, held)))
        return call


class CallPlans:
    """All plans of one function.

    `function(own)` gives the function to call from its own arrays. There is no other reference to the function here, so
    a cache of plans does not keep functions alive.
    """

    def __init__(
        self,
        function: Callable[[Leaves], Callable[..., Any]],
        name: str,
        signature: inspect.Signature,
        donation: DonationRule,
    ) -> None:
        self._function = function
        self._name = name
        self._signature = signature
        self.donation = donation
        self._plans: BoundedCache[Hashable, TreePlan] = BoundedCache()
        self._by_kinds: BoundedCache[Hashable, TreePlan] = BoundedCache()
        self._last: tuple[tuple[type, ...], TreePlan] | None = None

    def find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[JittedCall, Leaves, Leaves]:
        """The call for these arguments, the arrays to donate, and the arrays to keep."""
        if kwargs:
            # An argument given by keyword is the same argument, and the first one is the first one.
            bound = self._signature.bind(*args, **kwargs)
            args, kwargs = bound.args, bound.kwargs
        leaves, treedef = jax.tree_util.tree_flatten((args, kwargs))
        kinds = tuple(map(type, leaves))
        last = self._last
        if last is not None and kinds == last[0] and _same(treedef, last[1].treedef):
            plan = last[1]
        else:
            plan = self._plan(leaves, treedef, kinds)
        return plan.call(leaves), plan.donated(leaves), plan.kept(leaves)

    def _plan(self, leaves: Leaves, treedef: jax.tree_util.PyTreeDef, kinds: tuple[type, ...]) -> TreePlan:
        def by_mask() -> TreePlan:
            mask = tuple(map(eqx.is_array, leaves))
            # NumPy in place of JAX arrays is another set of types but the same program.
            return self._plans.get((treedef, mask), lambda: TreePlan(treedef, mask, self.donation, self._jit))

        # Proxies claim a class that their type does not have, so their types say nothing about them.
        if any(leaf.__class__ is not kind for leaf, kind in zip(leaves, kinds, strict=True)):
            return by_mask()
        plan = self._by_kinds.get((treedef, kinds), by_mask)
        self._last = (kinds, plan)
        return plan

    def _jit(self, plan: TreePlan, static: tuple[Any, ...]) -> Any:
        function = self._function

        def run(donated: Leaves, kept: Leaves, own: Leaves) -> FlatOutput:
            args, kwargs = plan.join(donated, kept, static)
            arrays, structure = Structure.split(function(own)(*args, **kwargs))
            return FlatOutput(arrays, _Identified(structure))

        run.__name__ = run.__qualname__ = self._name
        donated = (0, 2) if self.donation.rest else (0,) if self.donation.first else ()
        return jax.jit(run, donate_argnums=donated)


def _same(a: jax.tree_util.PyTreeDef, b: jax.tree_util.PyTreeDef) -> bool:
    try:
        return a == b
    except Exception:  # A static field without a usable `==`. If it matters, looking the plan up raises.
        return False
