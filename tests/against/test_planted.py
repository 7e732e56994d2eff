"""Planted in the working tree, each of these is found against the commit before it; what was not touched is silent."""

import json
import os

import pytest
from support.git_project import ISOLATED, GitProject

from perfsuite.commands import main

STEPS = """
import functools
import jax
import jax.numpy as jnp

def host(x):
    return _jitted(x)

@jax.jit
def _jitted(x):
    return (x @ x).sum()

@functools.partial(jax.jit, donate_argnums=0)
def update(state, x):
    return state + x

@jax.jit
def model(x):
    return jnp.tanh(x @ x)

@functools.partial(jax.jit, static_argnums=1)
def by_flag(x, flag):
    return x + 1

def run(x):
    for flag in (1, 1):
        by_flag(x, flag)

@jax.jit
def untouched(x):
    return x - 1
"""
TESTS = """
import jax.numpy as jnp
import steps
from perfsuite import call

def test_host(perf):
    perf.host_calls(call(steps.host, jnp.ones((4, 4))))

def test_donation(perf):
    perf.program(call(steps.update, jnp.ones(1000), jnp.ones(1000), carry=1))

def test_compiles(perf):
    x = jnp.ones(3)
    with perf.count_compiles():
        steps.run(x)

def test_program(perf):
    perf.program(call(steps.model, jnp.ones((16, 16))))

def test_untouched(perf):
    made = call(steps.untouched, jnp.ones(7))
    perf.host_calls(made)
    perf.program(made)
    perf.compare(made, call(steps.untouched, jnp.ones(7)), name="same")
"""
PLANTS = {
    "    return _jitted(x)": "    look(x)\n    return _jitted(x)\n\ndef look(x):\n    return x",
    "@functools.partial(jax.jit, donate_argnums=0)": "@jax.jit",
    "(1, 1)": "(1, 2)",
    "jnp.tanh(x @ x)": "jnp.tanh(x @ x) @ x",
}
TEST_OF_ANOTHER = (
    "def test_only_here(perf):\n    import only_here\n    perf.record('f', 1, unit='things', kind='count')\n"
)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    made = GitProject(tmp_path_factory.mktemp("planted"))
    for name, text in {"pytest.ini": "[pytest]\n", "steps.py": STEPS, "tests/test_steps.py": TESTS}.items():
        (made.root / name).parent.mkdir(exist_ok=True)
        (made.root / name).write_text(text)
    made.commit("right")
    return made


@pytest.fixture
def against(project, monkeypatch, tmp_path, capsys):
    """Fingerprint the command without times; its status, what it found, and what it printed."""
    for name, value in ISOLATED.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(project.root), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.chdir(project.root)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def run(*arguments):
        found = tmp_path / "found.json"
        before = project.git("status", "--porcelain"), project.git("diff"), (project.root / ".git/index").read_bytes()
        status = main(["against", "--time=none", f"--json={found}", *arguments])
        assert before == (
            project.git("status", "--porcelain"), project.git("diff"), (project.root / ".git/index").read_bytes()
        )  # fmt: skip
        assert project.git("worktree", "list").count("\n") == 1
        assert [path.name for path in tmp_path.iterdir() if path != found] == []
        return status, json.loads(found.read_text()), capsys.readouterr().out

    return run


def test_each_plant_is_named_with_its_line_and_the_rest_is_silent(project, against):
    text = STEPS
    for right, wrong in PLANTS.items():
        assert text.count(right) == 1
        text = text.replace(right, wrong)
    (project.root / "steps.py").write_text(text)
    (project.root / "tests" / "test_new.py").write_text(TEST_OF_ANOTHER)
    (project.root / "only_here.py").write_text("")
    try:
        status, values, _ = against()
    finally:
        (project.root / "steps.py").write_text(STEPS)
        for name in ("tests/test_new.py", "only_here.py"):
            (project.root / name).unlink()
    assert status == 1
    worse = {
        (c["test"].rpartition("::")[2], c["metric"]["name"]): c for c in values["changes"] if c["verdict"] == "fail"
    }
    calls = worse["test_host", "host host calls"]
    assert [(part["name"], part["amount"], part["place"]) for part in calls["grown"]] == [
        ("steps:look in host (steps.py)", 1, "steps:look at steps.py:7 in host")
    ]
    assert calls["where"] == "tests/test_steps.py:7"
    donation = worse["test_donation", "update reused donations"]
    assert (donation["metric"]["value"], donation["where"]) == (0, "tests/test_steps.py:10")
    assert [(part["name"], part["amount"]) for part in donation["grown"]] == [("args[0]", -1)]
    assert worse["test_compiles", "compiles"]["grown"] == [
        {"name": "by_flag", "amount": 1, "place": f"steps.py:{_line(text, 'by_flag(x, flag)', last=True)}"}
    ]
    flops = worse["test_program", "model flops"]["grown"]
    assert [part["place"] for part in flops] == [f"steps.py:{_line(text, 'jnp.tanh')} in model"]
    assert {test for test, _ in worse} == {"test_host", "test_donation", "test_compiles", "test_program"}
    untouched = [change for change in values["changes"] if change["test"].endswith("test_untouched")]
    assert {change["verdict"] for change in untouched} == {"pass"}
    (new,) = values["tests"]
    assert (new["test"], new["base"], new["head"]) == ("tests/test_new.py::test_only_here", "failed", "passed")
    assert "No module named 'only_here'" in new["reason"]


def test_the_same_code_is_silent(against):
    status, values, written = against("HEAD")
    assert (status, values["worse"], values["tests"]) == (0, False, [])
    assert {change["verdict"] for change in values["changes"]} == {"pass"}
    assert written.splitlines()[-1] == "nothing is worse"


def _line(text, part, *, last=False):
    lines = [number for number, line in enumerate(text.splitlines(), 1) if part in line]
    return lines[-1 if last else 0]
