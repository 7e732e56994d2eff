"""What JAX keys its cache on, as a description that keeps no array alive, and the differences between two."""

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import jax.numpy as jnp

from perfsuite.measure.compiles.description import Item, Leaf, Node, describe, leaves_of
from perfsuite.measure.compiles.values import Value, nature_of

Parts: TypeAlias = dict[str, Item]

_ABSENT = "absent"
_WHOLE_ARGUMENT = re.compile(r"args\[\d+\]|kwargs\[[^\]]*\]")
_POSITION = re.compile(r"args\[(\d+)\]")
_COUNTED_AT_A_GLANCE = 3
_DEVICES_SHOWN = 8


@dataclasses.dataclass(frozen=True)
class Signature:
    """The arguments of one call, as `signature_of` describes them: named parts, `args` and `kwargs` as a rule."""

    parts: tuple[tuple[str, Item], ...]

    @property
    def leaves(self) -> tuple[tuple[str, Leaf], ...]:
        """Every leaf with its path, such as `args[0]['ids']`, `args[0].layers[3].weight`, `kwargs['mask']`."""
        return tuple(found for path, item in self.parts for found in leaves_of(path, item))

    def __str__(self) -> str:
        leaves = self.leaves
        shown = ", ".join(f"{path}: {leaf}" for path, leaf in leaves[:4])
        return f"({shown}, and {len(leaves) - 4} more)" if len(leaves) > 4 else f"({shown})"


@dataclasses.dataclass(frozen=True)
class Change:
    """One difference: what it is a difference of, at which path, and both sides as text.

    `kind` is "shape", "dtype", "weak type", "static value", "number" (the value of a Python number, which matters
    only where it is static), "structure", "sharding", "committed" or "device"; and of the call as a whole "function",
    "options" or "config". `distance` says how far apart the sides are, to find the nearest of several. `variant` tells
    apart what a user would do different things about, such as a "ragged" shape from one that "grows", and `hint` is
    for that. `parameter` is the name of the argument, where a message should say it.
    """

    kind: str
    path: str
    was: str
    now: str
    distance: float = dataclasses.field(default=1.0, compare=False, repr=False)
    variant: str = dataclasses.field(default="", compare=False, repr=False)
    hint: str = dataclasses.field(default="", compare=False, repr=False)
    parameter: str = dataclasses.field(default="", compare=False, repr=False)

    def __str__(self) -> str:
        what = {"number": "static value "}.get(self.kind, f"{self.kind} ")
        if self.kind in ("structure", "committed", "function", "options", "config"):
            what = ""
        now = f"another {self.now}" if self.was == self.now else self.now
        parameter = f" ({self.parameter})" if self.parameter else ""
        return f"{self.path}{parameter}: {what}was {self.was}, is {now}"


