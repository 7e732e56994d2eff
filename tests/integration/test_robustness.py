"""What goes wrong in the middle: a broken clock, an interrupt, an exception, a listener of somebody else's."""

import functools
import gc
import itertools
import json
import math
import signal
import sys
import threading
import time
from contextlib import nullcontext as nothing
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perfsuite.measure.call import call
from perfsuite.measure.compiles import compiles
from perfsuite.measure.errors import MeasurementError, RecompilationError, TransferError
from perfsuite.measure.metric import Metric
from perfsuite.measure.runtime import transfers
from perfsuite.measure.runtime.fast_path import fast_path
from perfsuite.measure.runtime.host_calls import host_calls
from perfsuite.measure.runtime.memory import memory_of
from perfsuite.measure.runtime.transfers import count_transfers, forbid_transfers, transfers_of
from perfsuite.measure.serialise import from_plain, plain
from perfsuite.measure.timing import block, waits
from perfsuite.measure.timing.comparison import compare_calls
from perfsuite.measure.timing.scaling import fit_scaling
from perfsuite.measure.timing.timing import time_call
from perfsuite.measure.timing.waits import asynchrony as stays_async
from perfsuite.measure.timing.waits import count_stalls
from perfsuite.measure.trace import trace_block, trace_call
from perfsuite.options import Options
from perfsuite.report.terminal import session_summary
from perfsuite.session.fresh import gating
from perfsuite.session.judge import Judge
from perfsuite.session.recorder import Recorder
from perfsuite.session.records import TestRecord
from perfsuite.session.session import PerfSession

step = jax.jit(lambda x: x + 1)
donating = jax.jit(lambda state: state + 1, donate_argnums=0)
X = jnp.ones(3)


def everything():
    """What an instrument may change of the process while it measures, and has to give back."""
    return {
        "profiler": sys.getprofile(),
        "tracer": sys.gettrace(),
        "collector": gc.isenabled(),
        "switching": sys.getswitchinterval(),
        "configuration": dict(jax.config.values),
        "heard": compiles.is_heard(),
        "contexts": (compiles.open_contexts(), transfers._open),
        "reading": [vars(type(X))[name] for name in ("_value", "copy_to_host_async")],
        "buffers": memoryview(X).nbytes,
        "threads": {thread for thread in threading.enumerate() if "perfsuite" in thread.name},
    }


@pytest.fixture(autouse=True)
def nothing_left_behind():
    before = everything()
    yield
    assert everything() == before


# A broken clock.


class BrokenClock:
    """In the place of the clock; right for `right` readings, and then as broken as `fault` makes the right one."""

    def __init__(self, fault, right):
        self.fault, self.right, self.readings = fault, right, 0

    def __call__(self):
        self.readings += 1
        now = time.perf_counter_ns()
        return now if self.readings <= self.right else self.fault(now, self.readings)


FAULTS = {
    "no number now and then": lambda now, reading: math.nan if reading % 50 == 0 else now,
    "stands still": lambda now, reading: 10**18,
    "jumps back": lambda now, reading: now - (10**9 if reading % 50 == 0 else 0),
}
SECONDS = 0.5
"""Enough to come to the broken readings on a busy machine, too. The error ends it at once."""
TIMED = {
    "time": lambda: time_call(call(step, X), seconds=SECONDS),
    "compare": lambda: compare_calls(call(step, X), call(step, X), seconds=SECONDS),
    "scaling": lambda: fit_scaling([call(step, X), call(step, X)], np.array([1.0, 2.0]), seconds=SECONDS),
    "stalls": lambda: count_stalls(call(step, X), seconds=40 * SECONDS),  # with one call a block it takes the longest
    "stays_async": lambda: stays_async(call(step, X), seconds=SECONDS),
}


@pytest.fixture
def break_clock(monkeypatch):
    block.clock.cache_clear()
    monkeypatch.setattr(block, "_READINGS", 1000)

    def broken(fault, right):
        now_ns = BrokenClock(fault, right)
        for module in (block, waits):
            monkeypatch.setattr(module, "now_ns", now_ns)

    yield broken
    block.clock.cache_clear()


# The clock is tried with 1,000 readings, and `stays_async` may know after 150 more whether a call waits.
@pytest.mark.parametrize("right", [0, 1_050], ids=["from the start", "later"])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("instrument", TIMED)
def test_a_broken_clock_is_a_clear_error_and_never_a_metric(break_clock, instrument, fault, right):
    break_clock(fault, right)
    with pytest.raises(MeasurementError, match="clock"):
        TIMED[instrument]()


# An interrupt in the middle of a metric.

