"""The fingerprint of a call: what changes it, and what does not."""

import os
import subprocess
import sys
import threading
import time
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import fingerprinted
from support.fingerprinted import SOURCE, fingerprint_of, module_of

from perfsuite import MeasurementError, call
from perfsuite.measure.fingerprint.fingerprint import differing, fingerprint, together
from perfsuite.measure.fingerprint.parts import PARTS
from perfsuite.measure.fingerprint.values import Unknown

CHANGED = {
    "a constant in the function": ("python", '"a text"', '"other text"'),
    "a global number": ("python", "SCALE = 3", "SCALE = 4"),
    "a number in a global dict": ("python", '{"rounds": 2', '{"rounds": 3'),
    "a global array": ("python", "np.arange(4.0)", "np.arange(4.0) + 1"),
    "a helper that it calls": ("python", "def helper(x):\n    return x", "def helper(x):\n    return [x]"),
    "another helper": ("python", "        helper(x)", "        other_helper(x)"),
    "a default argument": ("python", "by=7", "by=8"),
    "a keyword's default": ("python", "at=11", "at=12"),
    "a value in a closure": ("python", "made_with(0.5)", "made_with(0.25)"),
    "an argument of a partial": ("python", "operator.add, 13", "operator.add, 14"),
    "a C function": ("python", "itemgetter(0)", "itemgetter(1)"),
    "a decorated function": ("python", "return x, 17", "return x, 18"),
    "a decorator": ("python", "        return function(*args)", "        return [function(*args)][0]"),
    "a function behind a cache": ("python", "return 19", "return 20"),
    "a method": ("python", "self.depth + self.width", "self.depth * self.width"),
    "an attribute of a class": ("python", "    depth = 2", "    depth = 3"),
    "an attribute of an object": ("python", "self.width = 5", "self.width = 6"),
    "the order of calls": (
        "python",
        "    shifted(x)\n    scaled(x)\n",
        "    scaled(x)\n    shifted(x)\n",
    ),
    "one call more": ("host calls", "    scaled(x)\n", "    scaled(x)\n    scaled(x)\n"),
    "a function of NumPy's": ("host calls", "    scaled(x)\n", "    np.sort(TABLE)\n"),
    "an operation in a jitted body": ("programs", "x * 2 + y", "x * 3 + y"),
    "a program more": ("programs", "    scaled(x)\n", "    scaled(x)\n    step(x, y, 1)\n"),
    "a static argument": ("programs", "step(x, y, 1)", "step(x, y, 2)"),
    "a donation": ("programs", "donate_argnums=()", "donate_argnums=1"),
    "the precision around a product": (
        "programs",
        "    return step(x, y, 1)",
        "    with jax.default_matmul_precision('float32'):\n        y = jnp.dot(x, y)\n    return step(x, y, 1)",
    ),
    "a shape": ("inputs", "jnp.ones(4), np.ones(4,", "jnp.ones(5), np.ones(5,"),
    "a dtype": ("inputs", "jnp.ones(4)", "jnp.ones(4, jnp.float16)"),
    "a weak type": ("inputs", "jnp.ones(4)", "jnp.broadcast_to(1.0, (4,))"),
    "NumPy for jax": ("inputs", "np.ones(4, np.float32)", "jnp.ones(4)"),
    "an array that is committed": ("inputs", "jnp.ones(4)", "jax.device_put(jnp.ones(4), jax.devices()[0])"),
    "the numbers of a small array": ("inputs", "np.ones(4,", "np.zeros(4,"),
}

ALIKE = {
    "a comment": ("    scaled(x)\n", "    # Why.\n    scaled(x)  # once\n"),
    "lines": ("    scaled(x)\n", "\n\n    scaled(\n        x,\n    )\n"),
    "a docstring": ('"""Add."""', '"""Add, and say so at length."""'),
    "no docstring": ('    """Add."""\n', ""),
    "the name of a local variable": ("label", "said"),
    "a function that does not run": ("def other_helper(x):\n    return x", "def other_helper(x):\n    return 2 * x"),
    "the lines of a jitted body": (
        "    return (x * 2 + y) * n",
        "\n    twice = x * 2  # a comment\n    return (twice + y) * n",
    ),
}


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory):
    return fingerprint_of(SOURCE, tmp_path_factory.mktemp("unchanged"))


@pytest.mark.parametrize("what", CHANGED)
def test_a_change_is_seen_and_its_part_named(what, unchanged, tmp_path):
    part, before, after = CHANGED[what]
    assert SOURCE.count(before) >= 1
    changed = fingerprint_of(SOURCE.replace(before, after), tmp_path)
    assert changed[part] != unchanged[part]
    assert PARTS[part] in differing(unchanged, changed)


@pytest.mark.parametrize("what", ALIKE)
def test_what_runs_the_same_has_the_same_fingerprint(what, unchanged, tmp_path):
    before, after = ALIKE[what]
    assert SOURCE.count(before) >= 1
    assert fingerprint_of(SOURCE.replace(before, after), tmp_path / "elsewhere") == unchanged
    assert not differing(unchanged, unchanged)


def test_it_is_the_same_in_every_process(tmp_path):
    def printed(seed: str) -> str:
        command = [sys.executable, fingerprinted.__file__, str(tmp_path / seed)]
        environment = {**os.environ, "PYTHONHASHSEED": seed, "JAX_PLATFORMS": "cpu"}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    assert printed("1") == printed("2") != ""


def test_a_call_that_carries_has_the_same_fingerprint_after_any_number_of_runs():
    carrying = call(jax.jit(lambda state, batch: (state + batch, batch.sum())), jnp.zeros(4), jnp.ones(4), carry=1)
    before = fingerprint(carrying)
    for _ in range(3):
        carrying.run()
    assert fingerprint(carrying) == before


