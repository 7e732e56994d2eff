"""A probe sees that a name is used in another way, and where a capability is lost the rest goes on and says so."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perfsuite.measure.call import call
from perfsuite.measure.compiles import compiles
from perfsuite.measure.errors import RecompilationError
from perfsuite.measure.private import capabilities, compile_events, execution, jax_stack
from perfsuite.measure.private.capabilities import (
    CAPABILITIES,
    CHANCE_CALLS,
    COMPILE_EVENTS,
    FIRST_CALLS,
    PROGRAM_RUNS,
    SLOW_PATH,
    STACK,
    TRACES,
    TRANSFERS,
    CapabilityLost,
    fallbacks,
)
from perfsuite.measure.private.names import Attribute, Frame, Name
from perfsuite.measure.runtime.host_calls import host_calls
from perfsuite.measure.timing.block import waiting_for
from tests.support.private_names import taken_away, without

_EVAL, _PXLA = "jax._src.interpreters.partial_eval", "jax._src.interpreters.pxla"
PROBED = [COMPILE_EVENTS, TRACES, STACK, SLOW_PATH, PROGRAM_RUNS, FIRST_CALLS]


@pytest.fixture(autouse=True)
def asked_anew():
    capabilities.forget()
    yield
    capabilities.forget()


@pytest.mark.parametrize("capability", CAPABILITIES, ids=lambda each: each.name)
def test_each_capability_works_here(capability):
    assert capability.lost() == ""


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


X = np.ones(3, np.float32)


def counted(run):
    with compiles.count() as seen:
        run()
    return seen.lowerings, seen.compiles


@pytest.mark.parametrize("lost", [TRACES, STACK, CHANCE_CALLS], ids=lambda each: each.name)
def test_a_recompilation_is_counted_and_refused(lost):
    step = jax.jit(lambda x: x * 2)
    with without(lost):
        assert counted(lambda: step(X)) == (1, 1)
        assert counted(lambda: step(X)) == (0, 0)
        with pytest.raises(RecompilationError) as error, compiles.forbid():
            step(X[:2])
        assert error.value.stage == ("lower" if lost is TRACES else "trace")


def test_without_the_stack_the_cause_is_unknown():
    with without(STACK), pytest.raises(RecompilationError, match=r"cause unknown with this jax"), compiles.forbid():
        jax.jit(lambda x: x * 3)(X)


def test_a_call_is_timed_until_all_its_outputs_are_ready_where_programs_are_not_seen():
    with without(PROGRAM_RUNS):
        assert waiting_for(lambda: jnp.asarray(X)) is jax.block_until_ready
        with pytest.raises(CapabilityLost, match="timing the call, which returns no array, does not work"):
            waiting_for(lambda: None)
        assert [line for line in fallbacks() if "times include waiting for every output" in line]
    assert not fallbacks()


def test_what_goes_on_in_another_way_is_said_once():
    step = jax.jit(lambda x: x * 11)
    with without(TRACES), without(CHANCE_CALLS):
        for _ in range(2):
            with contextlib.suppress(RecompilationError), compiles.forbid():
                step(X)
            host_calls(call(step, X))
        assert [line.partition(":")[0].partition(f"{jax.__version__} ")[2] for line in fallbacks()] == [
            "no trace is refused, only what it leads to, and a cached one counts too",
            "host calls depend on threads, on living arrays and on earlier tests",
        ]


@pytest.mark.parametrize(
    ("capability", "module", "constant", "other", "answer"),
    [
        (TRACES, compile_events, "_EVENT", Name(_EVAL, "convert_constvars_jaxpr"), "0 times with its name"),
        (STACK, jax_stack, "_INFO", Attribute("jax._src.pjit", "jaxpr"), "does not say what jax.jit was told"),
        (
            PROGRAM_RUNS,
            execution,
            "_EXECUTE",
            Name(_PXLA, "ExecuteReplicated._handle_token_bufs"),
            "runs once is seen 0 times",
        ),
        (TRANSFERS, execution, "_PUT", Name("jax._src.lib", "xla_client.make_cpu_client"), "an explicit transfer"),
        (TRANSFERS, execution, "_VALUE", Name("jax._src.array", "ArrayImpl.global_shards"), "an implicit transfer"),
    ],
    ids=lambda each: each if isinstance(each, str) and each.startswith("_") else "",
)
def test_a_name_that_means_something_else_is_a_capability_lost(
    capability, module, constant, other, answer, monkeypatch
):
    monkeypatch.setattr(module, constant, other)
    assert answer in capability.lost()


def test_what_builds_on_a_lost_capability_is_lost_too():
    with taken_away(compile_events._EVENT):
        capabilities.forget()
        assert "test_event" in FIRST_CALLS.lost()
