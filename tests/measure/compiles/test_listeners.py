"""JAX's monitoring: what the listeners take, and what else happens to them."""

import jax
import pytest
from support.compiling import LONG, SHORT, doubling, python_calls

from perfsuite.measure.compiles import compiles
from perfsuite.measure.compiles import listeners as monitor
from perfsuite.measure.errors import MeasurementError, RecompilationError


def test_an_interrupt_inside_the_listener_leaves_jax_and_the_counts_working(monkeypatch):
    def interrupted(site):
        raise KeyboardInterrupt

    step = doubling()
    with compiles.count() as counted:
        with monkeypatch.context() as patch:
            patch.setattr(monitor, "sighting_of", interrupted)
            with pytest.raises(KeyboardInterrupt):
                step(SHORT)
        step(SHORT)
    assert counted.compiles == 1


def test_a_listener_of_our_own_that_fails_does_not_fail_the_compile(monkeypatch):
    def broken(site):
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(monitor, "sighting_of", broken)
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
        monitor._unregister()
    with compiles.observe():
        monitor._unregister()
        with compiles.count() as counted:
            step(SHORT)
    assert counted.compiles == 1


class Clock:
    """Stands for the module `time` in the listeners."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now


@pytest.fixture(params=[0.0, 0.25])
def described_in(request, monkeypatch):
    """The seconds that the listener takes to describe a call. Nothing else takes any time by its clock."""
    clock, real = Clock(), monitor.sighting_of

    def slow(site):
        clock.now += request.param
        return real(site)

    monkeypatch.setattr(monitor, "time", clock)
    monkeypatch.setattr(monitor, "sighting_of", slow)
    return request.param


def test_the_seconds_leave_out_what_the_listener_itself_takes(described_in):
    with compiles.count() as counted:
        for stage in ("jaxpr_to_mlir_module_duration", "backend_compile_duration"):
            event, function = f"/jax/core/compile/{stage}", f"step_{stage}"
            jax.monitoring.record_scalar(event, 0.0, fun_name=function)
            jax.monitoring.record_event_duration_secs(event, 1.0, fun_name=function)
    assert (counted.lowerings, counted.compiles) == (1, 1)
    assert counted.seconds == 2 * (1.0 - described_in)


def test_the_seconds_of_a_trace_leave_it_out_too(described_in, monkeypatch):
    """A trace of JAX's own, which says that it took a second."""
    hear = monitor._on_end

    def takes_a_second(event, duration_secs, **kwargs):
        hear(event, 1.0, **kwargs)

    monkeypatch.setattr(monitor, "_on_end", takes_a_second)
    with compiles.count() as counted:
        doubling().trace(SHORT)
    assert counted.traces == 1
    assert counted.seconds == 1.0 - described_in


def test_nothing_is_called_on_the_hit_path():
    step = doubling()
    step(SHORT)
    step(SHORT)
    outside = python_calls(step, SHORT)
    with compiles.forbid(), compiles.count():
        assert python_calls(step, SHORT) == outside
