"""Properties of signatures over any tree of arguments."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfsuite.measure.compiles.signature import changes_between, signature_of

ARRAYS = {
    (shape, dtype): np.zeros(shape, dtype)
    for shape in [(), (3,), (2, 5), (0, 4)]
    for dtype in ("float32", "int32", "bool")
}
WEAK = jnp.asarray(1.0)
TEXTS = ("train", "eval")

leaves = st.one_of(
    st.sampled_from(list(ARRAYS.values())),
    st.sampled_from([None, 1, 2.5, True, WEAK, float("nan"), *TEXTS]),
)
names = st.sampled_from(["ids", "mask", "weight"])
trees = st.recursive(
    leaves,
    lambda children: st.one_of(
        st.lists(children, max_size=3),
        st.tuples(children, children),
        st.dictionaries(names, children, max_size=3),
    ),
    max_leaves=8,
)
calls = st.tuples(st.lists(trees, max_size=3).map(tuple), st.dictionaries(names, trees, max_size=2))


def sides(changes) -> set[tuple[str, str, str, str]]:
    return {(change.kind, change.path, change.was, change.now) for change in changes}


@given(calls)
def test_equal_inputs_have_no_differences(arguments):
    args, kwargs = arguments
    one, other = signature_of(args, kwargs), signature_of(jax.tree.map(lambda leaf: leaf, args), dict(kwargs))
    assert one == other
    assert hash(one) == hash(other)
    assert changes_between(one, other) == ()


@given(calls, calls)
def test_differences_are_symmetric_and_there_are_none_only_between_equals(one, other):
    before, after = signature_of(*one), signature_of(*other)
    forwards, backwards = changes_between(before, after), changes_between(after, before)
    assert sides(forwards) == {(kind, path, now, was) for kind, path, was, now in sides(backwards)}
    assert (forwards == ()) == (before == after)
    assert all(map(str, forwards))


REPLACEMENTS = {
    "shape": lambda: (np.zeros((3,), "float32"), np.zeros((4,), "float32")),
    "dtype": lambda: (np.zeros((3,), "float32"), np.zeros((3,), "float16")),
    "weak type": lambda: (jnp.float32(1), WEAK),
    "static value": lambda: TEXTS,
    "number": lambda: (1, 2),
    "structure": lambda: (None, np.zeros(3)),
}


@given(calls, st.sampled_from(list(REPLACEMENTS)), st.data())
def test_one_planted_change_is_named_at_its_path(arguments, kind, data):
    before, after = REPLACEMENTS[kind]()
    args, kwargs = arguments
    where = data.draw(st.sampled_from(["position", "keyword", "inside"]))
    if where == "position":
        place = data.draw(st.integers(0, len(args)))
        path = f"args[{place}]"
        one, other = (signature_of((*args[:place], x, *args[place:]), kwargs) for x in (before, after))
    elif where == "keyword":
        path = "kwargs['planted']"
        one, other = (signature_of(args, kwargs | {"planted": x}) for x in (before, after))
    else:
        path = f"args[{len(args)}]['a'][1]['planted']"
        one, other = (signature_of((*args, {"a": [args, {"planted": x}]}), kwargs) for x in (before, after))
    (found,) = changes_between(one, other)
    assert (found.kind, found.path) == (kind, path)
    assert str(found).startswith(f"{path}: ")