# A call, and the runs of it that are interrupted: while it is warmed, while it is made ready, while it is measured.
INSTRUMENTS = {
    "time": (time_call, (1, 2, 5, 20, 100)),
    "compare": (lambda made: compare_calls(made, call(step, X)), (1, 2, 5, 20, 30)),
    "compare, as the other side": (lambda made: compare_calls(call(step, X), made), (1, 20, 30)),
    "scaling": (lambda made: fit_scaling([made, call(step, X)], np.array([1.0, 2.0])), (1, 20, 25)),
    "stalls": (count_stalls, (1, 20, 200)),
    "stays_async": (stays_async, (1, 20, 30)),
    "host_calls": (host_calls, (1, 2, 4)),
    "fast_path": (fast_path, (1, 2, 4)),
    "transfers": (transfers_of, (1, 2, 4)),
    "memory": (lambda made: memory_of(made, steps=9), (1, 2, 8)),
    "trace": (lambda made: trace_call(made, runs=2), (1, 2, 4)),
}


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("instrument", "run"), [(name, run) for name, (_, runs) in INSTRUMENTS.items() for run in runs]
)
def test_an_interrupted_metric_gives_everything_back(instrument, run):
    runs = itertools.count(1)

    def interrupted(state):
        if next(runs) == run:
            signal.raise_signal(signal.SIGINT)
        return donating(state)

    training = call(interrupted, X + 1, carry=1)
    before = everything()
    with pytest.raises(KeyboardInterrupt):
        INSTRUMENTS[instrument][0](training)
    assert everything() == before
    assert training.fn is interrupted
    jax.block_until_ready(training.run())


def test_an_interrupted_metric_ends_the_session_and_saves_nothing(project, perf_test):
    perf_test("perf.record('metric', 3, unit='things', kind='count')")
    project.runpytest_inprocess("--perf-save").assert_outcomes(passed=1)
    before = {path.name: path.read_bytes() for path in (project.path / "baselines").iterdir()}
    perf_test(
        "perf.record('metric', 2, unit='things', kind='count')",
        "def interrupted(x):",
        "    interrupted.runs = getattr(interrupted, 'runs', 0) + 1",
        "    if interrupted.runs == 40: raise KeyboardInterrupt",
        "    return step(x, batch())",
        "perf.time(call(interrupted, state()))",
        test_after="def test_after(perf): raise RuntimeError('ran')",
    )
    held = everything()
    result = project.runpytest_inprocess("--perf-save", no_reraise_ctrlc=True)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["the session did not end by itself, so no baseline was saved"])
    assert {path.name: path.read_bytes() for path in (project.path / "baselines").iterdir()} == before
    assert everything() == held


# Context managers, alone and in every combination of two.

CONTEXTS = {
    "forbid": compiles.forbid,
    "count": compiles.count,
    "observe": compiles.observe,
    "no transfers": forbid_transfers,
    "no transfers at all": functools.partial(forbid_transfers, explicit=True),
    "count transfers": count_transfers,
    "trace": trace_block,
}
PAIRS = [(outer, inner) for outer in CONTEXTS for inner in CONTEXTS if (outer, inner) != ("trace", "trace")]


class Others:
    """Listeners that another library has registered, one of each kind that JAX has."""

    def __init__(self):
        self.heard = []
        monitoring = jax.monitoring
        self.kinds = [
            (monitoring.register_event_listener, monitoring.unregister_event_listener),
            (monitoring.register_event_duration_secs_listener, monitoring.unregister_event_duration_listener),
            (monitoring.register_scalar_listener, monitoring.unregister_scalar_listener),
            (monitoring.register_event_time_span_listener, monitoring.unregister_event_time_span_listener),
        ]
        self.listeners = [functools.partial(self._hear, number) for number in range(len(self.kinds))]

    def _hear(self, number, event, *_, **__):
        if event == "/others/event":
            self.heard.append(number)

    def __enter__(self):
        for (register, _), listener in zip(self.kinds, self.listeners, strict=True):
            register(listener)
        return self

    def __exit__(self, *_):
        # JAX asserts that a listener which is taken away is still there.
        for (_, unregister), listener in zip(self.kinds, self.listeners, strict=True):
            unregister(listener)

    def are_heard(self):
        """Whether each is called, and once."""
        self.heard.clear()
        jax.monitoring.record_event("/others/event")
        jax.monitoring.record_event_duration_secs("/others/event", 1.0)
        jax.monitoring.record_scalar("/others/event", 1)
        jax.monitoring.record_event_time_span("/others/event", 1.0, 2.0)
        return self.heard == [0, 1, 2, 3]


def fail_with(error, others):
    assert others.are_heard()
    raise error


@pytest.mark.parametrize(("outer", "inner"), PAIRS)
def test_an_exception_passes_through_two_contexts_unchanged_and_both_undo_themselves(outer, inner):
    before = everything()
    with Others() as others:
        for error in (ZeroDivisionError("mine"), KeyboardInterrupt(), StopIteration(3), GeneratorExit(), SystemExit(1)):
            if "trace" in (outer, inner) and type(error) is not ZeroDivisionError:
                continue  # each trace takes 0.05 s
            with pytest.raises(type(error)) as raised, CONTEXTS[outer](), CONTEXTS[inner]():
                fail_with(error, others)
            assert raised.value is error
            assert everything() == before
            assert others.are_heard()


