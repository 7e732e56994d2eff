"""What JAX keys its cache on, as a description that keeps no array alive, and the differences between two."""

import dataclasses
import inspect
import re
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from perfsuite.measure.compiles.description import Item, Leaf, Node, describe, leaves_below
from perfsuite.measure.compiles.values import Value, nature_of, safely

_ABSENT = "absent"
_WHOLE_ARGUMENT = re.compile(r"args\[\d+\]|kwargs\[[^\]]*\]")
_POSITION = re.compile(r"args\[(\d+)\]")

_COUNTED_AT_A_GLANCE = 3
_DEVICES_SHOWN = 8


@dataclasses.dataclass(frozen=True)
class Signature:
    """The arguments of one call, as `signature_of` describes them, by their paths: `args[0]`, `kwargs['mask']`."""

    parts: tuple[tuple[str, Item], ...]

    @property
    def leaves(self) -> tuple[tuple[str, Leaf], ...]:
        """Every leaf with its path, such as `args[0]['ids']`, `args[0].layers[3].weight`, `kwargs['mask']`."""
        return tuple(found for path, item in self.parts for found in leaves_below(path, item))

    def __str__(self) -> str:
        leaves = self.leaves
        shown = ", ".join(f"{path}: {leaf}" for path, leaf in leaves[:4])
        return f"({shown}, and {len(leaves) - 4} more)" if len(leaves) > 4 else f"({shown})"


@dataclasses.dataclass(frozen=True)
class SignatureChange:
    """One difference between two calls: its kind, its path, and both sides as text.

    `kind` is "shape", "dtype", "layout", "weak type", "static value", "number" (the value of a Python number, which
    matters only where it is static), "structure", "sharding", "committed" or "device"; and of the call as a whole
    "function", "options" or "config". `distance` says how far apart the sides are, to find the nearest of several
    calls. `variant` tells apart what a user would do different things about, such as a "ragged" shape from one that
    "grows", and `hint` completes that advice.
    """

    kind: str
    path: str
    was: str
    now: str
    distance: float = dataclasses.field(default=1.0, compare=False, repr=False)
    variant: str = dataclasses.field(default="", compare=False, repr=False)
    hint: str = dataclasses.field(default="", compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.path}: {self.difference}"

    @property
    def difference(self) -> str:
        """Both sides in words: `shape was (8,), is (5,)`."""
        what = {"number": "static value "}.get(self.kind, f"{self.kind} ")
        if self.kind in ("structure", "committed", "function", "options", "config"):
            what = ""
        now = f"another {self.now}" if self.was == self.now else self.now
        return f"{what}was {self.was}, is {now}"


Changes = tuple[SignatureChange, ...]


def with_parameters(changes: Iterable[SignatureChange], function: Any) -> Changes:
    """The changes with the names of the function's parameters, where there are too many of these to count.

    `filter_jit` makes keywords positional: without the name, a user who wrote `t1=2.0` would read of `args[3]` only.
    """
    return tuple(dataclasses.replace(change, path=with_parameter(change.path, function)) for change in changes)


