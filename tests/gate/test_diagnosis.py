"""`gate.diagnosis`: the likely cause of a slow candidate, in words."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perfsuite.gate.advice import advice_on
from perfsuite.gate.diagnosis import busiest, growing, likely_cause, unexplained
from perfsuite.measure.call import call
from perfsuite.measure.metric import Estimate, Interval, Metric
from perfsuite.measure.private.libraries import waits
from perfsuite.measure.runtime.dispatches import Dispatch, Dispatches
from perfsuite.measure.runtime.host_calls import CallOrigin, HostCalls, host_calls
from perfsuite.measure.timing.comparison import Comparison
from perfsuite.measure.timing.scaling import Scaling
from perfsuite.measure.timing.waits import Asynchrony

ASYNCHRONOUS = (100.0, 1000.0)
"""Microseconds until a call returns and until its outputs are ready."""
WAITING = (990.0, 1000.0)


def comparison(candidate_us, reference_us, pairs=5):
    unknown = Estimate(1.0, Interval(0.0, 2.0))
    columns = [np.tile(side, (pairs, 1)) for side in (candidate_us, reference_us)]
    return Comparison("candidate", "reference", "ready", unknown, unknown, *columns, seconds=1.0)


def slower_by(overhead_us, candidate_us=WAITING, reference_us=WAITING):
    overhead = Estimate(overhead_us, Interval(overhead_us, overhead_us))
    return dataclasses.replace(comparison(candidate_us, reference_us), overhead_us=overhead)


def calls(**by_function):
    by_origin = {CallOrigin(name): count for name, count in by_function.items()}
    return HostCalls("step", sum(by_function.values()), 0, by_function, by_origin)


def watched(asleep, where="", reference=0.0, for_device=False):
    """Both sides, of 1000 us each, asleep for such a share of it; the candidate at `where`."""
    unused = {"waits": None, "share": 0.9, "share_interval": Interval(0.8, 1.0), "to_return_us": 900.0, "samples": 40}
    made = Asynchrony("step", asleep=asleep, where=where, to_ready_us=1000.0, for_device=for_device, **unused)
    return lambda: (made, dataclasses.replace(made, asleep=reference))


def said_of_sleep(candidate_us, reference_us, overhead_us=800.0, seen=None, **asked):
    slow = slower_by(overhead_us, candidate_us, reference_us)
    return likely_cause(slow, calls(f=9), calls(f=9), watched=seen or watched(0.9, "train.py:9"), **asked)


def test_a_candidate_that_sleeps_before_it_returns_where_the_reference_does_not_is_said_to_with_the_line():
    assert said_of_sleep(WAITING, ASYNCHRONOUS) == (
        "candidate sleeps for 90% of its time before it returns, at train.py:9. "
        "If it waits for the device there: return the array, and read it some steps later"
    )


def test_a_line_that_shows_that_it_waits_for_the_device_is_said_to():
    seen = watched(0.9, "train.py:9", for_device=True)
    assert said_of_sleep(WAITING, ASYNCHRONOUS, seen=seen) == (
        "candidate waits for the device for 90% of its time before it returns, at train.py:9. "
        "Return the array, and read it some steps later"
    )


@pytest.mark.parametrize(
    ("candidate_us", "reference_us"), [(ASYNCHRONOUS, ASYNCHRONOUS), (WAITING, WAITING), (ASYNCHRONOUS, WAITING)]
)
def test_a_candidate_that_returns_no_later_than_the_reference_is_not_said_to_wait(candidate_us, reference_us):
    cause = likely_cause(
        comparison(candidate_us, reference_us), from_origins(api__block_until_ready=20), from_origins(tree__map=20)
    )
    assert "returns only" not in cause


@pytest.mark.parametrize(
    ("overhead_us", "seen"),
    [(2000.0, watched(0.9, "train.py:9")), (800.0, watched(0.1, "train.py:9")), (800.0, watched(0.9)), (800.0, lambda: None),
     (800.0, watched(0.9, "train.py:9", reference=0.8))],
    ids=["half of the overhead is elsewhere", "it hardly sleeps", "nobody saw where", "it could not be watched",
         "the reference sleeps too"],
)  # fmt: skip
def test_a_sleep_that_does_not_explain_the_overhead_is_no_cause(overhead_us, seen):
    assert said_of_sleep(WAITING, ASYNCHRONOUS, overhead_us, seen) == ""


def test_a_candidate_that_is_busy_on_the_host_until_the_device_is_done_is_not_said_to_wait():
    """Nothing looks whether it does."""

    def looked():
        raise AssertionError

    slow = slower_by(500.0, WAITING, ASYNCHRONOUS)
    for said in (
        likely_cause(slow, calls(f=2000), calls(f=10), watched=looked),
        likely_cause(slow, calls(f=9), calls(f=9), programs=(programs(1, add=51), programs(1)), watched=looked),
        likely_cause(slow, calls(f=9), calls(f=9), longer_us=300.0, watched=looked),
    ):
        assert said
        assert "wait" not in said


@pytest.mark.parametrize(("longer_us", "named"), [(49.0, False), (51.0, True), (0.0, False)])
def test_operations_on_the_device_are_a_cause_where_they_account_for_a_tenth_of_the_overhead(longer_us, named):
    said = likely_cause(slower_by(500.0), calls(f=9), calls(f=9), longer_us=longer_us)
    assert said == ("operations on the device take longer, by 51 us a run" if named else "")


def test_more_host_calls_blame_python_and_name_the_three_functions_that_grew_most():
    candidate = calls(combine=90, flatten=50, hash=12, partition=31, same=7)
    reference = calls(flatten=10, hash=10, same=7, gone=40)
    cause = likely_cause(comparison(ASYNCHRONOUS, ASYNCHRONOUS), candidate, reference)
    assert cause.startswith("Python on the host: 190 host calls against 67 of reference")
    assert cause.endswith("above all combine (+90), flatten (+40), partition (+31)")


@pytest.mark.parametrize(
    ("candidate", "said"),
    [
        (calls(f=10), "the host's calls did not change"),
        (calls(f=3), "the host's calls do not explain it (3 host calls against 10 of reference)"),
    ],
)
def test_no_more_host_calls_are_no_cause(candidate, said):
    both = comparison(ASYNCHRONOUS, ASYNCHRONOUS), candidate, calls(f=10)
    assert likely_cause(*both) == ""
    assert unexplained(*both) == said


def programs(jitted=0, **eager):
    runs = [Dispatch("step", "train.py:5", eager=False)] * jitted
    return Dispatches(
        "step", (*runs, *(Dispatch(name, "log.py:7", eager=True) for name in eager for _ in range(eager[name])))
    )


def said_of_programs(overhead_us, candidate, extra_calls=0):
    both = candidate, programs(1)
    return likely_cause(slower_by(overhead_us), calls(f=9 + extra_calls), calls(f=9), programs=both)


def test_operations_outside_jit_are_named_with_their_lines_and_what_to_do():
    assert said_of_programs(700.0, programs(1, add=12, square=14, sqrt=1)) == (
        "more programs: 28 programs against 1 of reference, above all square (+14) at log.py:7 (14 times), "
        "add (+12) at log.py:7 (12 times), sqrt (+1) at log.py:7\n"
        "  each operation outside jit is a program of its own: do it inside the jitted function"
    )


@pytest.mark.parametrize(
    ("overhead_us", "candidate"), [(1000.0, programs(2)), (10.0, programs(1)), (10.0, programs(0))]
)
def test_programs_that_are_not_more_or_cost_little_of_the_overhead_are_no_cause(overhead_us, candidate):
    assert said_of_programs(overhead_us, candidate) == ""


@pytest.mark.parametrize("overhead_us", [1.0, 100.0, 350.0, 1900.0])
@pytest.mark.parametrize(
    ("extra_calls", "programs_first"), [(400, True), (4000, False)], ids=["few host calls", "many host calls"]
)
def test_what_accounts_for_more_is_named_first_however_large_the_overhead_is(overhead_us, extra_calls, programs_first):
    said = said_of_programs(overhead_us, programs(1, add=51), extra_calls)
    assert said.startswith("more programs: " if programs_first else "Python on the host: ")


def test_each_cause_has_a_line_and_what_accounts_for_most_is_named_first():
    both = programs(9), programs(1)
    cause = likely_cause(slower_by(100.0), calls(f=210), calls(f=10), programs=both, longer_us=60.0)
    assert [said.partition(":")[0] for said in cause.split("\nalso: ")] == [
        "operations on the device take longer, by 60 us a run",
        "more programs",
        "Python on the host",
    ]


def from_origins(**by_origin):
    """Host calls made in functions of libraries, named as `tree__map` for "jax._src.tree:map"."""
    origins = {
        CallOrigin(f"jax._src.{name.replace('__', ':')}", f"{name}.py:7 in step"): n for name, n in by_origin.items()
    }
    return HostCalls("step", sum(origins.values()), 0, {}, origins)


def test_what_the_users_code_calls_is_named_with_its_line_and_what_to_do():
    candidate, reference = from_origins(tree__map=90, api__device_put=40, numpy__sum=3), from_origins(tree__map=20)
    cause = likely_cause(comparison(ASYNCHRONOUS, ASYNCHRONOUS), candidate, reference)
    head, *advice = cause.splitlines()
    assert head.endswith(
        "133 host calls against 20 of reference, above all jax._src.tree:map at tree__map.py:7 in step (+70), "
        "jax._src.api:device_put at api__device_put.py:7 in step (+40)"
    )
    assert [line.strip() for line in advice] == [advice_on("jax._src.tree:map"), advice_on("jax._src.api:device_put")]
    assert all(advice)


def test_the_same_call_at_another_line_is_no_more_calls():
    candidate = HostCalls(
        "step", 30, 0, {}, {CallOrigin("optax:update", "new.py:3"): 20, CallOrigin("mine:f", "new.py:4"): 10}
    )
    reference = HostCalls("step", 20, 0, {}, {CallOrigin("optax:update", "old.py:9"): 20})
    cause = likely_cause(comparison(ASYNCHRONOUS, ASYNCHRONOUS), candidate, reference)
    assert cause.endswith("above all mine:f at new.py:4 (+10)")


def test_what_waits_is_named_where_it_is_a_host_call():
    candidate = from_origins(api__block_until_ready=20)
    cause = likely_cause(comparison(WAITING, ASYNCHRONOUS), candidate, from_origins())
    assert ": jax._src.api:block_until_ready at api__block_until_ready.py:7 in step waits. Return the array" in cause


def test_a_class_that_jax_takes_apart_in_python_is_told_of_the_way_without():
    class Pair:
        def __init__(self, *pair):
            self.pair = pair

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Fast:
        pair: tuple

    keys = jax.tree_util.SequenceKey(0), jax.tree_util.SequenceKey(1)
    jax.tree_util.register_pytree_with_keys(
        Pair, lambda of: (tuple(zip(keys, of.pair, strict=True)), None), lambda _, pair: Pair(*pair)
    )
    summed, x = jax.jit(lambda of: of.pair[0] + of.pair[1]), jnp.ones(3)
    assert "jax.tree_util.register_dataclass" in busiest(host_calls(call(summed, Pair(x, x))))
    assert host_calls(call(summed, Fast((x, x)))).total == 0


def test_a_key_that_a_step_returns_is_told_of_the_way_without():
    key, x = jax.random.key(0), jnp.ones(3)
    split = jax.jit(lambda key, x: (jax.random.split(key)[0], x + 1))
    folded = jax.jit(lambda number, key: (number + 1, jax.random.normal(jax.random.fold_in(key, number))))
    assert "fold the number of the step into it" in busiest(host_calls(call(split, key, x, carry=1)))
    assert host_calls(call(folded, jnp.int32(0), key, carry=1)).total < 5


def test_a_function_that_nothing_is_known_of_gets_no_advice():
    assert advice_on("mine:step") == ""
    assert "perf.fast_path says why" in advice_on("jax._src.pjit:_cpp_pjit.<locals>.cache_miss")
    assert not waits("mine:step")


def test_the_part_that_grows_faster_than_the_size_is_named_and_not_the_largest():
    def count(**parts):
        return Metric(
            "step equations", sum(parts.values()), "equations", "count", detail=parts, places={"pairs": "a.py:3"}
        )

    units, power = np.array([2.0, 4.0, 8.0]), Estimate(2.0, Interval(2.0, 2.0))
    scaled = Scaling(
        *("step", "equations", units, units**2, Estimate(1.0, Interval(1.0, 1.0)), 0.0, 1.0, 1),
        exponent=power,
        smallest=count(layers=200, pairs=4),
        largest=count(layers=800, pairs=64),
    )
    assert growing(scaled).endswith("; above all pairs (4 -> 64) at a.py:3")
