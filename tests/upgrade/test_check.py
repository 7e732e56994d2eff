"""`perfsuite upgrade-check` from its command line: two environments, the tests in both, and what is said of them."""

import json
import random
import re
import signal
from pathlib import Path

import pytest
from support.upgrades import ENVIRONMENT, TEST, FakeTests, command, notes, wheel

from perfsuite.commands import CommandError
from perfsuite.gate.baseline import Baselines, Entry
from perfsuite.upgrade import check, environments
from perfsuite.upgrade.check import CheckFailed
from perfsuite.upgrade.environments import VirtualEnvironment
from perfsuite.upgrade.notes import Notes
from perfsuite.upgrade.runs import FirstRun, Run

LIBRARY = """
import jax

@jax.jit
def _step(x):
    return (x @ x).sum()
"""
OLD = f"{LIBRARY}\ndef step(x):\n    return _step(x)\n\nremoved = 1\n"
NEW = f"""{LIBRARY}
@jax.jit
def _checked(x):
    return x + 1

def _look(x):
    return len(x.shape)

def step(x):
    _look(x)
    return _step(_checked(x))
"""
PERF_TESTS = """
import jax
import jax.numpy as jnp
import steplib
from perfsuite import Budget, call

@jax.jit
def own(x):
    return x.sum()

def test_step(perf):
    made = call(steplib.step, jnp.ones((4, 4)))
    perf.time(made)
    perf.host_calls(made)

def test_of_its_own(perf):
    made = call(own, jnp.ones((3, 3)))
    perf.host_calls(made)
    perf.program(made)
    perf.compare(made, call(own, jnp.ones((3, 3))), Budget(ratio=1000), name="same")

def test_that_needs_the_old(perf):
    perf.record("removed", steplib.removed, unit="things", kind="count")

def test_that_is_no_perf_test():
    raise AssertionError("not run")
"""


def test_a_planted_upgrade_is_caught_and_what_it_does_not_touch_is_silent(pytester, monkeypatch, capsys, tmp_path):
    """One host call and one jitted function more in every step. The linked environments are a second each."""
    index = tmp_path / "wheels"
    index.mkdir()
    for version, source in (("1.0", OLD), ("2.0", NEW)):
        wheel(index, "steplib", version, source)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setattr(environments, "_from_conda", lambda: True)
    pytester.makepyfile(test_steps=PERF_TESTS)
    pytester.makeini("[pytest]\nperf_strict = true\nfilterwarnings = error\n")
    found = tmp_path / "found.json"
    scratch = tmp_path / "temporary"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    options = ("--rounds=2", "--seconds=0.05", f"--json={found}", "--", "--perf-seconds=0.1", "test_steps.py")
    assert command("steplib==2.0", "--from", "steplib==1.0", *options) == 1
    written = capsys.readouterr().out
    values = json.loads(found.read_text())
    assert values["changed packages"] == ["steplib 1.0 -> 2.0"]
    assert values["windows"] == [2]
    worse = {(c["test"], c["where"], c["metric"]): c for c in values["changes"] if c["called"] == "worse"}
    step = "test_steps.py::test_step"
    assert {key[1] for key in worse} == {"trace", "lower", "compile", "host calls"}
    assert {key[0] for key in worse} == {step}
    assert "_checked" in [part["name"] for part in worse[step, "compile", "compiles"]["grown"]]
    assert "steplib:_look" in [part["name"] for part in worse[step, "host calls", "step host calls"]["grown"]]
    own = {c["called"] for c in values["changes"] if c["test"] == "test_steps.py::test_of_its_own"}
    assert own == {"no change seen", "undecided"}  # of two processes no time is called
    timed = {(c["where"], c["metric"]) for c in values["changes"] if c["processes"] == 2}
    sides = {(where, f"same {side} to {moment}") for where, moment in (("dispatch", "return"), ("device", "ready"))
             for side in ("candidate", "reference")}  # fmt: skip
    assert sides | {("dispatch", "step to return"), ("device", "step to ready")} <= timed
    assert ("device", "same ratio to ready") in timed
    (lost,) = values["tests"]
    assert (lost["test"], lost["before"], lost["after"]) == (
        "test_steps.py::test_that_needs_the_old",
        "passed",
        "failed",
    )
    assert "has no attribute 'removed'" in lost["reason"]
    assert re.search(r"test_that_needs_the_old: passed -> failed", written)
    assert "2 rounds cannot call a change" in written
    assert list(scratch.iterdir()) == []
    assert not list(pytester.path.glob("baselines*"))


