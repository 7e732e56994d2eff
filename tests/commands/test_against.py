"""`perfsuite against` from its command line, with other packages: the tests on both sides, and what is said of them."""

import itertools
import json
import random
import re
import signal
import time

import pytest
from support.against import (
    TEST,
    FakeTests,
    count,
    first_run,
    notes,
    run_command,
    small_windows,
    wheel,
    wheels_for_uv,
)

from perfsuite.against import changes, sides
from perfsuite.against.notes import Fingerprint, Notes, Place
from perfsuite.against.runs import Run
from perfsuite.against.sides import Packages
from perfsuite.commands import CommandError, against, main, read_arguments

LIBRARY = """
import jax

@jax.jit
def _step(x):
    return (x @ x).sum()
"""
OLD = f"{LIBRARY}\ndef step(x):\n    return _step(x)\n"
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

def test_that_calls_a_warm_function(perf):
    x = jnp.ones((3, 3))
    step = perf.warm(own, over=[(x,)])
    with perf.no_compiles():
        step(x)

def test_that_is_no_perf_test():
    raise AssertionError("not run")
"""


def command(*arguments):
    return run_command(against, *arguments)


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Makes `steplib` 1.0 and 2.0 of two sources."""
    folder = wheels_for_uv(tmp_path, monkeypatch)

    def make(old, new):
        for version, source in (("1.0", old), ("2.0", new)):
            wheel(folder, "steplib", version, source)

    return make


def test_a_planted_upgrade_is_caught_and_what_it_does_not_touch_is_silent(
    library, pytester, monkeypatch, capsys, tmp_path
):
    """One host call and one jitted function more in every step."""
    library(OLD, NEW)
    pytester.makepyfile(test_steps=PERF_TESTS)
    pytester.makeini("[pytest]\nperf_strict = true\nfilterwarnings = error\n")
    found = tmp_path / "found.json"
    scratch = tmp_path / "temporary"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    small_windows(monkeypatch)
    options = ("--time=all", "--minutes=0.001", "--seconds=0.05", f"--json={found}", "--", "test_steps.py")
    assert command("--with", "steplib==2.0", "--base-with", "steplib==1.0", *options) == 1
    values = json.loads(found.read_text())
    assert values["changed packages"] == ["steplib 1.0 -> 2.0"]
    assert values["processes"] == 2
    worse = {(c["test"], c["metric"]["name"]): c for c in values["changes"] if c["verdict"] == "fail"}
    step = "test_steps.py::test_step"
    assert {test for test, _ in worse} == {step}
    assert {"compiles", "lowerings", "step host calls", "step dispatches"} <= {metric for _, metric in worse}
    assert "_checked" in [part["name"] for part in worse[step, "compiles"]["grown"]]
    assert "steplib:_look in step (steplib.py)" in [part["name"] for part in worse[step, "step host calls"]["grown"]]
    own = {c["verdict"] for c in values["changes"] if c["test"] == "test_steps.py::test_of_its_own"}
    assert own == {"pass", "inconclusive"}  # of two processes no time is called
    timed = {c["metric"]["name"] for c in values["changes"] if c["ratio"]}
    sides = {f"same {side} to {moment}" for moment in ("return", "ready") for side in ("candidate", "reference")}
    assert sides | {"step to return", "step to ready", "same ratio to ready"} <= timed
    assert values["tests"] == []
    assert "so few processes cannot call a change" in values["notes"][0]
    assert list(scratch.iterdir()) == []
    assert not list(pytester.path.glob("baselines*"))


CANNOT_BE_IMPORTED = """
import jax.numpy as jnp
import steplib

jnp.cumprod(jnp.ones(5))
steplib.added

def test_that_is_not_compared(perf):
    pass
"""
FIRST_USES = """
import jax
import jax.numpy as jnp
import steplib
from perfsuite import call

def test_of_what_is_new(perf):
    jnp.cumsum(jnp.ones(5)).block_until_ready()
    steplib.added
    jax.lax.cummax(jnp.ones(5))

def test_that_is_the_same(perf):
    for function in (jnp.cumsum, jnp.cumprod, jax.lax.cummax):
        function(jnp.ones(5))
    perf.host_calls(call(jnp.cumsum, jnp.ones(5)))

def test_that_changed(perf):
    perf.host_calls(call(steplib.step, jnp.ones((4, 4))))
"""


