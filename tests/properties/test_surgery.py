"""Finding sub-modules and replacing them, in trees of every kind."""

import dataclasses
import warnings

import jax
from hypothesis import given
from hypothesis import strategies as st
from jax.tree_util import keystr

from perfsuite.workloads.surgery.module_paths import at_path, iter_module, sub_modules
from perfsuite.workloads.surgery.replacing import replace_at_once, replace_on_paths, replace_one_by_one
from perfsuite.workloads.surgery.transforms import (
    PlanError,
    apply_transforms,
    apply_transforms_batched,
    apply_transforms_one_by_one,
)

from .module_trees import any_plans, fitting_plans, matched, module_trees, reshaped, same, separate
from .strategies import identity, trees

APPLY = (apply_transforms, apply_transforms_batched, apply_transforms_one_by_one)
REPLACE = (replace_on_paths, replace_at_once, replace_one_by_one)


def walk(tree, path=()):
    """Everything in `tree` with its path, parents first: nodes, leaves and `None`."""
    yield path, tree
    for below, child in jax.tree.leaves_with_path(tree, is_leaf=lambda node: node is not tree):
        if below:
            yield from walk(child, path + below)


def is_inside(path, paths):
    """Whether `path` is one of `paths` or leads through one."""
    return any(path[: len(outer)] == outer for outer in paths)


def assert_identical(actual, expected):
    """Same structure, and the very same leaves."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for mine, theirs in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert mine is theirs


def contents(tree):
    """What every object in `tree` holds, without a look through JAX's eyes."""

    def held(node):
        if isinstance(node, dict):
            return list(node.items())
        if isinstance(node, list | tuple):
            return list(enumerate(node))
        return list(vars(node).items()) if hasattr(node, "__dict__") else []

    return [(node, held(node)) for _, node in walk(tree)]


def assert_untouched(tree, before):
    """`tree` holds the very same objects as when `contents` was asked."""
    for (node, held), (old_node, old_held) in zip(contents(tree), before, strict=True):
        assert node is old_node
        assert [(name, id(value)) for name, value in held] == [(name, id(value)) for name, value in old_held]


def outcome(apply, tree, plan, **options):
    """The tree or `None`, and beside it everything else that a user sees of the call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result, error = apply(tree, plan, **options), None
        except Exception as raised:
            result, error = None, (type(raised), str(raised), getattr(raised, "__notes__", None))
    return result, (error, [(warning.category, str(warning.message), warning.filename) for warning in caught])


@given(module_trees())
def test_places_are_all_dataclasses_that_are_nodes_with_names_of_their_own_and_parents_first(tree):
    expected = [
        (path, keystr(path, simple=True, separator="."), node)
        for path, node in walk(tree)
        if dataclasses.is_dataclass(node) and not jax.tree_util.all_leaves([node])
    ]
    found = list(sub_modules(tree))
    assert [(place.path, place.name, id(place.module)) for place in found] == [
        (path, name, id(node)) for path, name, node in expected
    ]
    assert len({place.name for place in found}) == len(found)
    assert all(at_path(tree, place.path) is place.module for place in found)
    before = set()
    for place in found:
        before.add(place.path)
        above = [
            path for path, node in walk(tree) if place.path[: len(path)] == path and dataclasses.is_dataclass(node)
        ]
        assert before.issuperset(above)


@given(module_trees())
def test_iter_module_gives_every_sub_module_once_under_its_first_name(tree):
    first = {}
    for place in sub_modules(tree):
        first.setdefault(id(place.module), place.name)
    found = list(iter_module(tree))
    assert found[0][0] == ""
    assert found[0][1] is tree
    assert [(name, id(module)) for name, module in found] == [(name, module) for module, name in first.items()]


@st.composite
def replacements(draw):
    """A module, and other values for nodes and leaves of it that are not inside of each other."""
    tree = draw(module_trees())
    # None is no node that could be replaced: tree_at does not find it.
    paths = [path for path, node in walk(tree) if node is not None]
    chosen = []
    for path in draw(st.lists(st.sampled_from(paths[::-1]), max_size=4)):
        if separate([*chosen, path]):
            chosen.append(path)
    return tree, {path: draw(trees(max_leaves=2)) for path in chosen}


@given(replacements())
def test_three_ways_of_replacing_give_the_same_tree_and_leave_the_old_one(case):
    tree, new = case
    before = contents(tree)
    quick, *others = [replace(tree, new) for replace in REPLACE]
    assert_untouched(tree, before)
    for other in others:
        assert_identical(quick, other)
    for path, value in new.items():
        assert at_path(quick, path) is value


@given(any_plans(), st.booleans(), st.booleans())
def test_three_ways_end_alike_with_any_plan(case, strict, same_shapes):
    tree, plan = case
    before = contents(tree)
    (quick, seen), *others = [outcome(apply, tree, plan, strict=strict, same_shapes=same_shapes) for apply in APPLY]
    assert_untouched(tree, before)
    for other, other_seen in others:
        assert other_seen == seen
        assert_identical(quick, other)


@given(fitting_plans())
def test_chosen_places_hold_what_the_transform_returned_and_all_others_what_they_held(case):
    tree, plan = case
    returned = {path: plan[pattern](at_path(tree, path)) for pattern in plan for path in matched(tree, pattern)}
    quick, *others = [apply(tree, plan) for apply in APPLY]
    for path, value in returned.items():
        assert at_path(quick, path) is value
        for other in others:
            assert_identical(at_path(other, path), value)
    for result in (quick, *others):
        old, new = (
            [(path, id(leaf)) for path, leaf in jax.tree.leaves_with_path(whole) if not is_inside(path, returned)]
            for whole in (tree, result)
        )
        assert new == old
    for path, node in walk(tree):
        on_a_path = any(inner[: len(path)] == path for inner in returned)
        if not on_a_path and not is_inside(path, returned):
            assert at_path(quick, path) is node


@given(any_plans(kinds=(same,)), st.booleans())
def test_plan_is_refused_exactly_when_its_patterns_collide_or_strictly_when_one_matches_nothing(case, strict):
    tree, plan = case
    found = {pattern: matched(tree, pattern) for pattern in plan}
    collide = not separate([path for paths in found.values() for path in paths])
    unused = [pattern for pattern, paths in found.items() if not paths]
    for apply in APPLY:
        _, (error, warned) = outcome(apply, tree, plan, strict=strict)
        if collide or (unused and strict):
            assert error[0] is PlanError
            assert warned == []
        else:
            assert error is None
            assert [message.split(" matches")[0] for _, message, _ in warned] == [
                f"pattern {name!r}" for name in unused
            ]
            assert {filename for _, _, filename in warned} <= {__file__}


@given(fitting_plans(kinds=(same, reshaped)))
def test_shapes_are_checked_in_every_chosen_module_that_has_an_array(case):
    tree, plan = case
    has_other_shapes = any(
        identity(leaf)[0] == "array"
        for pattern, change in plan.items()
        if change.kind is reshaped
        for path in matched(tree, pattern)
        for leaf in jax.tree.leaves(at_path(tree, path))
    )
    for apply in APPLY:
        _, (error, _) = outcome(apply, tree, plan)
        assert (error is not None) == has_other_shapes
        _, (error, _) = outcome(apply, tree, plan, same_shapes=False)
        assert error is None