def recorded(**values):
    """The first run of an environment, with counts by name."""
    entries = {name: Entry(value, "calls", "count", "measured", ENVIRONMENT) for name, value in values.items()}
    return FirstRun(Run(notes(), 1.0), {"cpu": Baselines("cpu", {TEST: entries})})


@pytest.fixture
def fake(monkeypatch, tmp_path):
    """Runs the command on environments and tests that are only made up; returns its exit status."""

    def run(before, after, *arguments, times_of=None):
        tests = FakeTests({"before": before, "after": after}, times_of)
        monkeypatch.setattr(check, "Tests", lambda *_, **__: tests)

        def make(specs, folder):
            return VirtualEnvironment(Path(folder), tuple(specs), {"lib": "2" if "lib==2" in specs else "1"}, ())

        monkeypatch.setattr(environments, "make", make)
        return command("lib==2", *arguments), tests

    return run


def test_the_same_packages_are_noted(fake, capsys):
    fake(recorded(f=1), recorded(f=1), "--rounds=0", "--from", "lib==2")
    assert "both environments have the same packages" in capsys.readouterr().out


class TestExitStatus:
    def test_nothing_worse(self, fake, capsys):
        status, _ = fake(recorded(f=3), recorded(f=3), "--rounds=0")
        assert status == 0
        assert capsys.readouterr().out.splitlines()[-1] == "nothing is worse"

    def test_better_is_not_worse(self, fake):
        assert fake(recorded(f=3), recorded(f=2), "--rounds=0")[0] == 0

    def test_a_count_that_rose(self, fake, capsys):
        assert fake(recorded(f=3), recorded(f=4), "--rounds=0")[0] == 1
        assert "worse: 1 metric" in capsys.readouterr().out

    def test_a_time_that_rose(self, fake):
        def times_of(name):
            return Run(notes({"f to return": random.uniform(1, 1.1) * (2 if name == "after" else 1)}), 1.0)

        status, tests = fake(recorded(f=3), recorded(f=3), "--rounds=10", times_of=times_of)
        assert status == 1
        assert tests.ran[2:].count("before") == tests.ran[2:].count("after") == 10

    def test_a_test_that_died(self, fake, capsys):
        dead = FirstRun(Run(Notes(), 1.0, "pytest ended with status -11; the end of its output: boom"), {})
        status, tests = fake(recorded(f=3), dead)
        assert status == 1
        written = capsys.readouterr().out
        assert "1 test no longer passes" in written
        assert "boom" in written
        assert tests.ran == ["before", "after"]  # nothing to time

    def test_one_that_is_ended_leaves_nothing(self, fake, monkeypatch, tmp_path):
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        before = signal.getsignal(signal.SIGTERM)

        def times_of(name):
            assert [path.name[:18] for path in tmp_path.iterdir()] == ["perfsuite-upgrade-"]
            signal.raise_signal(signal.SIGTERM)

        with pytest.raises(SystemExit) as raised:
            fake(recorded(f=3), recorded(f=3), times_of=times_of)
        assert raised.value.code == 128 + signal.SIGTERM
        assert list(tmp_path.iterdir()) == []
        assert signal.getsignal(signal.SIGTERM) is before

    def test_nothing_to_compare_with(self, fake):
        with pytest.raises(CommandError, match="no perf test was found"):
            fake(FirstRun(Run(notes(tests={}), 1.0), {}), recorded(f=3))
        with pytest.raises(CommandError, match="killed"):
            fake(FirstRun(Run(Notes(), 1.0, "killed"), {}), recorded(f=3))


def test_a_second_check_is_kept_out_of_environments_that_are_being_made(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "LOCK_SECONDS", 0.01)
    with check._locked(tmp_path), pytest.raises(CheckFailed, match="another check"), check._locked(tmp_path):
        pass
    with check._locked(tmp_path):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(CheckFailed, match="choose another"), check._locked(tmp_path / "file"):
        pass
