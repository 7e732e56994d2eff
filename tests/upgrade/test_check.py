"""`perfsuite upgrade-check` from its command line: two environments, the tests in both, and what is said of them."""

import argparse
import dataclasses
import json
import os
import random
import re
import signal
from pathlib import Path

import pytest

from perfsuite.commands import CommandError, upgrade_check
from perfsuite.gate.baseline import Baselines, Entry
from perfsuite.gate.verdict import Part
from perfsuite.measure.measurement import Interval
from perfsuite.report.terminal.output import colored
from perfsuite.report.terminal.upgrade import render
from perfsuite.upgrade import check, environments, runs
from perfsuite.upgrade.check import CheckFailed
from perfsuite.upgrade.environments import Made
from perfsuite.upgrade.found import Change, Check, TestChange
from perfsuite.upgrade.runs import Metrics, Run, Tests
from upgrade.test_changes import ENVIRONMENT, TEST, notes
from upgrade.test_environments import wheel

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


def command(*arguments):
    """The command with these arguments: its exit status."""
    parser = argparse.ArgumentParser()
    upgrade_check.add_arguments(parser)
    return upgrade_check.run(parser.parse_args(arguments))


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
    assert "_checked (+1)" in worse[step, "compile", "compiles"]["reason"]
    assert "steplib:_look (+1)" in worse[step, "host calls", "step host calls"]["reason"]
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


@dataclasses.dataclass
class FakeTests:
    """In the place of `Tests`: what ran in which order; `metrics` and `times` by the name of the environment."""

    first: dict
    times_of: object = None
    ran: list = dataclasses.field(default_factory=list)

    def metrics(self, made, name):
        self.ran.append(name)
        return self.first[name]

    def times(self, made, name, *, seconds, limit):
        self.ran.append(name)
        return self.times_of(name) if self.times_of else Run(notes({"f to return": 1.0}), 1.0)


def recorded(**values):
    """The first run of an environment, with counts by name."""
    entries = {name: Entry(value, "calls", "count", "measured", ENVIRONMENT) for name, value in values.items()}
    return Metrics(Run(notes(), 1.0), {"cpu": Baselines("cpu", {TEST: entries})})


@pytest.fixture
def fake(monkeypatch, tmp_path):
    """Runs the command on environments and tests that are only made up; returns its exit status."""

    def run(before, after, *arguments, times_of=None):
        tests = FakeTests({"before": before, "after": after}, times_of)
        monkeypatch.setattr(check, "Tests", lambda *_, **__: tests)

        def make(specs, folder):
            return Made(Path(folder), tuple(specs), {"lib": "2" if "lib==2" in specs else "1"}, ())

        monkeypatch.setattr(environments, "make", make)
        return command("lib==2", *arguments), tests

    return run


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
        dead = Metrics(Run(None, 1.0, "it ended with status -11; the last that it wrote: boom"), {})
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
            fake(Metrics(Run(notes(tests={}), 1.0), {}), recorded(f=3))
        with pytest.raises(CommandError, match="killed"):
            fake(Metrics(Run(None, 1.0, "killed"), {}), recorded(f=3))


class TestCommandLine:
    def test_what_follows_the_dashes_is_pytests(self):
        parser = argparse.ArgumentParser()
        commands = parser.add_subparsers()
        upgrade_check.add_arguments(commands.add_parser("upgrade-check"))
        given = ["upgrade-check", "a==1", "b==2", "--from", "a==0", "--rounds=4", "--", "tests", "-k", "x", "--", "y"]
        options = parser.parse_args(given)
        assert (options.specs, options.before, options.rounds) == (["a==1", "b==2"], ["a==0"], 4)
        assert options.pytest_arguments == ["tests", "-k", "x", "--", "y"]
        assert parser.parse_args(["upgrade-check", "a==1"]).pytest_arguments == []

    @pytest.mark.parametrize("bad", ["--rounds=1", "--rounds=-2", "--rounds=x", "--minutes=0", "--seconds=nan"])
    def test_bad_numbers(self, bad, capsys):
        with pytest.raises(SystemExit):
            command("a==1", bad)
        assert bad.partition("=")[2] in capsys.readouterr().err

    def test_a_bad_spec_is_an_error_before_anything_is_made(self):
        with pytest.raises(CommandError, match='"jax=1" names no package'):
            command("jax=1")

    def test_a_file_that_cannot_be_written_is_an_error_before_minutes_of_work(self, tmp_path):
        with pytest.raises(CommandError, match=r"--json .*make it first"):
            command("jax==1", f"--json={tmp_path / 'none' / 'found.json'}")


