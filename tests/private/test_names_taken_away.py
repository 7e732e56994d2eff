"""Every private name of another library, taken away: a session goes on, and what needs the name says so.

Of each name one session runs, with a plain test and the instruments. What needs nothing private passes, the others pass
or are skipped with the sentence of a capability that the name belongs to.
"""

import ast
import dataclasses
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from perfsuite.measure import private
from perfsuite.measure.private.capabilities import CAPABILITIES, COMPILE_EVENTS, Capability
from perfsuite.measure.private.names import Declared, Functions
from tests.support.private_names import places

ROOM = Path(private.__file__).parent

PROJECT = """
import jax
import jax.numpy as jnp
import numpy as np

from perfsuite import Budget, RecompilationError, call


@jax.jit
def step(state, batch):
    return state + batch.mean(), batch.sum()


def carried():
    return call(step, jnp.zeros(3), jnp.ones(8), carry=1)


def test_plain():
    assert step(jnp.zeros(2), jnp.ones(2))[1] == 2


def test_time(perf):
    assert perf.time(carried()).to_ready.median_us > 0


def test_compare(perf):
    perf.compare(carried(), carried(), Budget(ratio=1000.0))


def test_scaling(perf):
    perf.scaling(lambda n: (call(step, jnp.zeros(3), jnp.ones(n)), n), [2, 4, 8], metric="host_calls")


def test_host_calls(perf):
    assert 0 < perf.host_calls(call(lambda x: step(x, x), jnp.ones(3))).total < 50


def test_record(perf):
    perf.record("answer", 42, unit="things", kind="count")


def test_program(perf):
    assert perf.program(carried()).flops


def test_warm(perf):
    warmed = perf.warm(step, over=[(jnp.zeros(3), jnp.ones(n)) for n in (4, 5)])
    state, batch, wrong = jnp.zeros(3), jnp.ones(4), jnp.ones(6)
    with perf.no_compiles():
        warmed(state, batch)
    try:
        with perf.no_compiles():
            warmed(state, wrong)
    except RecompilationError:
        return
    raise AssertionError("a recompilation was not refused")


def test_count_compiles(perf):
    with perf.count_compiles() as counted:
        jax.jit(lambda x: x + 1)(np.ones(3))
    assert (counted.lowerings, counted.compiles) == (1, 1)


def test_dispatches(perf):
    assert perf.dispatches(carried()).total == 1


def test_fast_path(perf):
    assert perf.fast_path(carried()).misses == 0


def test_transfers(perf):
    x = jnp.ones(3)
    assert perf.transfers(call(lambda: float(step(x, x)[1]))).total == 1


def test_first_call(perf):
    assert perf.first_call(carried()).traces


def test_waits(perf):
    perf.stays_async(call(lambda x: step(x, x), jnp.ones(3)))
"""

NOTHING_PRIVATE = (
    *("test_plain", "test_time", "test_compare", "test_scaling", "test_host_calls", "test_record", "test_program"),
    *("test_warm", "test_count_compiles"),
)
COMPILING = "test_warm", "test_count_compiles"
"""They need the public `jax.monitoring` alone, but the names of its events, which JAX promises to nobody."""


@dataclasses.dataclass(frozen=True)
class Place:
    """A name, or a local variable of a frame, among those of one capability."""

    capability: str
    place: int
    variable: str
    says: str


