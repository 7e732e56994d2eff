"""`covers` over any inputs: what it calls uncovered is what compiles when the inputs are run."""

import dataclasses
import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.compiling import compiling

from perfsuite.measure.compiles import compiles
from perfsuite.measure.compiles.warm import covers, warm

pytestmark = pytest.mark.usefixtures("quick_to_compile")


class Pair(NamedTuple):
    one: int
    other: int


@functools.partial(jax.tree_util.register_dataclass, data_fields=["x"], meta_fields=["tag"])
@dataclasses.dataclass
class Tagged:
    x: np.ndarray
    tag: object


COMMITTED = jax.devices()[0]
ARRAYS = [
    np.ones(2, np.float32),
    np.ones(2, np.float64),
    np.ones(3, np.float32),
    np.ones(2, np.int32),
    jnp.ones(2),
    jnp.ones((1, 2)),
    jax.device_put(np.ones(2, np.float32), COMMITTED),
    jax.device_put(np.ones(2, np.int32), COMMITTED),
]
SCALES = [1.0, 2.5, 1, True, np.float32(2), jnp.float32(2), jnp.asarray(2.0), np.ones(2, np.float32)]
MODES = [
    "sum",
    "mean",
    None,
    3,
    4,
    3.0,
    (1, 2),
    (1, 2.0),
    (True, 2),
    np.float32,
    jnp.float32,
    (np.float32,),
    (jnp.float32,),
]
MESHES = [
    jax.make_mesh(shape, names, axis_types=(kind,) * len(names))
    for kind in (jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit)
    for shape, names in [((2,), ("data",)), ((2, 1), ("data", "model")), ((1,), ("data",))]
]
PLACES = [
    jax.NamedSharding(mesh, spec, memory_kind=memory)
    for mesh in MESHES
    for spec in (jax.P(), jax.P(None), jax.P("data"), jax.P("data", None), jax.P("data", "model"), jax.P(None, "data"))
    for memory in (None, "pinned_host" if spec == jax.P("data") else None)
    if {axis for axis in spec if axis} <= set(mesh.axis_names)
]
PLACED = [jax.device_put(np.ones((2, 4), np.float32), place) for place in PLACES]
TAGS = [1, 1.0, True, 2, "a", (1, 2), (1, 2.0), Pair(1, 2), ("a", (1,)), ("a", (1.0,)), np.float32, jnp.float32]
BATCHES = st.one_of(
    st.builds(lambda x: {"x": x}, st.sampled_from(PLACED)),
    st.builds(Tagged, st.sampled_from(ARRAYS[:2]), st.sampled_from(TAGS)),
    st.builds(lambda x: {"x": x}, st.sampled_from(ARRAYS)),
    st.builds(lambda x, y: {"x": x, "y": y}, st.sampled_from(ARRAYS), st.sampled_from([None, *ARRAYS[:2]])),
)
INPUTS = st.tuples(BATCHES, st.sampled_from(SCALES), st.sampled_from(MODES))


def program(batch, scale, mode):
    total = sum(x.sum() for x in jax.tree.leaves(batch))
    return (total * scale).mean() if mode == "mean" else (total * scale).sum()


JITS = {
    "jax.jit": lambda: jax.jit(lambda *args: program(*args), static_argnums=2),
    "filter_jit": lambda: eqx.filter_jit(lambda *args: program(*args)),
}


@settings(max_examples=40)
@given(
    jit=st.sampled_from(list(JITS)),
    over=st.lists(INPUTS, min_size=1, max_size=3),
    more=st.lists(INPUTS, max_size=4),
    order=st.randoms(use_true_random=False),
)
def test_what_is_called_uncovered_is_what_compiles(jit, over, more, order):
    step = JITS[jit]()
    with compiles.observe():
        warmed = warm(step, over=over)
        inputs = [*over, *more]
        order.shuffle(inputs)
        found = covers(warmed, inputs)
        assert [each.first for each in found.uncovered] == compiling(warmed, inputs)
    assert found.inputs == len(inputs)
