"""Sessions of several real processes under `jax.distributed` (see `tests/support/many.py`)."""

import json
import signal
import sys

import pytest
from support.git_project import TEST, count
from support.many import start

from perfsuite.gate.baseline import Baselines
from perfsuite.gate.baseline_file import encode

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signal that cannot be caught")

SHARDED = """
import functools, os, signal, threading, time
import jax, jax.numpy as jnp, numpy as np, pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from perfsuite import Budget, call

HERE = jax.process_index()
mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
rows = NamedSharding(mesh, PartitionSpec("data"))

def batch(n=96):
    host = np.ones(n, np.float32)
    return jax.make_array_from_callback(host.shape, rows, host.__getitem__)

@jax.jit
def step(x):  # the sum over all devices is an all-reduce
    return x / x.sum()

@functools.partial(jax.jit, donate_argnums=0)
def train(state, x):
    return state + x / x.sum()

def slowed(x):
    if HERE == 1:
        time.sleep(0.03)
    return step(x)
"""

MEASURED = """
from sharded import *

def test_step(perf):
    made = perf.compare(call(step, batch()), call(step, batch()), Budget(ratio=3.0))
    assert made.pairs >= 3
    timed = perf.time(call(step, batch()))
    print("same in all:", made.ratio.value, made.window, timed.to_ready.median_us, len(timed.samples_us))

def test_counts(perf):
    warm = perf.warm(step, over=[(batch(),)])
    with perf.no_compiles():
        warm(batch()).block_until_ready()
    perf.host_calls(call(step, batch()))
    perf.record("things", 3 + HERE, unit="things", kind="count")
    perf.record("hits", 7 - HERE, unit="hits", kind="count", better="higher")
    program = perf.program(call(step, batch()))
    assert [each.what for each in program.collectives] == ["all-reduce"]
    trained = call(train, batch(), batch(), carry=1)
    assert perf.donation(trained).undonated == ()
    assert perf.memory(trained, steps=9).leaked_arrays == 0
    assert perf.transfers(trained).events == ()
    assert perf.fast_path(trained).misses == 0
    assert perf.trace(trained, runs=2).device_us > 0

def test_of_one_process_alone(perf):
    perf.stays_async(call(step, batch()))
"""


def test_two_processes_measure_together_and_process_0_writes(tmp_path):
    session = start(tmp_path, 2, "--perf-save", "-rsP", sharded=SHARDED, test_measured=MEASURED).wait()
    assert session.status == [0, 0], session.said
    first, second = session.outputs
    assert "4 x cpu in 2 processes" in first
    assert "baselines/cpu.json: " in first
    assert "test_counts: things differs: 3 in process 0, 4 in process 1; the worst one counts" in first
    assert "perfsuite: process 1 of 2: process 0 writes the report" in second
    assert "baselines/cpu.json: " not in second
    assert "step/step ratio to ready" not in second
    assert "perf.stays_async measures one process alone, and 2 measure together here" in first

    same = [line for output in session.outputs for line in output.splitlines() if "same in all:" in line]
    assert len(same) == 2
    assert len(set(same)) == 1

    saved = json.loads((tmp_path / "baselines" / "cpu.json").read_text())
    (environment,) = saved["environments"].values()
    assert (environment["process_count"], environment["device_count"]) == (2, 4)
    metrics = saved["metrics"]["test_measured.py::test_counts"]
    assert metrics["things"]["value"] == 4
    assert metrics["hits"]["value"] == 6
    assert {"compare ratio to ready", "time to ready"} <= set(saved["metrics"]["test_measured.py::test_step"])
    assert [path.name for path in (tmp_path / "baselines").iterdir() if path.suffix == ".tmp"] == []