@pytest.mark.parametrize(("outer", "inner"), [pair for pair in PAIRS if "trace" not in pair])
def test_of_two_contexts_each_does_its_own(outer, inner):
    """A new function that is compiled, and an array that is read, inside both."""
    new = jax.jit(lambda x: x * 3)
    before = everything()
    with Others() as others:
        compiling = pytest.raises(RecompilationError, match="lambda") if "forbid" in (outer, inner) else nothing()
        with compiling, CONTEXTS[outer](), CONTEXTS[inner]():
            new(X)
        reading = pytest.raises(TransferError, match=r"float32\[3\]") if "no transfers" in outer + inner else nothing()
        new_array = step(X)
        with reading, CONTEXTS[outer](), CONTEXTS[inner]():
            new_array.tolist()
        assert others.are_heard()
    assert everything() == before


def test_threads_that_compile_at_once_inside_nested_contexts_all_raise_in_each():
    functions = [jax.jit(lambda x, n=n: x * n) for n in range(4)]
    together = threading.Barrier(len(functions))
    raised = []

    def compile_one(function):
        together.wait()
        try:
            function(X)
        except RecompilationError as error:
            raised.append(error.stage)

    def compile_all():
        threads = [threading.Thread(target=compile_one, args=(function,)) for function in functions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    before = everything()
    refused = functools.partial(pytest.raises, RecompilationError, match="3 more like it")
    with refused() as outer, compiles.forbid(), refused() as inner, compiles.forbid():
        compile_all()
    assert outer.value is not inner.value
    assert raised == ["trace"] * 4
    assert everything() == before
    compile_all()  # JAX is none the worse for it
    assert raised == ["trace"] * 4


# Names and numbers of tests.

PARAMETERS = [
    "é\u4e2d",
    "a::b",
    "[x]",
    "]",
    "two\nlines",
    "tab\t",
    "a b",
    "%s",
    "x --perf-size=full",
    "x" * 5000,
    "../..",
    '"',
]


def test_tests_of_every_name_are_saved_gated_traced_and_reported(project):
    project.makepyfile(
        test_names=f"""
        import pytest
        from steps import *

        value = 3

        @pytest.mark.parametrize("parameter", {PARAMETERS!r}, ids=lambda parameter: parameter)
        def test_names(perf, parameter):
            perf.record("metric", value, unit="things", kind="count")
            if len(parameter) > 100:
                perf.host_calls(call(step, state(), batch()), name="step")
        """
    )
    tests = len(PARAMETERS)
    project.runpytest_inprocess("--perf-save").assert_outcomes(passed=tests)
    metrics = json.loads((project.path / "baselines/cpu.json").read_text())["metrics"]
    assert len(metrics) == tests
    result = project.runpytest_inprocess("--perf", "--perf-strict", "--perf-trace=traces")
    result.assert_outcomes(passed=tests)
    result.stdout.fnmatch_lines([f"{tests + 3} metrics of {tests} tests: {tests + 3} pass"])
    result.stdout.no_fnmatch_line("missing: *")
    assert list(project.path.glob("traces/**/*.xplane.pb"))
    test_file = project.path / "test_names.py"
    test_file.write_text(test_file.read_text().replace("value = 3", "value = 4"))
    result = project.runpytest_inprocess("--perf")
    result.assert_outcomes(failed=tests)
    assert result.stdout.str().count("metric is 4 things, +1 (+33.3 %) over the baseline 3 things") == tests
    # A test that is gone is trimmed, whatever its name.
    test_file.write_text(test_file.read_text().replace(f"{PARAMETERS!r}", "['another']"))
    project.runpytest_inprocess("--perf-save").assert_outcomes(passed=1)
    assert list(json.loads((project.path / "baselines/cpu.json").read_text())["metrics"]) == [
        "test_names.py::test_names[another]"
    ]


def host_calls_of(work):
    """Python and C calls, which time has no part in."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls


class Silent:
    """Takes the place of pytest's terminal reporter, with -v."""

    isatty = True
    config = SimpleNamespace(
        get_terminal_writer=lambda: SimpleNamespace(fullwidth=100),
        get_verbosity=lambda: 1,
    )

    def section(self, title, sep):
        pass

    def line(self, text, **markup):
        pass


def test_the_work_of_a_session_grows_with_its_gates_and_no_faster(tmp_path):
    options = Options(True, False, True, (), "small", 1.0, tmp_path, (), "--perf-target")

    def work(tests):
        session = PerfSession(Judge(options), gating())
        ids = [f"test_a.py::test_step[{number}]" for number in range(tests)]
        session.collected.tests = set(ids)
        one = Recorder(session.judge, ids[0], None)
        for test in ids:
            metrics = Recorder(session.judge, test, None)
            metrics.add(Metric("step", 3, "things", "count"))
            one.add(Metric(one.unique("step", " to return") + " to return", 3, "things", "count"))
            metrics.close(metrics.by_baseline())
            record = TestRecord(test, True, tuple(metrics.results), tuple(metrics.metrics.values()))
            session.records.append(from_plain(TestRecord, plain(record)))
        saved, errors = session.judge.save(session.records, session.collected)
        assert not errors
        session_summary(Silent(), session, tmp_path, saved, "")

    work(1)  # what only the first does
    few, many = (host_calls_of(lambda tests=tests: work(tests)) for tests in (200, 1000))
    assert many < 6 * few