def with_parameter(path: str, function: Any) -> str:
    """A path of an argument such as `args[3].rate`, with the name of the parameter where there are many."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except Exception:  # A callable without a signature, or one of the user's that raises.
        return path
    names = [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    match = _POSITION.match(path)
    if match is None or not _COUNTED_AT_A_GLANCE < len(names) > int(match[1]):
        return path
    return f"{path} ({'' if match.end() == len(path) else 'of '}{names[int(match[1])]})"


def signature_of(args: tuple, kwargs: dict[str, Any] | None = None) -> Signature:
    """Describe the arguments of a call. Takes any argument, also donated arrays and objects whose repr raises."""
    by_path = {f"args[{n}]": value for n, value in enumerate(args)}
    return signature_of_named(by_path | {f"kwargs[{name!r}]": x for name, x in sorted((kwargs or {}).items())})


def signature_of_named(arguments: dict[str, Any]) -> Signature:
    """Describe arguments that are known by the names of the parameters, whose paths then begin with the name."""
    return Signature(tuple((name, describe(value)) for name, value in arguments.items()))


def changes_between(before: Signature, after: Signature) -> Changes:
    """The differences of `after` from `before`, in the order of `after`'s arguments. Empty where JAX sees none.

    The changes in the opposite direction are the same with `was` and `now` exchanged.
    """
    old, new = dict(before.parts), dict(after.parts)
    lost, gained = old.keys() - new.keys(), new.keys() - old.keys()
    moved: list[SignatureChange] = []
    for positional, keyword, was, now in ((lost, gained, "position", "keyword"), (gained, lost, "keyword", "position")):
        if _are_moved(positional, keyword):
            sides = f"passed by {was}", f"passed by {now}"
            moved = [SignatureChange("structure", path, *sides, 4.0, "keyword") for path in sorted(keyword)]
            old = {path: item for path, item in old.items() if path not in lost}
            new = {path: item for path, item in new.items() if path not in gained}
    return (*moved, *_part_changes(old, new))


def distance(changes: Iterable[SignatureChange]) -> float:
    """How far apart two signatures with these differences are; 0 for equals."""
    return sum(change.distance for change in changes)


def _are_moved(positional: set[str], keyword: set[str]) -> bool:
    """Whether one side passes by position what the other passes by keyword."""
    by_position = all(path.startswith("args[") for path in positional)
    return by_position and all(path.startswith("kwargs[") for path in keyword) and len(positional) == len(keyword) > 0


def _part_changes(old: dict[str, Item], new: dict[str, Item]) -> Iterator[SignatureChange]:
    for path in _both(old, new):
        if path in old and path in new:
            yield from _item_changes(path, old[path], new[path])
        else:
            variant = "argument" if _WHOLE_ARGUMENT.fullmatch(path) else ""
            was, now = str(old.get(path, _ABSENT)), str(new.get(path, _ABSENT))
            yield SignatureChange("structure", path, was, now, 4.0, variant)


def _both(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """The names on either side, those of the new side first."""
    return [*new, *(name for name in old if name not in new)]


def _item_changes(path: str, was: Item, now: Item) -> Iterator[SignatureChange]:
    if isinstance(was, Leaf) and isinstance(now, Leaf):
        yield from _leaf_changes(path, was, now)
    elif isinstance(was, Leaf) or isinstance(now, Leaf):
        variant = "None" if "None" in (str(was), str(now)) else ""
        yield SignatureChange("structure", path, str(was), str(now), 4.0, variant)
    elif was.type != now.type:
        again = "class" if was.type.text == now.type.text else ""
        yield SignatureChange("structure", path, was.type.text, now.type.text, 4.0, again)
    else:
        old, new = ({path + suffix: child for suffix, child in side.children} for side in (was, now))
        if old.keys() == new.keys() and was.auxiliary != now.auxiliary:
            yield from _auxiliary_changes(path, was, now)
        yield from _part_changes(old, new)


def _auxiliary_changes(path: str, was: Node, now: Node) -> Iterator[SignatureChange]:
    found = list(_named_changes(path, was.attributes, now.attributes))
    old, new = was.auxiliary, now.auxiliary
    if not found and old and new:
        found = list(_field_changes(path, old, new))
        far = 4.0 * _looks_apart(old.text, new.text)
        found = found or [SignatureChange("structure", path, old.text, new.text, far, nature_of(old, new))]
    yield from found


Named = tuple[tuple[str, Value], ...]


def _named_changes(path: str, was: Named, now: Named) -> Iterator[SignatureChange]:
    """The changes of the attributes of a node, or of the fields of a record."""
    old, new = dict(was), dict(now)
    for name in _both(old, new):
        one, other = old.get(name), new.get(name)
        if one is None or other is None or one != other:
            texts = (value.text if value else _ABSENT for value in (one, other))
            yield from _static_changes(f"{path}.{name}", one, other, *texts)


def _field_changes(path: str, was: Value | None, now: Value | None) -> Iterator[SignatureChange]:
    """The fields in which two records of one type differ; none where they have no fields, or none differs."""
    if was and now and was.type == now.type:
        yield from _named_changes(path, was.fields, now.fields)


def _static_changes(
    path: str, was: Value | None, now: Value | None, was_text: str, now_text: str
) -> Iterator[SignatureChange]:
    """How two static values differ: by their fields, or as a whole; for functions also in what they have built in."""
    if fields := list(_field_changes(path, was, now)):
        yield from fields
        return
    nature = nature_of(was, now)
    far = _looks_apart(was_text, now_text)
    held, differ = {}, {}
    if was and now and nature in ("function", "mode"):  # of a mode, such as a string, nothing is held
        old, held = dict(was.holds), dict(now.holds)
        differ = {name: text for name, text in held.items() if old.get(name, text) != text}
    hint = ", ".join(name.rpartition(" ")[2] for name in differ or held)
    yield SignatureChange("static value", path, was_text, now_text, far, "closure" if held else nature, hint)
    for name, text in differ.items():
        yield SignatureChange("static value", f"{path}, {name}", old[name], text, 0.5)


def _leaf_changes(path: str, was: Leaf, now: Leaf) -> Iterator[SignatureChange]:
    if "static" in (was.kind, now.kind):
        if (was.kind, was.dtype, was.value) != (now.kind, now.dtype, now.value):
            yield from _static_changes(path, was.value, now.value, str(was), str(now))
        return
    key = "key" if "key<" in was.dtype + now.dtype else ""
    python = "number" if "scalar" in (was.kind, now.kind) else ""
    if was.shape != now.shape:
        far, variant = _shape_distance(was.shape, now.shape), key or _shape_variant(was.shape, now.shape)
        yield SignatureChange("shape", path, str(was.shape), str(now.shape), far, variant)
    if was.dtype != now.dtype:
        before, after = (f"{leaf.dtype} ({leaf.source})" if python else leaf.dtype for leaf in (was, now))
        hint = _constructor(was, now) if python else ""
        yield SignatureChange("dtype", path, before, after, variant=key or python, hint=hint)
    elif was.shape == now.shape and was.layout != now.layout:
        yield SignatureChange("layout", path, was.layout or "the usual one", now.layout or "the usual one")
    if was.weak_type != now.weak_type:
        before, after = (f"{leaf.weak_type} ({leaf.source})" for leaf in (was, now))
        yield SignatureChange("weak type", path, before, after, 1.0, python, _constructor(was, now))
    if was.value != now.value or was.kind != now.kind:
        flags = [isinstance(leaf.value and leaf.value.plain, bool) for leaf in (was, now)]
        variant = "numpy" if not python else "mode" if all(flags) else ""
        before, after = (leaf.value.text if leaf.value else str(leaf) for leaf in (was, now))
        # A Python number is further from an array than an array of another dtype.
        yield SignatureChange("number", path, before, after, 0.5 if was.kind == now.kind else 2.0, variant)
    yield from _placement_changes(path, was, now)


def _placement_changes(path: str, was: Leaf, now: Leaf) -> Iterator[SignatureChange]:
    if bool(was.devices) != bool(now.devices):
        many = "many" if len(was.devices or now.devices) > 1 else ""
        yield SignatureChange("committed", path, _commitment(was), _commitment(now), 1.0, many)
    elif was.sharding != now.sharding or len(was.devices) != len(now.devices):
        one, other = (leaf.sharding.mesh if leaf.sharding else "" for leaf in (was, now))
        mesh = "mesh" if one and other and one != other else ""
        yield SignatureChange("sharding", path, str(was.sharding or "none"), str(now.sharding or "none"), 1.0, mesh)
    elif was.devices != now.devices:
        yield SignatureChange("device", path, _device_list(was), _device_list(now))


def _shape_distance(was: tuple[int, ...], now: tuple[int, ...]) -> float:
    """1 for sizes that are close, up to 3 for another number of dimensions."""
    if len(was) != len(now):
        return 3.0
    return 1.0 + sum(abs(a - b) / max(a, b, 1) for a, b in zip(was, now, strict=True)) / max(len(was), 1)


def _shape_variant(was: tuple[int, ...], now: tuple[int, ...]) -> str:
    """Return "ragged" where only the first axis shrinks, "grows" where only one axis, whichever, grows."""
    other = [axis for axis in range(len(was)) if was[axis] != now[axis]] if len(was) == len(now) else []
    if len(other) != 1:
        return ""
    if now[other[0]] > was[other[0]]:
        return "grows"
    return "ragged" if other == [0] else ""


def _looks_apart(was: str, now: str) -> float:
    """Objects with the same text, such as those of the same lambda, are more likely meant to be one."""
    return 0.5 if was == now else 1.0


def _constructor(was: Leaf, now: Leaf) -> str:
    """The constructor, such as `jnp.float32`, of a dtype that both sides fit in."""
    name = now.dtype
    if was.dtype != now.dtype:
        # Under the user's setting "strict" JAX would raise, and it does for the dtypes of keys.
        with jax.numpy_dtype_promotion("standard"):
            name = safely(lambda: str(jnp.promote_types(was.dtype, now.dtype)), now.dtype)
    return f"jnp.{name}{'_' if name == 'bool' else ''}"


def _commitment(leaf: Leaf) -> str:
    if not leaf.devices:
        return "uncommitted"
    devices = leaf.devices[0] if len(leaf.devices) == 1 else f"{len(leaf.devices)} devices ({leaf.sharding})"
    return f"committed to {devices}"


def _device_list(leaf: Leaf) -> str:
    more = f" and {len(leaf.devices) - _DEVICES_SHOWN} more" if len(leaf.devices) > _DEVICES_SHOWN else ""
    return ", ".join(leaf.devices[:_DEVICES_SHOWN]) + more
