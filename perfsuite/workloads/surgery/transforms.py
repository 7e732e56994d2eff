"""Replacing the sub-modules of a model whose paths match patterns.

A plan maps patterns to transforms. A pattern is matched with the names that `iter_module` gives, by the rules of
`fnmatch`: `*` stands for any characters, dots too, `[0-9]` for one digit. A transform takes a sub-module and returns
its replacement.

    plan = {"*.attention.query": column_parallel, "*.attention.output.dense": row_parallel}
    model = apply_transforms(model, plan)

| function | does |
|---|---|
| `apply_transforms` | builds new nodes on the paths, and no others: use this one |
| `apply_transforms_batched` | one `equinox.tree_at` for all replacements |
| `apply_transforms_one_by_one` | one `equinox.tree_at` a replacement: the reference |

All three give the same tree and raise the same errors.
"""

import difflib
import fnmatch
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.tree_util import KeyPath

from perfsuite.workloads.structure import is_array_or_struct, path_name
from perfsuite.workloads.surgery.module_paths import SubModule, sub_modules
from perfsuite.workloads.surgery.replacing import replace_at_once, replace_on_paths, replace_one_by_one

Transform = Callable[[Any], Any]
Plan = Mapping[str, Transform]


class PlanError(ValueError):
    """The plan does not fit the model. The message names pattern and path."""


def apply_transforms(module: Any, plan: Plan, *, strict: bool = False, same_shapes: bool = True) -> Any:
    """`module` with every sub-module that a pattern of `plan` matches replaced by what the pattern's transform returns.

    `module` itself does not change, and the result shares with it everything that was not replaced. A sub-module that
    is in the tree several times is replaced where its names match, and is transformed once for a pattern, so that the
    places still share it. No `__init__` and no `__check_init__` of the Equinox modules around it runs.

    A pattern that matches nothing is a warning, or, if `strict`, a `PlanError`. Always a `PlanError`: two patterns that
    match the same path, a match inside of another match, a transform that returns `None`, and one that gives an array
    another shape, which would fail only where the array is used. `same_shapes=False` allows that, as for a new head.
    """
    return replace_on_paths(module, find_replacements(module, plan, strict=strict, same_shapes=same_shapes))


def apply_transforms_batched(module: Any, plan: Plan, *, strict: bool = False, same_shapes: bool = True) -> Any:
    """`apply_transforms` with one `equinox.tree_at` for all replacements."""
    return replace_at_once(module, find_replacements(module, plan, strict=strict, same_shapes=same_shapes))


def apply_transforms_one_by_one(module: Any, plan: Plan, *, strict: bool = False, same_shapes: bool = True) -> Any:
    """`apply_transforms` with one `equinox.tree_at` a replacement: the reference for the others."""
    return replace_one_by_one(module, find_replacements(module, plan, strict=strict, same_shapes=same_shapes))


def find_replacements(module: Any, plan: Plan, *, strict: bool = False, same_shapes: bool = True) -> dict[KeyPath, Any]:
    """The new sub-modules of `plan` by path. All ways to put them there share this half of `apply_transforms`."""
    chosen = _chosen(module, plan, strict)
    made: dict[tuple[int, str], Any] = {}
    for place, pattern in chosen.values():
        key = id(place.module), pattern
        if key not in made:
            made[key] = _transformed(place, pattern, plan[pattern], same_shapes)
    return {path: made[id(place.module), pattern] for path, (place, pattern) in chosen.items()}


def _chosen(module: Any, plan: Plan, strict: bool) -> dict[KeyPath, tuple[SubModule, str]]:
    matchers = [(pattern, re.compile(fnmatch.translate(pattern)).match) for pattern in plan]
    chosen: dict[KeyPath, tuple[SubModule, str]] = {}
    names = []
    for place in sub_modules(module):
        names.append(place.name)
        matching = [pattern for pattern, match in matchers if match(place.name)]
        if not matching:
            continue
        if len(matching) > 1:
            both = " and ".join(map(repr, matching))
            raise PlanError(f"patterns {both} match the same path, {_shown(place.name)}; make them exclude each other")
        chosen[place.path] = place, matching[0]
        for length in range(len(place.path)):
            if place.path[:length] in chosen:
                outer, pattern = chosen[place.path[:length]]
                raise PlanError(
                    f"pattern {matching[0]!r} matches {_shown(place.name)}, which is inside of {_shown(outer.name)}, "
                    f"which pattern {pattern!r} matches; choose one of them (`*` stands for dots too), or the inner "
                    f"one in a call before"
                )
    used = {pattern for _, pattern in chosen.values()}
    for pattern in plan:
        if pattern not in used:
            message = f"pattern {pattern!r} matches no sub-module; names that come close: {_close(pattern, names)}"
            if strict:
                raise PlanError(message)
            warnings.warn(message, stacklevel=4)
    return chosen


def _transformed(place: SubModule, pattern: str, transform: Transform, same_shapes: bool) -> Any:
    try:
        new = transform(place.module)
    except Exception as error:
        error.add_note(f"in the transform of pattern {pattern!r} at {_shown(place.name)}")
        raise
    if new is None:
        raise PlanError(
            f"the transform of pattern {pattern!r} returns None at {_shown(place.name)}; let it return the new "
            f"sub-module (equinox.nn.Identity() to remove one)"
        )
    if same_shapes:
        _check_shapes(place, pattern, new)
    return new


def _check_shapes(place: SubModule, pattern: str, new: Any) -> None:
    before, after = _shapes(place.module), _shapes(new)
    made = {path: shape for path, shape in after.items() if before.get(path) != shape}
    for path, shape in before.items():
        if after.get(path) == shape:
            continue
        # In a wrapping module an array has a longer path, which ends in the old one.
        same = [other for longer, other in made.items() if longer[len(longer) - len(path) :] == path]
        if same and shape not in same:
            array = path_name(path) or "the array"
            raise PlanError(
                f"the transform of pattern {pattern!r} at {_shown(place.name)} makes {array} of shape {shape} one of "
                f"shape {same[0]}; if that is meant, pass same_shapes=False"
            )


def _shapes(tree: Any) -> dict[KeyPath, tuple[int, ...]]:
    return {path: leaf.shape for path, leaf in jax.tree.leaves_with_path(tree) if is_array_or_struct(leaf)}


def _shown(name: str) -> str:
    return repr(name) if name else "'' (the model itself)"


def _close(pattern: str, names: list[str]) -> str:
    # By the part after the last dot: most patterns begin with a wildcard.
    first_with = {name.rpartition(".")[2]: name for name in reversed(names)}
    close = difflib.get_close_matches(pattern.rpartition(".")[2], first_with, n=3, cutoff=0.0)
    return ", ".join(_shown(first_with[tail]) for tail in close) or "there is none"
