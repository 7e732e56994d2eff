"""`observing`: the first compile is remembered too, and what waits for it is gone once a measurement begins."""

import jax
import jax.numpy as jnp
import pytest

from perfsuite.measure.compiles import compiles
from perfsuite.measure.compiles.listeners import open_contexts
from perfsuite.measure.compiles.observing import observing
from perfsuite.measure.errors import RecompilationError


def test_it_begins_with_the_first_compile_and_remembers_that_one():
    step = jax.jit(lambda x: x + 1)
    first, second, third = (jnp.ones(size) for size in (3, 4, 5))
    with observing():
        assert not open_contexts()
        step(first)
        assert len(open_contexts()) == 1
        step(second)
        assert len(open_contexts()) == 1
        with pytest.raises(RecompilationError, match="nearest of 2 known signatures"), compiles.forbid():
            step(third)
    assert not open_contexts()


def test_begun_at_once_it_leaves_no_listener_of_its_own(monkeypatch):
    registered = []
    register, unregister = jax.monitoring.register_scalar_listener, jax.monitoring.unregister_scalar_listener
    monkeypatch.setattr(
        jax.monitoring, "register_scalar_listener", lambda each: (registered.append(each), register(each))
    )
    monkeypatch.setattr(
        jax.monitoring, "unregister_scalar_listener", lambda each: (unregister(each), registered.remove(each))
    )
    with observing() as begin:
        assert len(registered) == 1
        begin()
        begin()
        assert len(open_contexts()) == 1
        assert [each.__module__ for each in registered] == ["perfsuite.measure.compiles.listeners"]
    assert not open_contexts()
    assert not registered


def test_one_in_which_nothing_compiles_never_begins():
    with observing():
        pass
    assert not open_contexts()
