"""Pytrees of every kind: nested containers and modules over arrays, and over leaves that are no arrays."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

INEXACT = ("float32", "bfloat16", "float16", "complex64")
EXACT = ("int32", "uint8", "bool")


class Leafless(eqx.Module):
    """No leaves at all."""


class Tagged(eqx.Module):
    """A static field beside a dynamic one."""

    value: Any
    tag: Any = eqx.field(static=True)


class Branch(eqx.Module):
    """Two children, of which the second may be missing."""

    left: Any
    right: Any = None


class Named(NamedTuple):
    """A node that is no module."""

    first: Any
    second: Any


@st.composite
def arrays(draw, dtypes=INEXACT + EXACT):
    """A small JAX array, strongly or weakly typed, or a NumPy array or scalar."""
    dtype = jnp.dtype(draw(st.sampled_from(dtypes)))
    shape = draw(st.sampled_from([(), (2,), (2, 3), (0,)]))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    values = rng.normal(size=shape) * 3
    if dtype.kind == "c":
        values = values + 1j * rng.normal(size=shape)
    if dtype.kind == "u":
        values = np.abs(values)
    values = np.asarray(values).astype(dtype)
    kind = draw(st.sampled_from(["jax", "jax", "jax", "numpy", "weak"]))
    if kind == "numpy":
        return values[()] if draw(st.booleans()) else values
    if kind == "weak" and dtype == jnp.float32:
        return jnp.asarray(float(rng.normal()))
    return jnp.asarray(values)


def statics():
    """Leaves that are no arrays, among them all that Python calls equal and a program must not."""
    return st.one_of(
        st.sampled_from([0, 1, 2, 0.0, -0.0, 1.0, 0.5, float("nan"), float("inf"), True, False, 1j, 0j, -0j]),
        st.sampled_from(["", "a", b"a", jnp.tanh, jax.nn.relu, len, jnp.dtype("float32"), ...]),
    )


@st.composite
def trees(draw, dtypes=INEXACT + EXACT, max_leaves=6):
    """A pytree. Some arrays are in it more than once."""
    pool = draw(st.lists(arrays(dtypes), min_size=1, max_size=2))
    leaves = st.one_of(arrays(dtypes), st.sampled_from(pool), statics(), st.none(), st.just(Leafless()))
    tags = st.one_of(st.sampled_from(["tag", 1, 1.5, None, (1, "x")]))
    return draw(
        st.recursive(
            leaves,
            lambda children: st.one_of(
                st.lists(children, max_size=3),
                st.tuples(children, children),
                st.dictionaries(st.sampled_from("abc"), children, max_size=3),
                st.builds(Tagged, children, tags),
                st.builds(Branch, children, children),
                st.builds(Branch, children),
                st.builds(Named, children, children),
            ),
            max_leaves=max_leaves,
        )
    )


def copied(tree):
    """The same tree with new arrays, one for one: what is shared stays shared."""
    new: dict[int, Any] = {}

    def copy(leaf):
        if not eqx.is_array(leaf):
            return leaf
        return new.setdefault(id(leaf), leaf.copy() if isinstance(leaf, np.ndarray | np.generic) else jnp.copy(leaf))

    return jax.tree.map(copy, tree)


def identity(leaf):
    """Equal for leaves that are the same bit for bit, of the same type."""
    if eqx.is_array(leaf):
        array = np.asarray(leaf)
        return "array", array.dtype, array.shape, array.tobytes()
    return type(leaf), repr(leaf)


def assert_same(actual, expected):
    """Same structure, and the same leaves bit for bit."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for mine, theirs in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert identity(mine) == identity(theirs)
