"""Taking trees apart and putting them together again, by hand and by `cached_filter_jit`."""

import equinox as eqx
import jax
import jax.numpy as jnp
from hypothesis import given, settings
from hypothesis import strategies as st

from perfsuite.workloads.structure import Structure
from perfsuite.workloads.training.cached_jit import cached_filter_jit

from .strategies import assert_same, copied, identity, statics, trees


@settings(max_examples=40)
@given(trees(max_leaves=20))
def test_split_agrees_with_equinox_partition(tree):
    arrays, structure = Structure.split(tree)
    dynamic, static = eqx.partition(tree, eqx.is_array)
    assert [id(array) for array in arrays] == [id(leaf) for leaf in jax.tree.leaves(dynamic)]
    assert list(map(identity, structure.static)) == list(map(identity, jax.tree.leaves(static)))
    assert_same(structure.join(arrays), eqx.combine(dynamic, static))


@given(trees(), statics(), statics())
def test_structures_differ_exactly_when_their_static_leaves_do(tree, a, b):
    (_, one), (_, other) = Structure.split((tree, a)), Structure.split((tree, b))
    assert (one == other) == (identity(a) == identity(b))


def double(leaf):
    """Twice a numeric array; other leaves as they are."""
    return jnp.add(leaf, leaf) if eqx.is_array(leaf) else leaf


def rearranged(*args, **kwargs):
    """Doubled arrays in other places, static leaves, and something that only static leaves decide."""
    leaves = jax.tree.leaves((args, kwargs))
    described = [repr(leaf) for leaf in leaves if not eqx.is_array(leaf)]
    return jax.tree.map(double, (kwargs, args[::-1])), described, [leaf for leaf in leaves if eqx.is_array(leaf)][:1]


@settings(max_examples=20)
@given(
    st.lists(trees(max_leaves=4), max_size=3),
    st.dictionaries(st.sampled_from(["x", "y"]), trees(max_leaves=3), max_size=2),
    trees(max_leaves=4),
)
def test_cached_filter_jit_agrees_with_filter_jit(args, kwargs, constant):
    def fn(*args, **kwargs):
        return rearranged(*args, **kwargs), constant

    expected = eqx.filter_jit(fn)(*args, **kwargs)
    cached = cached_filter_jit(fn)
    for _ in range(2):
        assert_same(cached(*args, **kwargs), expected)
    assert_same(cached(*copied(args), **copied(kwargs)), expected)


@settings(max_examples=12)
@given(st.lists(st.tuples(trees(max_leaves=2), statics()), min_size=2, max_size=4))
def test_cached_filter_jit_never_answers_with_another_arguments_program(calls):
    cached = cached_filter_jit(lambda *args: rearranged(*args))
    for args in [*calls, *calls]:
        expected = jax.tree.map(lambda leaf: jnp.asarray(leaf) if eqx.is_array(leaf) else leaf, rearranged(*args))
        assert_same(cached(*args), expected)