FAULTS = """
from sharded import *

@pytest.mark.perf(seconds=20)
def test_slower(perf):
    perf.compare(call(slowed, batch()), call(step, batch()), Budget(ratio=1.5))

def test_fails_in_one(perf):
    perf.record("things", 1, unit="things", kind="count")
    assert HERE == 0, "only here"

def test_skipped_in_one():
    if HERE == 1:
        pytest.skip("not for me")

@pytest.fixture
def broken():
    assert HERE == 0, "no fixture"

def test_whose_fixture_fails_in_one(broken):
    pass

def test_that_goes_its_own_way_in_one(perf):
    if HERE == 0:
        perf.record("mine", 1, unit="things", kind="count")

def test_that_leaves_early_in_one(perf):
    on_one_device = jax.jit(lambda x: x + 1)
    assert HERE == 0, "left early"
    perf.time(call(on_one_device, jnp.ones(2)))

def test_that_is_fine(perf):
    perf.compare(call(step, batch()), call(step, batch()), Budget(ratio=3.0))
"""


def test_what_fails_in_one_process_fails_in_all_and_the_session_goes_on(tmp_path):
    session = start(tmp_path, 2, "--perf", "-rA", sharded=SHARDED, test_faults=FAULTS).wait()
    assert session.status == [1, 1], session.said
    for output in session.outputs:
        assert "PASSED test_faults.py::test_that_is_fine" in output
        assert "5 failed, 1 passed, 1 error" in output
        assert "slowed/step ratio to ready is" in output
        assert "process 1 was the last to return in" in output
        assert "the processes do not agree: passed in process 0; skipped in process 1" in output
        assert "process 0 and process 1 recorded different metrics: mine" in output
    first = session.outputs[0]
    assert "process 1: the end of test_faults.py::test_fails_in_one (call) (AssertionError: only here" in first
    assert "passed in this process, failed in process 1: AssertionError: no fixture" in first
    assert "process 1: the end of test_faults.py::test_that_leaves_early_in_one (call) (AssertionError: left e" in first


KILLED = """
from sharded import *

def die():
    os.kill(os.getpid(), signal.SIGKILL)

@pytest.mark.parametrize("number", range(3))
def test_step(perf, number):
    if HERE == int(os.environ["DIES"]) and number == 1:
        if os.environ["WHEN"] == "before":
            die()
        threading.Timer(0.5, die).start()
    perf.compare(call(step, batch()), call(step, batch()))
"""

STUCK = """
from sharded import *

def test_stuck(perf):
    perf.record("things", 5, unit="things", kind="count")
    assert HERE == 0, "too early"
    perf.time(call(step, batch()))
"""

BASELINE = encode(Baselines("cpu", {TEST: {"fusions": count(3)}}))


def test_a_process_that_dies_or_is_waited_for_in_vain_ends_the_session_and_nothing_is_saved(tmp_path):
    def beginning(name, processes, *arguments, **files):
        folder = tmp_path / name
        (folder / "baselines").mkdir(parents=True)
        (folder / "baselines" / "cpu.json").write_bytes(BASELINE)
        return start(folder, processes, "--perf-save", *arguments, sharded=SHARDED, **files)

    killed = {"test_killed": KILLED}
    sessions = {
        "middle": beginning("middle", 3, DIES="2", WHEN="inside", **killed),
        "between": beginning("between", 2, DIES="0", WHEN="before", **killed),
        "stuck": beginning("stuck", 2, test_stuck=STUCK, STUCK="2"),
    }
    for name, session in sessions.items():
        session.wait()
        assert (tmp_path / name / "baselines" / "cpu.json").read_bytes() == BASELINE
        assert not list((tmp_path / name / "baselines").glob("*.tmp"))

    middle = sessions["middle"]
    assert middle.status[2] == -signal.SIGKILL, middle.said
    for process in (0, 1):
        assert middle.status[process] == 2, middle.said
        assert f"perfsuite: process {process}: process 2 (" in middle.outputs[process]
        assert "The session ends in all 3 processes, during test_" in middle.outputs[process]

    # Process 0 is jax's coordinator, too: without it jax aborts a process, maybe before perfsuite ends it.
    between = sessions["between"]
    assert between.status[0] == -signal.SIGKILL, between.said
    assert between.status[1] in (2, -signal.SIGABRT), between.said
    assert "process 0 (" in between.outputs[1] or "fatal errors" in between.outputs[1]

    stuck = sessions["stuck"]
    assert stuck.status == [2, 2], stuck.said
    for output in stuck.outputs:
        assert "failed test_stuck.py::test_stuck (AssertionError: too early" in output
        assert "the others did not reach the end of that test within 2 s" in output
