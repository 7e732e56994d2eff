"""What no host call shows was planted: native work, loops, operators. What chance decides is left out."""

import pytest
from support.valgrind_needed import needs_valgrind

from perfsuite.measure.serialise import from_plain
from perfsuite.session.records import TestRecord

WORK = """
import itertools
import sys
from contextvars import Context, ContextVar
import jax
import jax.numpy as jnp
import numpy as np
from perfsuite import call

PLANTED = False

@jax.jit
def step(state, batch):
    return jax.tree.map(lambda leaf: leaf + batch.mean(), state)

def state(leaves):
    return {f"layer{number}": jnp.ones(4) for number in range(leaves)}

class Settings:
    def __init__(self, names):
        self.names = names
    def __hash__(self):
        return sum(hash(name) for name in self.names)
    def __eq__(self, other):
        return self.names == other.names

scaled = jax.jit(lambda x, settings: x * 2, static_argnums=1)

def averages(state, batch):
    state = step(state, batch)
    return jax.tree.map(lambda leaf: leaf, state) if PLANTED else state

def more_leaves():
    return call(step, state(60 if PLANTED else 10), jnp.ones(8), carry=1)

def sorts():
    return call(np.sort, np.ones(1000 if PLANTED else 10)[::-1].cumsum())

def converts(x):
    for number in range(1000 if PLANTED else 10):
        str(number), np.float32(number), dict(a=number)
    return x

class Holder:
    pass

def reads(holder, names):
    for _ in range(500):
        for name in names:
            getattr(holder, name)

# Each call takes more where `chance` decides that what it needs lies badly in memory.

def reads_attributes(chance):
    # Two names that share a place in Python's table of attributes, or do not.
    names = two_that(chance, lambda number: sys.intern(f"attribute{number}"), lambda name: id(name) >> 3 & 4095)
    for each in names:
        setattr(Holder, each, 1)
    return call(reads, Holder(), names)

def reads_variables(chance):
    # Two context variables whose hashes share 20 bits, or not the first five.
    bits = 20 if chance else 5
    place = lambda variable: (hash(variable) ^ hash(variable) >> 32) % 2**bits
    variables = two_that(chance, lambda number: ContextVar(f"variable{number}"), place)
    context = Context()
    for each in variables:
        context.run(each.set, 1)
    return call(lambda: [context.run(each.get) for each in variables * 500])

def array_of(size, chance):
    # JAX copies an array of NumPy that does not lie at a multiple of 64 bytes.
    bytes = np.zeros(4 * size + 128, np.uint8)
    first = -bytes.ctypes.data % 64 + (16 if chance else 0)
    return bytes[first:first + 4 * size].view(np.float32)

def passes_an_array(chance):
    return call(scaled, array_of(40_000, chance), 2)

def passes_its_own_array(chance):
    array = array_of(4, chance)
    return call(lambda: scaled(array, 2))

def two_that(share, make, place):
    places = {}
    for made in map(make, itertools.count()):
        other = places.setdefault(place(made), made)
        if share and other is not made:
            return [other, made]
        if not share and len(places) == 2:
            return list(places.values())

def hashes():
    return call(scaled, jnp.ones(4), Settings(list(map(str, range(1000 if PLANTED else 10)))))
"""

TESTS = """
from work import *

def test_a_tree_pass(perf):
    perf.instructions(call(averages, state(10), jnp.ones(8), carry=1))

def test_more_leaves(perf):
    perf.instructions(more_leaves())

def test_a_sort(perf):
    perf.instructions(sorts())

def test_conversions(perf):
    perf.instructions(call(converts, 1), name="first")
    perf.instructions(call(converts, 1), name="again")

def test_a_static_argument_that_is_hashed(perf):
    perf.instructions(hashes())

def test_what_did_not_change(perf):
    perf.instructions(call(step, state(10), jnp.ones(8), carry=1))
"""

CHANCE = """
import pytest
from work import *

@pytest.mark.parametrize(
    "made, most",
    [(reads_attributes, 0.1), (reads_variables, 0.01), (passes_an_array, 0.01), (passes_its_own_array, 0.01)],
)
def test_where_things_lie_in_memory(perf, made, most):
    more, less = (perf.instructions(made(chance), name=str(chance)).total for chance in (True, False))
    assert abs(more / less - 1) < most

def test_threads_that_wait_for_work(perf):
    mesh = jax.make_mesh((8,), ("x",))
    x = jax.device_put(jnp.ones(64), jax.NamedSharding(mesh, jax.P("x")))
    counted = perf.instructions(call(jax.jit(lambda state: [each + 1 for each in state]), [x, x + 1, x + 2, x + 3]))
    assert counted.total < 1_000_000, "it was 3 million with them"
    assert not [name for name in counted.by_function if "AddUsageEvent" in name]
"""

INI = "[pytest]\naddopts = -p no:cacheprovider\npythonpath = .\n"

PARTS = {
    "test_a_tree_pass": "work.py:averages",
    "test_more_leaves": "libjax_common.so",
    "test_a_sort": "_multiarray_umath",
    "test_conversions": "work.py:converts",
    "test_a_static_argument_that_is_hashed": "work.py:Settings.__hash__",
}


@needs_valgrind
def test_what_no_host_call_shows_is_caught_and_named(pytester: pytest.Pytester):
    pytester.makepyfile(work=WORK, test_work=TESTS)
    pytester.makeini(INI)
    pytester.inline_run("--perf-save").assertoutcome(passed=6)
    pytester.makepyfile(work=WORK.replace("PLANTED = False", "PLANTED = True"))
    run = pytester.inline_run("--perf")
    run.assertoutcome(failed=5, passed=1)
    records = [from_plain(TestRecord, each.perfsuite) for each in run.getreports() if hasattr(each, "perfsuite")]
    grown = {record.test.rpartition(":")[2]: record.results[0].grown for record in records if not record.passed}
    assert {test for test, part in PARTS.items() if part not in "".join(each.name for each in grown[test])} == set()
    assert grown["test_conversions"][0].place.startswith("work.py:")


@needs_valgrind
def test_what_addresses_and_time_decide_is_left_out(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8")  # of the process that counts
    pytester.makepyfile(work=WORK, test_chance=CHANCE)
    pytester.makeini(INI)
    pytester.inline_run("--perf").assertoutcome(passed=5)