def test_a_test_that_fails_on_one_side_moves_nothing_into_the_others(library, pytester, capsys, tmp_path):
    """What JAX does once a process, here for three operations, and in one file while it is imported."""
    library(OLD, f"{NEW}\nadded = 1\n")
    pytester.makepyfile(test_a=CANNOT_BE_IMPORTED, test_b=FIRST_USES)
    found = tmp_path / "found.json"
    assert command("--with", "steplib==2.0", "--base-with", "steplib==1.0", "--time=none", f"--json={found}") == 1
    values = json.loads(found.read_text())
    assert {(each["test"], each["base"]) for each in values["tests"]} == {
        ("test_a.py", "not collected"),
        ("test_a.py::test_that_is_not_compared", "not run"),
        ("test_b.py::test_of_what_is_new", "failed"),
    }
    called = {}
    for change in values["changes"]:
        called.setdefault(change["test"], set()).add(change["verdict"])
    assert called["test_b.py::test_that_is_the_same"] == {"pass"}
    assert "fail" in called["test_b.py::test_that_changed"]
    assert len(called) == 2
    assert "what is exact: again, without the tests that do not pass" in capsys.readouterr().err


def recorded(**values):
    """The first run of a side, with counts by name."""
    return first_run({name: count(value) for name, value in values.items()})


def failed(why):
    return first_run(tests={TEST: ("failed", why)})


@pytest.fixture
def fake(monkeypatch):
    """Fingerprint the command on packages and tests that are only made up; returns its exit status, and the tests."""

    def run(base, head, *arguments, times_of=None):
        tests = FakeTests({"base": base, "head": head}, times_of)
        monkeypatch.setattr(changes, "Tests", lambda *_: tests)
        monkeypatch.setattr(sides, "packages_with", lambda specs, folder: Packages({"lib": "2"}, tuple(specs), folder))
        monkeypatch.setattr(sides, "present_packages", lambda: Packages({"lib": "1"}))
        return command("--with", "lib==2", *arguments), tests

    return run


class TestExitStatus:
    def test_a_count_that_rose(self, fake, capsys):
        assert fake(recorded(f=3), recorded(f=4), "--time=none")[0] == 1
        assert "worse: 1 metric" in capsys.readouterr().out

    def test_a_test_that_is_skipped_on_both_sides_is_named_and_counted_in_the_last_line(self, fake, capsys):
        def side(value):
            run, reason = recorded(f=value), "perf.instructions measures nothing in this process"
            run.notes.tests["test_b.py::test_total"] = "skipped", reason
            return run

        for head, status, worse in ((3, 0, "nothing is worse"), (4, 1, "worse: 1 metric")):
            ended, tests = fake(side(3), side(head), "--time=none")
            assert (ended, tests.ran) == (status, ["base", "head"]), "it shifts nothing: the tests run once"
            written = capsys.readouterr().out
            assert "not compared, because they did not pass on both sides:\n  test_b.py::test_total: skipped" in written
            assert "perf.instructions measures nothing" in written
            assert written.endswith(f"{worse}; not compared, because skipped on both sides: 1 test\n")

    def test_a_time_that_rose(self, fake):
        def times_of(name):
            return Run(notes({"f to return": random.uniform(1, 1.1) * (2 if name == "head" else 1)}), 1.0)

        status, tests = fake(recorded(f=3), recorded(f=3), times_of=times_of)
        assert status == 1
        assert tests.ran[2:].count("base") == tests.ran[2:].count("head") >= 10

    def test_one_that_is_ended_leaves_nothing(self, fake, monkeypatch, tmp_path):
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        before = signal.getsignal(signal.SIGTERM)

        def times_of(name):
            assert [path.name[:18] for path in tmp_path.iterdir()] == ["perfsuite-against-"]
            signal.raise_signal(signal.SIGTERM)

        with pytest.raises(SystemExit) as raised:
            fake(recorded(f=3), recorded(f=3), times_of=times_of)
        assert raised.value.code == 128 + signal.SIGTERM
        assert list(tmp_path.iterdir()) == []
        assert signal.getsignal(signal.SIGTERM) is before

    def test_no_metric_of_both_is_an_error(self, fake, capsys):
        for old, new in ((recorded(f=3), recorded(g=3)), (recorded(), recorded()), (failed("boom"), failed("bang"))):
            with pytest.raises(CommandError, match="no metric was made on both sides"):
                fake(old, new, "--time=none")
        written = capsys.readouterr().out
        assert "base: boom" in written
        assert "nothing is worse" not in written

    def test_nothing_to_compare_with(self, fake):
        with pytest.raises(CommandError, match="no perf test was found"):
            fake(first_run(tests={}), recorded(f=3))
        with pytest.raises(CommandError, match="killed"):
            fake(Run(Notes(), 1.0, "killed"), recorded(f=3))


