"""What no host call shows was planted: native work, loops, operators. All are counted in two processes of Valgrind."""

import pytest
from support.valgrind_needed import needs_valgrind

from perfsuite.measure.serialise import from_plain
from perfsuite.session.records import TestRecord

WORK = """
import itertools
import sys
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

def names_of(shared):
    # Two names that share a place in Python's table of attributes, or do not.
    places = {}
    for name in (sys.intern(f"attribute{number}") for number in itertools.count()):
        other = places.setdefault(id(name) >> 3 & 4095, name)
        names = (other, name) if other is not name else tuple(places.values())
        if len(names) == 2 and shared == (other is not name):
            for each in names:
                setattr(Holder, each, 1)
            return names

def reads(names):
    for _ in range(500):
        for name in names:
            getattr(Holder(), name)

def hashes():
    return call(scaled, jnp.ones(4), Settings(list(map(str, range(1000 if PLANTED else 10)))))
"""

TESTS = """
import work
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

def test_where_names_lie_in_memory(perf):
    shared, apart = (perf.instructions(call(reads, names_of(share)), name=str(share)) for share in (True, False))
    assert shared.total < 1.1 * apart.total, "it was 1.3 times with what a miss costs"

def test_what_did_not_change(perf):
    perf.instructions(call(step, state(10), jnp.ones(8), carry=1))
"""

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
    pytester.makeini("[pytest]\naddopts = -p no:cacheprovider\npythonpath = .\n")
    pytester.inline_run("--perf-save").assertoutcome(passed=7)
    pytester.makepyfile(work=WORK.replace("PLANTED = False", "PLANTED = True"))
    run = pytester.inline_run("--perf")
    run.assertoutcome(failed=5, passed=2)
    records = [from_plain(TestRecord, each.perfsuite) for each in run.getreports() if hasattr(each, "perfsuite")]
    grown = {record.test.rpartition(":")[2]: record.results[0].grown for record in records if not record.passed}
    assert {test for test, part in PARTS.items() if part not in "".join(each.name for each in grown[test])} == set()
    assert grown["test_conversions"][0].place.startswith("work.py:")