FIRST = {id(declared): each for each in reversed(CAPABILITIES) for declared in each.names()}
"""The first capability in the table that needs a name."""
PLACES = [
    Place(each.name, number, variable, f"{declared}{variable and f' {variable}'}")
    for each in CAPABILITIES
    for number, declared in enumerate(each.names())
    if FIRST[id(declared)] is each and declared.is_current()
    for variable in places(declared)
]
"""Those that the installed versions of the libraries have."""
WORDS = {each.name for each in CAPABILITIES if {type(name) for name in each.names()} == {Functions}}
"""Capabilities whose names are only compared with text: all of one are taken away at once."""
SETS = [[place] for place in PLACES if place.capability not in WORDS]
SETS += [[place for place in PLACES if place.capability == name] for name in sorted(WORDS)]


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """Run a session without some names, one after the other in one process."""
    folder = tmp_path_factory.mktemp("ten")
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_ten.py").write_text(PROJECT)
    command = [sys.executable, "-m", "tests.support.sessions_without"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:

        def run(*taken, arguments=("--perf", "--perf-seconds=0.02"), file="test_ten.py"):
            names = [{"capability": each.capability, "place": each.place, "variable": each.variable} for each in taken]
            request = {"names": names, "arguments": [file, *arguments], "folder": str(folder)}
            server.stdin.write(json.dumps(request) + "\n")
            server.stdin.flush()
            return json.loads(server.stdout.readline())

        yield run
        server.stdin.close()


def belongs(place: Place) -> list[Capability]:
    """The capabilities that need a name."""
    declared = next(each for each in CAPABILITIES if each.name == place.capability).names()[place.place]
    own = [each for each in CAPABILITIES if declared in each.names()]
    return [*own, *(each for each in CAPABILITIES if not set(own).isdisjoint(each.also))]


def check(answer, taken):
    sentences = [f"has to {each.purpose}" for place in taken for each in belongs(place)]
    assert answer["status"] == 0, answer["output"]
    assert len(answer["tests"]) == PROJECT.count("\ndef test_")
    for test, (outcome, reason) in answer["tests"].items():
        if outcome == "passed":
            continue
        assert outcome == "skipped", f"{test}: {outcome}: {reason}\n{answer['output']}"
        assert test not in NOTHING_PRIVATE or (
            test in COMPILING and any(place.capability == COMPILE_EVENTS.name for place in taken)
        ), reason
        assert any(sentence in reason for sentence in sentences), reason
    assert "INTERNALERROR" not in answer["output"]


@pytest.mark.parametrize("taken", SETS, ids=lambda taken: f"{taken[0].capability}-{taken[0].says}".replace(" ", "-"))
def test_a_session_goes_on_without_it_and_what_needs_it_says_so(taken, session):
    answer = session(*taken)
    check(answer, taken)
    assert answer["lost"][taken[0].capability], "the capability's probe does not see that the name is missing"


def test_with_every_name_nothing_is_skipped(session):
    answer = session()
    assert {outcome for outcome, _ in answer["tests"].values()} == {"passed"}, answer["output"]


def test_a_future_jax_in_which_five_names_moved(session):
    first = {place.capability: place for place in reversed(PLACES)}
    taken = [first[name] for name in ("traces", "stack", "program runs", "transfers", "first calls")]
    answer = session(*taken)
    check(answer, taken)
    skipped = {test for test, (outcome, _) in answer["tests"].items() if outcome == "skipped"}
    assert {"test_dispatches", "test_transfers", "test_first_call"} <= skipped
    assert session(*taken, arguments=("--perf", "--perf-strict"))["status"] != 0


def declared_in(value: object) -> list[Declared]:
    values = value.values() if isinstance(value, dict) else value if isinstance(value, tuple | list) else ()
    return [value] if isinstance(value, Declared) else [name for each in values for name in declared_in(each)]


@pytest.mark.parametrize("path", sorted(ROOM.glob("[a-z]*.py")), ids=lambda path: path.stem)
def test_each_name_belongs_to_a_capability(path):
    """A name of none, or in a function, would be taken away by none of these tests."""
    module = importlib.import_module(f"{private.__name__}.{path.stem}")
    needed = {id(name) for each in CAPABILITIES for name in each.names()}
    assert not [str(name) for name in declared_in(vars(module)) if id(name) not in needed]
    kinds = {"Name", "Frame", "Attribute", "Functions", "Text"}
    inside = [
        node.lineno
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kinds
    ]
    assert not inside