class TestWhenTimesEnd:
    def test_as_soon_as_all_are_decided(self, fake):
        def times_of(name):
            return Run(notes({"f to return": 2.0 if name == "head" else 1.0}), 1.0)

        _, tests = fake(recorded(f=3), recorded(f=3), "--minutes=0.05", times_of=times_of)
        assert len(tests.ran) == 2 + 20

    def test_when_the_minutes_are_over_where_they_are_not(self, fake):
        # Both sides take the same times, which scatter: a draw for each would now and then decide.
        times = {name: itertools.cycle([1.0, 9.0, 3.0, 7.0, 5.0]) for name in ("base", "head")}

        def times_of(name):
            time.sleep(0.02)
            return Run(notes({"f to return": next(times[name])}), 1.0)

        _, tests = fake(recorded(f=3), recorded(f=3), "--minutes=0.01", times_of=times_of)
        assert 2 + 20 <= len(tests.ran) <= 2 + 40

    def test_none_are_taken_where_none_are_asked_for(self, fake):
        assert len(fake(same(recorded(f=3)), same(recorded(f=3)), "--time=none")[1].ran) == 2
        assert len(fake(same(recorded(f=3)), same(recorded(f=3)), "--time=all")[1].ran) == 2 + 20

    def test_none_are_taken_of_what_runs_what_it_ran(self, fake, capsys):
        status, tests = fake(same(recorded(f=3)), same(recorded(f=3)))
        assert (status, len(tests.ran)) == (0, 2)
        assert "not timed, because they run what they ran: 1 test" in capsys.readouterr().out


def same(run):
    """The run, of a test that times a call of which it is known what it runs."""
    run.notes.places[TEST] = {"f to return": Place(sampled=True, runs=Fingerprint("programs", "host calls"))}
    return run


class TestNewTests:
    """A test for what only the head has is listed, and nothing is wrong with it."""

    def test_alone(self, fake, capsys):
        assert fake(failed("AttributeError"), recorded(f=3), "--time=none")[0] == 0
        assert capsys.readouterr().out.splitlines()[-1] == "all tests are new: nothing to compare"


def test_what_follows_the_dashes_is_pytests():
    words = ["against", "main", "--with", "a==1", "b==2", "--base-with", "a==0", "--minutes=4"]
    options = read_arguments([*words, "--", "tests", "-k", "x", "--", "y"])
    assert (options.revision, options.head, options.base, options.minutes) == ("main", ["a==1", "b==2"], ["a==0"], 4)
    assert options.pytest_arguments == ["tests", "-k", "x", "--", "y"]
    assert read_arguments(["against"]).pytest_arguments == []


@pytest.mark.parametrize("bad", ["--minutes=0", "--seconds=nan", "--time=some"])
def test_bad_numbers(bad, capsys):
    with pytest.raises(SystemExit):
        run_command(against, bad)
    assert bad.partition("=")[2] in capsys.readouterr().err


def test_a_bad_spec_is_an_error_before_anything_is_made():
    with pytest.raises(CommandError, match='"jax=1" names no package'):
        run_command(against, "--with", "jax=1")


def test_a_file_that_cannot_be_written_is_an_error_before_minutes_of_work(tmp_path):
    with pytest.raises(CommandError, match=r"--json .*make it first"):
        run_command(against, f"--json={tmp_path / 'none' / 'found.json'}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "is not in a git repository"),
        (["v9"], "is not in a git repository"),
    ],
)
def test_what_cannot_be_compared_is_an_error_and_leaves_nothing(arguments, message, tmp_path, monkeypatch, capsys):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "file").touch()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main(["against", *arguments]) == 2
    assert re.search(rf"^perfsuite against: .*{message}", capsys.readouterr().err, re.MULTILINE)
    assert [path.name for path in tmp_path.iterdir()] == ["here"]
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["file"]
