"""A probe sees that a name is used in another way, and its answer depends on nothing that surrounds it."""

import contextlib
import sys

import jax
import pytest
from jax._src.interpreters import partial_eval

from perfsuite.measure.private import capabilities, jax_stack, names
from perfsuite.measure.private.capabilities import (
    CAPABILITIES,
    COMPILE_EVENTS,
    FIRST_CALLS,
    PROGRAM_RUNS,
    SLOW_PATH,
    STACK,
    TRACES,
)
from perfsuite.measure.private.names import Frame, Name

PROBED = [COMPILE_EVENTS, TRACES, STACK, SLOW_PATH, PROGRAM_RUNS, FIRST_CALLS]


@pytest.fixture(autouse=True)
def asked_anew():
    capabilities.forget()
    yield
    capabilities.forget()


@pytest.mark.parametrize("capability", CAPABILITIES, ids=lambda each: each.name)
def test_each_capability_works_here(capability):
    assert capability.lost() == ""


def test_a_trace_that_is_told_twice_or_not_at_all_is_no_count(monkeypatch):
    told = partial_eval.test_event
    for times in (0, 2):
        capabilities.forget()
        # JAX looks the name up each time: what stands there tells `times` times whom the probe puts there.
        monkeypatch.setattr(names.Name, "replaced", _telling(times, told))
        assert f"{times} times" in TRACES.lost()


def _telling(times, told):
    @contextlib.contextmanager
    def replaced(self, make):
        heard = make(told)

        def tell(name, *args):
            for _ in range(times if name == "trace_to_jaxpr" else 0):
                heard.listener(sys._getframe(1))

        before = partial_eval.test_event
        partial_eval.test_event = tell
        try:
            yield
        finally:
            partial_eval.test_event = before

    return replaced


def test_what_jax_jit_was_told_is_read_back(monkeypatch):
    monkeypatch.setattr(jax_stack, "static_arguments", lambda jitted: ((), ()))
    monkeypatch.setattr(jax_stack, "_statics_of", lambda info: ((), ()))
    assert STACK.lost() == "a jitted function does not say what jax.jit was told"


def test_a_name_that_is_there_and_that_nobody_calls_is_missing(tmp_path, monkeypatch):
    text = "def kept(): pass\ndef called(): pass\nalias = kept\ndef main(): called()\n"
    (tmp_path / "a_library_of_this_test.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert not Name("a_library_of_this_test", "called", called=True).missing()
    missing = Name("a_library_of_this_test", "kept", called=True).missing()
    assert missing == "a_library_of_this_test.kept is there, and no function of its module calls it"


@pytest.mark.parametrize(
    ("since", "until", "current"),
    [("0.14.0", "", True), ("", "0.14.0", False), ("0.13.1", "0.14.1", True), ("0.14.1", "", False)],
)
def test_a_nightly_wheel_has_the_names_of_its_release(monkeypatch, since, until, current):
    monkeypatch.setattr("importlib.metadata.version", lambda _: "0.14.0.dev20261127")
    assert Frame("jax._src.pjit", "cache_miss", since=since, until=until).is_current() == current


def test_an_error_of_a_users_listener_holds_for_the_test_that_asked_alone():
    def forbid(event, value, **_):
        if "compile" in event:
            raise ValueError("this test may not compile")

    jax.monitoring.register_scalar_listener(forbid)
    try:
        assert "this test may not compile" in PROGRAM_RUNS.lost()
    finally:
        jax.monitoring.unregister_scalar_listener(forbid)
    assert PROGRAM_RUNS.lost() == ""


def test_a_probe_that_always_fails_is_not_asked_for_ever(monkeypatch):
    asked = []
    monkeypatch.setattr(STACK, "_probe", lambda: asked.append(0) or 1 / 0)
    for _ in range(9):
        assert STACK.lost() == "ZeroDivisionError: division by zero"
    assert len(asked) == 3


@pytest.mark.parametrize("capability", PROBED, ids=lambda each: each.name)
@pytest.mark.parametrize(
    "around", [jax.disable_jit, lambda: jax.no_tracing(True), lambda: jax.transfer_guard("disallow")]
)
def test_a_probe_works_inside_of_what_a_test_may_be_inside_of(capability, around):
    with around():
        assert capability.lost() == ""


def test_a_probe_puts_nothing_into_the_users_cache(tmp_path):
    names_of = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names_of}
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    try:
        assert [each.lost() for each in PROBED] == [""] * len(PROBED)
        assert jax.config.jax_persistent_cache_min_compile_time_secs == 0
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
    assert list(tmp_path.iterdir()) == []