def with_parameters(changes: Iterable[Change], function: Any) -> tuple[Change, ...]:
    """The changes with the names of the function's parameters, where there are too many of these to count.

    `filter_jit` makes keywords positional, so that a user who wrote `t1=2.0` would be told of `args[3]`.
    """
    changes = tuple(changes)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except Exception:  # A callable without a signature, or one of the user's that raises.
        return changes
    positional = [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    if len(positional) <= _COUNTED_AT_A_GLANCE:
        return changes
    return tuple(dataclasses.replace(change, parameter=_parameter(change.path, positional)) for change in changes)


def _parameter(path: str, positional: list[str]) -> str:
    match = _POSITION.match(path)
    if match is None or int(match[1]) >= len(positional):
        return ""
    return f"{'' if match.end() == len(path) else 'of '}{positional[int(match[1])]}"


def signature_of(args: tuple, kwargs: dict[str, Any] | None = None) -> Signature:
    """Describe the arguments of a call. Any argument will do, also donated arrays and objects without a text."""
    return Signature((("args", describe(tuple(args))), ("kwargs", describe(dict(kwargs or {})))))


def signature_of_named(arguments: dict[str, Any]) -> Signature:
    """Describe arguments that are known by the names of the parameters, whose paths then begin with the name."""
    return Signature(tuple((name, describe(value)) for name, value in arguments.items()))


def differences(before: Signature, after: Signature) -> tuple[Change, ...]:
    """What `after` has different from `before`, in the order of `after`'s arguments. Empty where JAX sees none.

    The differences the other way round are the same with `was` and `now` exchanged.
    """
    old, new = dict(before.parts), dict(after.parts)
    moved, old, new = _moved_to_keywords(old, new)
    return (*moved, *_part_changes(old, new))


def nearest(
    signature: Signature, known: Iterable[Signature], counts: Callable[[Change], bool] = lambda change: True
) -> tuple[Signature, tuple[Change, ...]] | None:
    """The one of `known` that differs least, and the differences from it; the latest of equals, `None` for no `known`.

    `counts` says which differences matter.
    """
    found = None
    for candidate in known:
        changes = tuple(filter(counts, differences(candidate, signature)))
        if found is None or distance(changes) <= distance(found[1]):
            found = candidate, changes
    return found


def distance(changes: Iterable[Change]) -> float:
    """How far apart two signatures with these differences are; 0 for equals."""
    return sum(change.distance for change in changes)


def _part_changes(old: Parts, new: Parts) -> Iterator[Change]:
    for path, item in new.items():
        if path in old:
            yield from _changes(path, old[path], item)
        else:
            yield Change("structure", path, _ABSENT, str(item), 4.0, _presence(path))
    for path, item in old.items():
        if path not in new:
            yield Change("structure", path, str(item), _ABSENT, 4.0, _presence(path))


def _presence(path: str) -> str:
    return "argument" if _WHOLE_ARGUMENT.fullmatch(path) else ""


def _changes(path: str, was: Item, now: Item) -> Iterator[Change]:
    if isinstance(was, Leaf) and isinstance(now, Leaf):
        yield from _leaf_changes(path, was, now)
    elif isinstance(was, Leaf) or isinstance(now, Leaf):
        yield Change("structure", path, str(was), str(now), 4.0, "None" if "None" in (str(was), str(now)) else "")
    elif was.type != now.type:
        again = "class" if was.type.text == now.type.text else ""
        yield Change("structure", path, was.type.text, now.type.text, 4.0, again)
    else:
        old, new = dict(was.children), dict(now.children)
        if old.keys() == new.keys() and was.auxiliary != now.auxiliary:
            yield from _auxiliary_changes(path, was, now)
        yield from _part_changes(
            {path + suffix: child for suffix, child in old.items()},
            {path + suffix: child for suffix, child in new.items()},
        )


def _auxiliary_changes(path: str, was: Node, now: Node) -> Iterator[Change]:
    old, new = dict(was.attributes), dict(now.attributes)
    named = False
    for name in [*new, *(name for name in old if name not in new)]:
        one, other = old.get(name), new.get(name)
        if one != other:
            named = True
            yield from _value_changes(f"{path}.{name}", one, other)
    if not named and was.auxiliary and now.auxiliary:
        if fields := list(_field_changes(path, was.auxiliary, now.auxiliary)):
            yield from fields
            return
        nature = nature_of(was.auxiliary, now.auxiliary)
        far = 4.0 * _looks_apart(was.auxiliary.text, now.auxiliary.text)
        yield Change("structure", path, was.auxiliary.text, now.auxiliary.text, far, nature)


def _value_changes(path: str, was: Value | None, now: Value | None) -> Iterator[Change]:
    fields = list(_field_changes(path, was, now)) if was and now else []
    was_text, now_text = (value.text if value else _ABSENT for value in (was, now))
    yield from fields or _static_changes(path, was, now, was_text, now_text)


def _static_changes(path: str, was: Value | None, now: Value | None, was_text: str, now_text: str) -> Iterator[Change]:
    """A static value that is another, and where both are functions, what is different of what they have built in."""
    nature, far = nature_of(was, now), _looks_apart(was_text, now_text)
    held, differ = {}, {}
    if was and now and nature in ("function", "mode"):  # of a mode, such as a string, nothing is held
        old, held = dict(was.holds), dict(now.holds)
        differ = {name: text for name, text in held.items() if old.get(name, text) != text}
    variant = "closure" if held else nature
    hint = ", ".join(name.rpartition(" ")[2] for name in differ or held)
    yield Change("static value", path, was_text, now_text, far, variant, hint)
    for name, text in differ.items():
        yield Change("static value", f"{path}, {name}", old[name], text, 0.5)


def _field_changes(path: str, was: Value, now: Value) -> Iterator[Change]:
    """The fields that two records of one type differ in; none where they have no fields, or none differs."""
    if was.type != now.type:
        return
    old, new = dict(was.fields), dict(now.fields)
    for name in [*new, *(name for name in old if name not in new)]:
        if old.get(name) != new.get(name):
            yield from _value_changes(f"{path}.{name}", old.get(name), new.get(name))


def _leaf_changes(path: str, was: Leaf, now: Leaf) -> Iterator[Change]:
    if was.kind == "static" or now.kind == "static":
        if was.kind != now.kind or was.value != now.value:
            if was.value and now.value and (fields := list(_field_changes(path, was.value, now.value))):
                yield from fields
                return
            yield from _static_changes(path, was.value, now.value, str(was), str(now))
        return
    key = "key" if "key<" in was.dtype + now.dtype else ""
    python = "number" if "scalar" in (was.kind, now.kind) else ""
    if was.shape != now.shape:
        far, variant = _shape_distance(was.shape, now.shape), key or _shape_variant(was.shape, now.shape)
        yield Change("shape", path, str(was.shape), str(now.shape), far, variant)
    if was.dtype != now.dtype:
        before, after = (f"{leaf.dtype} ({leaf.source})" if python else leaf.dtype for leaf in (was, now))
        hint = _constructor(was, now) if python else ""
        yield Change("dtype", path, before, after, variant=key or python, hint=hint)
    if was.weak_type != now.weak_type:
        yield Change("weak type", path, _weakness(was), _weakness(now), 1.0, python, _constructor(was, now))
    if was.value != now.value:
        flags = all(leaf.value is not None and isinstance(leaf.value.plain, bool) for leaf in (was, now))
        variant = "mode" if flags else "" if python else "numpy"
        # A Python number is further from an array than an array of another dtype.
        yield Change("number", path, _number(was), _number(now), 0.5 if was.kind == now.kind else 2.0, variant)
    if was.committed != now.committed:
        many = "many" if len(was.devices or now.devices) > 1 else ""
        yield Change("committed", path, _commitment(was), _commitment(now), 1.0, many)
    elif was.sharding != now.sharding or len(was.devices) != len(now.devices):
        meshes = {leaf.sharding.partition(", spec=")[0] for leaf in (was, now) if ", spec=" in leaf.sharding}
        mesh = "mesh" if len(meshes) > 1 else ""
        yield Change("sharding", path, was.sharding or "none", now.sharding or "none", 1.0, mesh)
    elif was.devices != now.devices:
        yield Change("device", path, _device_list(was), _device_list(now))


def _shape_distance(was: tuple[int, ...], now: tuple[int, ...]) -> float:
    """From 1 for sizes that are close to 3 for another number of dimensions."""
    if len(was) != len(now):
        return 3.0
    return 1.0 + sum(abs(a - b) / max(a, b, 1) for a, b in zip(was, now, strict=True)) / max(len(was), 1)


def _shape_variant(was: tuple[int, ...], now: tuple[int, ...]) -> str:
    """Say "ragged" where the first axis alone is smaller than before, "grows" where one axis alone is larger."""
    if len(was) != len(now):
        return ""
    other = [axis for axis in range(len(was)) if was[axis] != now[axis]]
    if len(other) != 1:
        return ""
    if now[other[0]] > was[other[0]]:
        return "grows"
    return "ragged" if other == [0] else ""


def _looks_apart(was: str, now: str) -> float:
    """Objects of one look, such as those of the same lambda, are more likely meant to be one."""
    return 0.5 if was == now else 1.0


def _constructor(was: Leaf, now: Leaf) -> str:
    """What gives a Python number a dtype that both sides fit in, such as `jnp.float32`."""
    name = str(jnp.promote_types(was.dtype, now.dtype)) if was.dtype != now.dtype else now.dtype
    return f"jnp.{name}{'_' if name == 'bool' else ''}"


def _number(leaf: Leaf) -> str:
    return leaf.value.text if leaf.value else str(leaf)


def _weakness(leaf: Leaf) -> str:
    return f"{leaf.weak_type} ({leaf.source})"


def _commitment(leaf: Leaf) -> str:
    return f"committed to {_devices(leaf)}" if leaf.committed else "uncommitted"


def _devices(leaf: Leaf) -> str:
    return leaf.devices[0] if len(leaf.devices) == 1 else f"{len(leaf.devices)} devices ({leaf.sharding})"


def _device_list(leaf: Leaf) -> str:
    more = f" and {len(leaf.devices) - _DEVICES_SHOWN} more" if len(leaf.devices) > _DEVICES_SHOWN else ""
    return ", ".join(leaf.devices[:_DEVICES_SHOWN]) + more


def _moved_to_keywords(
    old: dict[str, Item], new: dict[str, Item]
) -> tuple[list[Change], dict[str, Item], dict[str, Item]]:
    """Arguments that one side passes by position and the other by keyword, and the parts without them."""
    if not (_is_call(old) and _is_call(new)):
        return [], old, new
    (old_args, old_kwargs), (new_args, new_kwargs) = (
        [_children(side[name]) for name in ("args", "kwargs")] for side in (old, new)
    )
    by_position = old_args.keys() ^ new_args.keys()
    by_keyword = old_kwargs.keys() ^ new_kwargs.keys()
    forwards = old_args.keys() > new_args.keys() and old_kwargs.keys() < new_kwargs.keys()
    backwards = old_args.keys() < new_args.keys() and old_kwargs.keys() > new_kwargs.keys()
    if len(by_position) != len(by_keyword) or not (forwards or backwards):
        return [], old, new
    was, now = ("passed by position", "passed by keyword")[:: 1 if forwards else -1]
    moved = [Change("structure", f"kwargs{name}", was, now, 4.0, "keyword") for name in sorted(by_keyword)]
    for name in by_position:
        old_args.pop(name, None), new_args.pop(name, None)
    for name in by_keyword:
        old_kwargs.pop(name, None), new_kwargs.pop(name, None)
    return moved, _joined(old_args, old_kwargs), _joined(new_args, new_kwargs)


def _is_call(parts: Parts) -> bool:
    return parts.keys() == {"args", "kwargs"} and all(isinstance(part, Node) for part in parts.values())


def _children(item: Item) -> Parts:
    return dict(item.children) if isinstance(item, Node) else {}


def _joined(args: Parts, kwargs: Parts) -> Parts:
    return {f"args{name}": item for name, item in args.items()} | {f"kwargs{name}": x for name, x in kwargs.items()}
