"""What is different between two programs, in lines that a person can act on: facts, operations, kernels that split."""

import collections
import re
from collections.abc import Iterable, Iterator, Mapping

from perfsuite.measure.program.program import NAME, Operation, Program
from perfsuite.measure.program.program_metrics import facts_of

_MOST = 8

_WHOLE = re.compile(r"\Ajit\([^()]*\)/")
"""What every path in a program starts with: the name of its function, which may be another one in a variant."""


def differences(before: Program, after: Program) -> str:
    """How `after` differs from `before`, one difference a line; empty when every gated fact is equal.

    Facts come first, then the operations that were added (+) and removed (-), with the line they come from, then the
    operations that one kernel held and none does any more.
    """
    return "\n".join(_lines(before, after))


def _lines(before: Program, after: Program) -> Iterator[str]:
    was, now = facts_of(before), facts_of(after)
    changed = [name for name in was if was[name] != now.get(name)]
    if not changed:
        return
    for name in changed:
        yield f"{name}: {_number(was[name])} -> {_number(now.get(name, 0))}{_relative(was[name], now.get(name, 0))}"
    for group in ("collectives", "host_transfers", "custom_calls", "products", "copies", "transposes", "fusions"):
        yield from _moved(getattr(before, group), getattr(after, group))
    yield from _unfused(before, after)


def _moved(before: tuple[Operation, ...], after: tuple[Operation, ...]) -> Iterator[str]:
    was = collections.Counter(operation.part for operation in before)
    now = collections.Counter(operation.part for operation in after)
    where = {
        operation.part: operation.where for operation in (*before, *after)
    }  # the later program's, where it has one
    for sign, parts in (("+", now - was), ("-", was - now)):
        for part, count in parts.most_common(_MOST):
            yield f"{sign} {count} x {part}: {where[part]}"


def _unfused(before: Program, after: Program) -> Iterator[str]:
    """Kernels of `before` whose operations are all in `after`, but no longer in one kernel."""
    kernels: dict[str, set[int]] = collections.defaultdict(set)
    for number, fusion in enumerate(after.fusions):
        for name in _paths(fusion.op_names):
            kernels[name].add(number)
    alone = _paths(operation.op_name for operation in after.operations)
    told: set[tuple[str, str]] = set()
    for fusion in before.fusions:
        names = sorted(name for name in _paths(fusion.op_names) if name in kernels or name in alone)
        split = _split(names, kernels)
        if split and split not in told and len(told) < _MOST:
            told.add(split)
            one, other = split
            yield f"unfused: {one} and {other} were in one kernel: {fusion.where}"


def _paths(op_names: Iterable[str]) -> set[str]:
    return {_WHOLE.sub("", name) for name in op_names}


def _split(names: list[str], kernels: Mapping[str, set[int]]) -> tuple[str, str] | None:
    """Two primitives of a kernel that no kernel holds together now."""
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            if kernels.get(one, set()).isdisjoint(kernels.get(other, set())):
                pair = sorted((_primitive(one), _primitive(other)))
                if pair[0] != pair[1]:
                    return pair[0], pair[1]
    return None


def _primitive(op_name: str) -> str:
    names = NAME.findall(op_name)
    return names[-1] if names else op_name


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.4g}"


def _relative(was: float, now: float) -> str:
    return f" ({now / was - 1:+.2%})" if was else ""
