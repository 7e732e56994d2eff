"""The differences between two programs, in lines that a person can act on: facts, operations, kernels that split."""

import collections
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping

from perfsuite.measure.program.program import NAME, Operation, Program
from perfsuite.measure.program.program_metrics import gated_facts
from perfsuite.measure.words import number

_MOST = 8
_GROUPS = {
    "collectives": "",
    "cross_slice_collectives": "cross-slice ",
    **dict.fromkeys(("loops", "conditionals", "host_transfers", "custom_calls", "products"), ""),
    **dict.fromkeys(("copies", "transposes", "fusions"), ""),
}
"""The operations that are compared, and what stands before their names."""

_WHOLE = re.compile(r"\Ajit\([^()]*\)/")
"""Every path in a program starts with this, the name of its function. A variant may have another one."""


def program_differences(before: Program, after: Program) -> str:
    """How `after` differs from `before`, one difference a line; empty when every gated fact is equal.

    Facts come first, then the operations that are new (+) and gone (-), with their lines, then the operations that one
    kernel of `before` holds together and no kernel of `after`.
    """
    return "\n".join(_difference_lines(before, after))


def _difference_lines(before: Program, after: Program) -> Iterator[str]:
    was, now = gated_facts(before), gated_facts(after)
    changed = [name for name in dict.fromkeys((*was, *now)) if was.get(name) != now.get(name)]
    if not changed:
        return
    for name in changed:
        yield f"{name}: {_change(was.get(name), now.get(name))}"
    for group, prefix in _GROUPS.items():
        yield from _new_and_gone(getattr(before, group), getattr(after, group), prefix)
    if "peak bytes" in changed:
        least = max(before.peak_bytes, after.peak_bytes) // 100
        yield from _new_and_gone(_arrays(before, least), _arrays(after, least), "alive at the peak: ")
    yield from _unfused(before, after)


def _arrays(program: Program, least: int) -> tuple[Operation, ...]:
    """The arrays of at least so many bytes that a program makes, where its memory is highest."""
    return tuple(array for array in program.at_peak if array.role != "argument" and array.bytes >= least)


def _change(before: float | None, after: float | None) -> str:
    shown = " -> ".join("not known" if value is None else number(value) for value in (before, after))
    return f"{shown} ({after / before - 1:+.2%})" if before and after is not None else shown


def _new_and_gone(before: tuple[Operation, ...], after: tuple[Operation, ...], prefix: str) -> Iterator[str]:
    was = collections.Counter(operation.part for operation in before)
    now = collections.Counter(operation.part for operation in after)
    # The later program's line, where it has the part.
    where = {operation.part: operation.where for operation in (*before, *after)}
    for sign, parts in (("+", now - was), ("-", was - now)):
        for part, count in parts.most_common(_MOST):
            yield f"{sign} {count} x {prefix}{part}: {where[part]}"


def _unfused(before: Program, after: Program) -> Iterator[str]:
    """Kernels of `before` whose operations are all in `after`, but no longer in one kernel."""
    kernels: dict[str, set[int]] = collections.defaultdict(set)
    for index, fusion in enumerate(after.fusions):
        for path in _paths(fusion.op_names):
            kernels[path].add(index)
    alone = _paths(operation.op_name for operation in after.operations)
    shown: set[tuple[str, str]] = set()
    for fusion in before.fusions:
        paths = sorted(path for path in _paths(fusion.op_names) if path in kernels or path in alone)
        split = _split_pair(paths, kernels)
        if split and split not in shown and len(shown) < _MOST:
            shown.add(split)
            yield f"unfused: {split[0]} and {split[1]} were in one kernel: {fusion.where}"


def _paths(op_names: Iterable[str]) -> set[str]:
    return {_WHOLE.sub("", name) for name in op_names}


def _split_pair(paths: list[str], kernels: Mapping[str, set[int]]) -> tuple[str, str] | None:
    """Two primitives of a kernel that no kernel holds together now."""
    for one, other in itertools.combinations(paths, 2):
        if kernels.get(one, set()).isdisjoint(kernels.get(other, set())):
            # The last name of a path is that of the primitive.
            first, second = sorted((NAME.findall(path) or [path])[-1] for path in (one, other))
            if first != second:
                return first, second
    return None
