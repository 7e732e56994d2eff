"""JAX's monitoring: what the listeners take, and what else happens to them."""

import jax
import pytest
from support.compiling import LONG, SHORT, doubling, python_calls

from perfsuite.measure.compiles import compiles
from perfsuite.measure.errors import MeasurementError, RecompilationError


def test_an_interrupt_inside_the_listener_leaves_jax_and_the_counts_working(monkeypatch):
    def interrupted(site):
        raise KeyboardInterrupt

    step = doubling()
    with compiles.count() as counted:
        with monkeypatch.context() as patch:
            patch.setattr(compiles, "sighting_of", interrupted)
            with pytest.raises(KeyboardInterrupt):
                step(SHORT)
        step(SHORT)
    assert counted.compiles == 1


def test_a_listener_of_our_own_that_fails_does_not_fail_the_compile(monkeypatch):
    def broken(site):
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(compiles, "sighting_of", broken)
    step = doubling()
    with compiles.count() as counted:
        step(SHORT)
    assert counted.compiles == 1
    with pytest.raises(RecompilationError, match="could not describe the call: RuntimeError"), compiles.forbid():
        step(LONG)


def test_listeners_of_others_stay_in_place():
    heard = []

    def listener(event, duration, **kwargs):
        heard.append(event)

    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        with compiles.count():
            doubling()(SHORT)
        before = len(heard)
        doubling()(SHORT)
        assert len(heard) > before
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)


def test_removed_listeners_are_noticed_and_put_back():
    """`jax.monitoring.clear_event_listeners()` removes everybody's; this removes ours alone."""
    step = doubling()
    with pytest.raises(MeasurementError, match="removed perfsuite's monitoring listeners"), compiles.forbid():
        compiles._unregister()
    with compiles.observe():
        compiles._unregister()
        with compiles.count() as counted:
            step(SHORT)
    assert counted.compiles == 1


def test_nothing_is_called_on_the_hit_path():
    step = doubling()
    step(SHORT)
    step(SHORT)
    outside = python_calls(step, SHORT)
    with compiles.forbid(), compiles.count():
        assert python_calls(step, SHORT) == outside