def test_data_in_a_closure_that_the_call_makes_does_not_count():
    double = jax.jit(lambda state: state * 2)

    def run(state):
        new = double(state)
        assert [new for _ in range(2)]
        return new

    assert fingerprint(call(run, jnp.ones(4), carry=1)) == fingerprint(call(run, jnp.ones(4), carry=1))


def test_how_many_functions_of_the_same_code_are_alive_does_not_count():
    """Other tests of the session make them, too: a step of the same factory, for example."""
    double = jax.jit(lambda x: 2 * x)
    held = types.SimpleNamespace()  # an object of a library: it is not looked into

    def factory(by):
        def inner(x, by=by):
            return x

        return inner

    def run(x):
        return double(held.inner(x))

    held.inner = factory(1)
    before = fingerprint(call(run, jnp.ones(4)))
    others = [factory(1) for _ in range(3)]
    assert fingerprint(call(run, jnp.ones(4))) == before
    others.clear()
    held.inner = factory(2)
    assert differing(before, fingerprint(call(run, jnp.ones(4)))) == (PARTS["python"],)


def test_an_attribute_of_a_module_is_read(tmp_path, monkeypatch):
    (tmp_path / "settings.py").write_text("ROUNDS = 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "settings", raising=False)
    source = "import settings\nfrom perfsuite import call\n\n\ndef run():\n    return settings.ROUNDS\n\n\ndef made():\n    return call(run)\n"
    before = fingerprint_of(source, tmp_path)
    assert fingerprint_of(source, tmp_path) == before
    sys.modules["settings"].ROUNDS = 3
    assert differing(before, fingerprint_of(source, tmp_path)) == ("the Python code",)


def test_python_in_a_thread_of_the_call_is_seen():
    def in_a_thread(work):
        def run():
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()

        return run

    def once():
        return len("a")

    def changed():
        return len("b")

    assert fingerprint(call(in_a_thread(once)))["python"] != fingerprint(call(in_a_thread(changed)))["python"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems do not tell")
def test_a_call_that_gives_work_to_a_thread_that_was_there_has_none():
    asked, done = threading.Event(), threading.Event()

    def work():
        while asked.wait():
            asked.clear()
            time.sleep(0)
            done.set()

    def hand_over():
        done.clear()
        asked.set()
        done.wait()

    threading.Thread(target=work, name="worker", daemon=True).start()
    with pytest.raises(Unknown, match="the thread 'worker', which was there before, ran meanwhile"):
        fingerprint(call(hand_over))


def test_a_call_that_does_something_else_each_time_has_none():
    seen = []

    def more():
        seen.append(1)
        for _ in seen:
            len("a")

    with pytest.raises(Unknown, match="something else in each run"):
        fingerprint(call(more))


def test_a_program_that_calls_back_into_python_has_none():
    @jax.jit
    def printing(x):
        jax.debug.callback(lambda value: None, x)
        return x

    with pytest.raises(Unknown, match="printing: its program calls back into Python"):
        fingerprint(call(printing, jnp.ones(3)))


@pytest.mark.parametrize("wrap", [jax.vmap, jax.grad, lambda f: jax.jit(f).lower(jnp.ones(())).compile()])
def test_programs_outside_of_jit_and_compiled_ahead_are_told_apart(wrap):
    def by(factor):
        inner = jax.jit(lambda x: factor * x)
        return jax.vmap(inner) if wrap is jax.vmap else wrap(inner)

    x = jnp.ones(3) if wrap is jax.vmap else jnp.ones(())
    assert fingerprint(call(by(2), x))["programs"] != fingerprint(call(by(3), x))["programs"]
    assert fingerprint(call(by(2), x))["programs"] == fingerprint(call(by(2), x))["programs"]


def test_large_constants_of_a_program_count():
    def adding(numbers):
        return jax.jit(lambda x: x + jnp.asarray(numbers))

    numbers = np.zeros(10_000, np.float32)
    before = fingerprint(call(adding(numbers), jnp.ones(10_000)))
    numbers = numbers.copy()
    numbers[5_000] = 1
    assert fingerprint(call(adding(numbers), jnp.ones(10_000)))["programs"] != before["programs"]


def test_keys_of_random_numbers_are_arguments_too():
    drop = jax.jit(lambda x, key: x * jax.random.bernoulli(key, 0.9, x.shape))
    one, other = (fingerprint(call(drop, jnp.ones(4), jax.random.key(seed))) for seed in (0, 1))
    assert differing(one, other) == ("the arguments",)
    raw = fingerprint(call(drop, jnp.ones(4), jax.random.PRNGKey(0)))
    held = jax.random.key(2)
    assert fingerprint(call(lambda x: drop(x, held), jnp.ones(4)))
    assert raw["programs"] != one["programs"]


def test_a_call_that_cannot_run_is_refused_as_ever():
    spent = jnp.ones(3)
    spent.delete()
    with pytest.raises(MeasurementError, match="was deleted"):
        fingerprint(call(jnp.sin, spent))


def test_several_calls_have_one_in_their_order():
    one, two = (fingerprint(call(jnp.sin, jnp.ones(size))) for size in (3, 4))
    assert together([one, two]) == together([one, two]) != together([two, one])
    assert together([one], "to return")["around"] != together([one], "to ready")["around"]


def test_the_profiler_that_was_set_goes_on():
    def profiler(*_):
        pass

    sys.setprofile(profiler)
    try:
        fingerprint(call(len, "abc"))
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(None)


def test_the_module_under_test_is_the_one_in_the_folder(tmp_path):
    assert module_of(SOURCE, tmp_path).__file__ == str(tmp_path / f"{fingerprinted.NAME}.py")
