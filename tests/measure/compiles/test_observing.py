"""`observing_compiles`: the first compile is remembered too, and what waits for it is gone once a measurement begins."""

import jax
import jax.numpy as jnp
from support.compiling import refusal

from perfsuite.measure.compiles.compiles import open_contexts
from perfsuite.measure.compiles.observing import observing_compiles


def test_it_begins_with_the_first_compile_and_remembers_that_one():
    step = jax.jit(lambda x: x + 1)
    first, second, third = (jnp.ones(size) for size in (3, 4, 5))
    with observing_compiles():
        assert not open_contexts()
        step(first)
        assert len(open_contexts()) == 1
        step(second)
        assert len(open_contexts()) == 1
        assert refusal(step, third).changes == ("args[0]: shape was (4,), is (5,)",)
    assert not open_contexts()


def test_begun_at_once_it_observes_once():
    with observing_compiles() as begin:
        begin()
        begin()
        assert len(open_contexts()) == 1
    assert not open_contexts()


def test_one_in_which_nothing_compiles_never_begins():
    with observing_compiles():
        pass
    assert not open_contexts()