class TestRuns:
    def arguments(self, *given, seconds=None):
        return Tests(given, Path("scratch"), directory=Path())._arguments(Path("run"), Path("empty"), seconds)

    def test_what_must_hold_comes_after_what_the_user_says_but_before_the_dashes(self):
        made = self.arguments("--perf-baselines=mine", "--", "-odd-name.py", seconds=0.5)
        assert made.index("--perf-baselines=mine") < made.index("--perf-baselines=empty") < made.index("--")
        assert made[-2:] == ["--", "-odd-name.py"]
        assert "--perf-seconds=0.5" in made

    def test_the_users_own_seconds_hold_for_the_metrics(self):
        assert not any(each.startswith("--perf-seconds") for each in self.arguments("-x"))

    def windows(self, rounds, minutes=None):
        tests = FakeTests({})
        made = list(
            runs.windows(
                tests, None, None, rounds=rounds, minutes=minutes, seconds=1, limit=1, say=str, order=random.Random(1)
            )
        )
        return made, tests.ran

    def test_each_window_has_as_many_of_each_in_an_order_drawn_by_lot(self):
        made, ran = self.windows(12)
        assert [len(window.before) for window in made] == [len(window.after) for window in made] == [4, 4, 4]
        orders = {tuple(ran[start : start + 8]) for start in (0, 8, 16)}
        assert len(orders) == 3
        assert all(order.count("before") == 4 for order in orders)

    def test_time_that_is_up_ends_after_a_whole_window(self):
        assert [len(window.before) for window in self.windows(20, minutes=1e-9)[0]] == [5]

    def test_a_process_that_cannot_be_started_or_dies_says_so(self, tmp_path):
        for program, words in (
            ("#!/bin/sh\necho last words; exit 3\n", "status 3; .*last words"),
            ("", "status|started"),
        ):
            place = tmp_path / str(len(words))
            python = Made(place, (), {}, ()).python
            python.parent.mkdir(parents=True)
            python.write_text(program)
            python.chmod(0o755)
            run = Tests([], place / "runs", directory=tmp_path).times(Made(place, (), {}, ()), "a", seconds=1, limit=20)
            assert run.notes is None
            assert re.search(words, run.problem)

    def test_the_persistent_cache_is_off_and_the_environment_comes_first(self, monkeypatch, tmp_path):
        monkeypatch.setenv("PATH", "elsewhere")
        monkeypatch.setenv("PYTHONHOME", "elsewhere")
        made = runs._variables(Made(tmp_path, (), {}, ()))
        assert made["JAX_ENABLE_COMPILATION_CACHE"] == "false"
        assert made["PATH"].split(os.pathsep) == [str(tmp_path / "bin"), "elsewhere"]
        assert "PYTHONHOME" not in made


def test_a_second_check_is_kept_out_of_environments_that_are_being_made(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "LOCK_SECONDS", 0.01)
    with check._locked(tmp_path), pytest.raises(CheckFailed, match="another check"), check._locked(tmp_path):
        pass
    with check._locked(tmp_path):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(CheckFailed, match="choose another"), check._locked(tmp_path / "file"):
        pass


class TestTables:
    def check(self, *changes, tests=()):
        made = [Made(Path(), (f"lib=={v}",), {"lib": str(v), "jax": "1"}, ()) for v in (1, 2)]
        return Check(*made, tests, changes, (5, 5), ("the machine was busy",))

    def change(self, where, called, **more):
        values = {"metric": "f", "unit": "us", "before": 100.0, "after": 112.0, "ratio": 1.12}
        return Change(where=where, called=called, test=TEST, **{**values, **more})

    def test_what_changed_is_listed_by_where_and_the_rest_is_counted(self):
        slower = self.change("dispatch", "worse", interval=Interval(1.08, 1.17), processes=10)
        same = self.change("dispatch", "no change seen", metric="g", interval=Interval(0.9, 1.2), processes=10)
        calls = self.change("host calls", "worse", unit="calls", before=0, after=4, ratio=None, grown=(Part("a", 4),))
        text = "\n".join(render(self.check(slower, same, calls)))
        assert "what differs: lib 1 -> 2" in text
        assert "note: the machine was busy" in text
        assert "dispatch: 1 worse, 1 no change seen" in text
        assert re.search(r"  f +100 us +112 us +\+12 % \[\+8 %, \+17 %\] +worse", text)
        assert not re.search(r"^  g", text, re.MULTILINE)
        assert re.search(r"  f +0 calls +4 calls +\+4 +worse\n +more calls of a \(\+4\)", text)
        assert "\n".join(render(self.check(slower, same), everything=True)).count("\n  g ") == 1
        assert "over 10 processes of each side" in text
        assert text.endswith("worse: 2 metrics")

    def test_tests_that_no_longer_pass_are_listed_and_counted(self):
        lost = TestChange("a", "passed", "not run", "after: ImportError")
        text = "\n".join(render(self.check(tests=(lost,))))
        assert "  a: passed -> not run\n    after: ImportError" in text
        assert text.endswith("worse: 0 metrics and 1 test no longer passes")

    def test_colours_only_where_asked_for(self):
        change = self.change("device", "worse")
        assert "\033" not in "".join(render(self.check(change)))
        assert "\033[31m" in "".join(render(self.check(change), paint=colored))

    def test_the_same_packages_are_noted(self, fake, capsys):
        fake(recorded(f=1), recorded(f=1), "--rounds=0", "--from", "lib==2")
        assert "both environments have the same packages" in capsys.readouterr().out
