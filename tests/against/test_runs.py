"""`perfsuite.against.runs`: the processes of a check, their command lines, and their random order."""

import gzip
import json
import random
import re
import sys
from pathlib import Path

from support.against import FakeTests, notes, side
from support.libtpu_needed import needs_libtpu

from perfsuite.against import runs
from perfsuite.against.notes import Notes
from perfsuite.against.runs import WINDOW, Effort, Run, Tests
from perfsuite.against.sides import Side, present_packages

PROGRAMS = """
import jax
import jax.numpy as jnp
from perfsuite import call

@jax.jit
def step(x):
    return jnp.tanh(x @ x)

def test_step(perf):
    for target in (None, "tpu-v5e"):
        perf.program(call(step, jnp.ones((8, 8))), target)
"""


TEST_STEP = "test_step.py::test_step"


def arguments(*given, seconds=None):
    return Tests(given, Path("scratch"))._arguments(side("a"), Path("run"), Path("empty"), seconds)


def test_what_must_hold_comes_after_what_the_user_says_but_before_the_dashes():
    made = arguments("--perf-baselines=mine", "--", "-odd-name.py", seconds=0.5)
    assert made.index("--perf-baselines=mine") < made.index("--perf-baselines=empty") < made.index("--")
    assert made[-2:] == ["--", "-odd-name.py"]
    assert "--perf-seconds=0.5" in made


def test_each_window_has_as_many_of_each_in_an_order_drawn_by_lot():
    tests, first = FakeTests({}), [Run(notes(), 1.0)]
    sides = side("base"), side("head")
    made = runs.timed_windows(tests, sides, Effort(1e-9, 1.0), first=first, say=str, order=random.Random(1))
    # At least two, however short the time is.
    assert [(len(window.base), len(window.head)) for window in made] == [(WINDOW, WINDOW)] * 2
    orders = {tuple(tests.ran[start : start + 2 * WINDOW]) for start in (0, 2 * WINDOW)}
    assert len(orders) == 2
    assert all(order.count("base") == WINDOW for order in orders)


def test_the_parts_of_an_error_are_no_more_than_the_error():
    assert 0.99 < sum(map(runs.share, range(1, 1000))) < 1


def test_a_process_that_dies_says_so(tmp_path, monkeypatch):
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho last words, cache: $JAX_ENABLE_COMPILATION_CACHE; exit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    run = Tests([], tmp_path / "runs").times(side("a", folder=tmp_path), seconds=1, limit=20)
    assert run.notes == Notes()
    assert re.search("status 3; .*last words, cache: false", run.problem)


def test_sides_run_one_after_the_other_on_one_core_and_where_there_may_be_an_accelerator(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    for cores in (1, None):
        monkeypatch.setattr(runs.os, "cpu_count", lambda cores=cores: cores)
        assert not runs.at_once()
    monkeypatch.setattr(runs.os, "cpu_count", lambda: 64)
    assert runs.at_once()
    for platforms in ("cuda", "cuda,cpu", "", None):
        monkeypatch.setenv("JAX_PLATFORMS", platforms) if platforms is not None else monkeypatch.delenv("JAX_PLATFORMS")
        assert not runs.at_once()


@needs_libtpu
def test_what_a_compiler_says_for_an_absent_device_is_asked_once_for_all_sides(pytester, monkeypatch):
    """A program of this device compiles on each side: how often a test compiles is compared."""
    pytester.makepyfile(test_step=PROGRAMS)
    pytester.makeini("[pytest]")
    monkeypatch.setenv("XDG_CACHE_HOME", str(pytester.path / "kept"))
    tests = Tests([], pytester.path / "runs")
    base, head = (Side(name, present_packages(), pytester.path) for name in ("base", "head"))

    [first] = tests.metrics(base)
    assert not first.problem
    (kept,) = (pytester.path / "kept/perfsuite/programs").glob("*.json.gz")
    entry = json.loads(gzip.decompress(kept.read_bytes()))
    entry["memory"]["temp_size_in_bytes"] = 12345
    kept.write_bytes(gzip.compress(json.dumps(entry).encode()))

    [second] = tests.metrics(head)
    here, there = (
        {device: saved.metrics[TEST_STEP]["program temp bytes"].value for device, saved in run.baselines.items()}
        for run in (first, second)
    )
    assert there == {**here, "tpu-v5e": 12345}
    stages, others = ([(note.function, note.stage, note.count) for note in run.notes.stages] for run in (first, second))
    assert stages == others


SAMPLED = """
import jax
import jax.numpy as jnp
from perfsuite import call

@jax.jit
def step(x):
    return jnp.tanh(x @ x)

def calls_of(size):
    return call(step, jnp.ones((size, size))), size

def test_step(perf):
    a, b = (call(step, jnp.ones((8, 8))) for _ in range(2))
    perf.host_calls(a, name="alone")
    perf.compare(a, b, name="pair")
    perf.time(a, name="alone")
    perf.scaling(calls_of, [4, 8], name="sizes")
    perf.record("own", 3.0, unit="us", kind="time")
"""
TITLES = ["pair ratio to ready", "alone to return", "alone to ready", "alone p99", "sizes to return per unit"]


def test_what_is_sampled_is_named_with_what_it_runs(pytester):
    pytester.makepyfile(test_step=SAMPLED)
    pytester.makeini("[pytest]")
    side = Side("base", present_packages(), pytester.path)
    [first] = Tests(["--perf-seconds=0.3"], pytester.path / "runs").metrics(side)
    assert first.notes.tests == {TEST_STEP: ("passed", "")}, first.problem
    places = first.notes.places[TEST_STEP]
    lines = SAMPLED.strip().splitlines()  # as pytester writes them
    sampled = {
        title: lines[int(place.line.rpartition(":")[2]) - 1].split("(")[0].strip()
        for title, place in places.items()
        if place.sampled
    }
    methods = ["perf.compare", "perf.time", "perf.time", "perf.time", "perf.scaling", "perf.record"]
    assert sampled == dict(zip([*TITLES, "own"], methods, strict=True))
    assert all(places[title].runs.complete for title in TITLES)
    assert places["alone p99"].runs == places["alone to ready"].runs != places["pair ratio to ready"].runs
    assert not places["own"].runs.complete
