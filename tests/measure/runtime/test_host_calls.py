"""`host_calls`: the Python and C function calls of one warm call, and which call in the user's code makes them."""

import contextlib
import functools
import gc
import importlib
import itertools
import json
import os
import subprocess
import sys
import threading

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from perfsuite.measure.call import call
from perfsuite.measure.compiles import compiles
from perfsuite.measure.compiles.warm import warm
from perfsuite.measure.errors import MeasurementError, RecompilationError
from perfsuite.measure.runtime.host_calls import CallOrigin, HostCalls, host_calls

HERE = __name__


def leaf(value=None):
    return value


def three_leaves_and_a_length():
    leaf()
    leaf()
    leaf()
    return len("abc")


# What is counted.


def test_python_and_c_calls_count_apart_and_are_named():
    counted = host_calls(call(three_leaves_and_a_length))
    assert (counted.python_calls, counted.c_calls, counted.total) == (4, 1, 5)
    assert counted.by_function == {f"{HERE}:leaf": 3, f"{HERE}:three_leaves_and_a_length": 1, "builtins:len": 1}
    assert counted.label == "three_leaves_and_a_length"


def test_a_call_in_another_thread_is_not_counted():
    started, done = threading.Event(), threading.Event()

    def elsewhere():
        started.wait()
        for _ in range(1000):
            leaf()
        done.set()

    def body():
        started.set()
        done.wait()

    threading.Thread(target=elsewhere, daemon=True).start()
    assert f"{HERE}:leaf" not in host_calls(call(body)).by_function


def through_a_callback(ran_here, times=1):
    """A step whose callback makes `times` calls, and tells `ran_here` whether it ran in this thread."""
    this = threading.get_ident()

    def called(x):
        ran_here.add(threading.get_ident() == this)
        for _ in range(times):
            leaf()
        return np.asarray(x)

    product = jax.jit(lambda x: jnp.tanh(x @ x)[0])
    calling_back = jax.jit(lambda x: jax.pure_callback(called, jax.ShapeDtypeStruct(x.shape, x.dtype), x))
    return lambda x: calling_back(product(x))


def test_a_callback_does_not_count_in_whichever_thread_it_runs():
    ran_here, totals = set(), set()
    step = through_a_callback(ran_here)
    # JAX takes this thread where the inputs are ready by then: those of a small product are.
    for size in (4, 400) * 20:
        totals.add(host_calls(call(step, jnp.eye(size))).total)
        if len(ran_here) == 2:
            break
    assert ran_here == {True, False}, "the callback always ran in the same thread, so this test shows nothing"
    assert totals == {1}


def test_a_callback_outside_of_any_program_counts():
    def body(x):
        jax.debug.callback(lambda value: leaf(), x)

    assert host_calls(call(body, jnp.ones(3))).by_function[f"{HERE}:leaf"] == 1


def test_the_waiting_for_the_device_is_not_counted():
    class Output:
        def block_until_ready(self):
            leaf()
            leaf()
            return self

    def body():
        return output

    output = Output()
    assert host_calls(call(body)).total == 1


def test_a_finalizer_that_happens_to_run_is_not_counted():
    class Node:
        def __init__(self):
            self.itself = self

        def __del__(self):
            leaf()

    def body():
        for _ in range(50):
            Node()

    before = gc.get_threshold()
    gc.set_threshold(7)
    try:
        counted = host_calls(call(body))
    finally:
        gc.set_threshold(*before)
    assert f"{HERE}:leaf" not in counted.by_function


# The same each time.


SCRIPT = """
import equinox as eqx, jax, jax.numpy as jnp
from perfsuite.measure.call import call
from perfsuite.measure.runtime.host_calls import host_calls

step = eqx.filter_jit(lambda linear, x: linear(x))
counted = host_calls(call(step, eqx.nn.MLP(2, 2, 4, 2, key=jax.random.key(0)), jnp.ones(2)))
text = f"{counted.total} {sorted(counted.by_function.items())}"
"""


def test_another_process_with_another_hash_seed_counts_the_same():
    here = {"__name__": "__main__"}
    exec(SCRIPT, here)
    elsewhere = subprocess.run(
        [sys.executable, "-c", f"{SCRIPT}\nprint(text)"],
        env={**os.environ, "PYTHONHASHSEED": "1234"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert elsewhere.stdout.strip() == here["text"]


class Graph:
    """A static argument that compares itself in Python, as a `GraphDef` of NNX does."""

    def __eq__(self, other):
        return isinstance(other, Graph)

    def __hash__(self):
        return 1


def test_a_static_argument_that_an_earlier_test_passed_too_is_not_compared():
    step = jax.jit(lambda x, graph: x + 1, static_argnums=1)
    step(jnp.ones(3), Graph())
    compares = f"{HERE}:Graph.__eq__"
    assert compares not in host_calls(call(step, jnp.ones(3), Graph())).by_function
    assert host_calls(call(lambda x: step(x, Graph()), jnp.ones(3))).by_function[compares] == 1


def test_what_jax_keeps_while_something_lives_counts_the_same_whether_it_does():
    """As the copy of an array to several devices keeps its type: JAX makes it again after that."""

    def body(x):
        jax.typeof(x), jax.P("a", "b"), jax.sharding.AbstractMesh((1,), ("b",))

    shape, totals, living = np.ones((2, 3, 5, 7, 11)), [], ()
    for _ in range(2):
        totals.append(host_calls(call(body, shape)).total)
        living = jax.typeof(shape), jax.P("a", "b"), jax.sharding.AbstractMesh((1,), ("b",))
    assert totals[0] == totals[1], living


def traces_in_every_run(x):
    return jax.eval_shape(lambda y: y * 2, x)


def test_of_a_call_that_traces_nothing_of_perfsuites_counts_at_any_depth():
    def counted(depth):
        return counted(depth - 1) if depth else host_calls(call(traces_in_every_run, jnp.ones(3)))

    with compiles.tracing_allowed(True):
        flat, deep = counted(0), counted(50)
    assert flat.total == deep.total
    assert not [name for name in flat.by_function if name.startswith("perfsuite.")]
    assert flat.python_calls > 100, "nothing was traced"


def test_a_compile_in_every_run_of_a_call_that_may_trace_is_refused():
    def body():
        jax.jit(lambda x: x + 1)(np.ones(3))

    with compiles.tracing_allowed(True), pytest.raises(RecompilationError, match="`<lambda>` was compiled"):
        host_calls(call(body))


def test_a_count_that_differs_from_run_to_run_is_refused():
    runs = itertools.count()

    def different():
        for _ in range(next(runs)):
            leaf()

    with pytest.raises(MeasurementError, match=r"different: the host calls differ from run to run \(\d+, \d+, \d+\)"):
        host_calls(call(different))


@pytest.mark.parametrize("runs_before", range(2))
def test_what_a_call_does_every_second_time_counts(runs_before):
    runs = itertools.count(runs_before)

    def logs_every_second_time():
        if next(runs) % 2:
            for _ in range(100):
                leaf()

    assert host_calls(call(logs_every_second_time)).by_function[f"{HERE}:leaf"] == 100


# The metric.


def test_the_metric_is_a_count_with_all_parts_as_its_detail():
    parts = {f"module:function{i}": 40 - i for i in range(30)}
    counted = HostCalls("step", 100, 20, {"builtins:len": 120}, parts=parts)
    (metric,) = counted.metrics("train step")
    assert (metric.name, metric.value, metric.unit, metric.kind) == ("train step host calls", 120, "calls", "count")
    assert metric.detail == parts


# Arguments and outputs.


def test_a_warmed_function_is_counted_without_its_wrapper():
    step = jax.jit(lambda x: x + 1)
    x = jnp.ones(3)
    assert host_calls(call(warm(step, over=[(x,)]), x)).total == host_calls(call(step, x)).total


# What goes wrong in the middle.


def test_an_interruption_while_waiting_does_not_lose_the_state():
    step = jax.jit(lambda state: state + 1, donate_argnums=0)

    class Interrupting:
        waits = 0

        def block_until_ready(self):
            Interrupting.waits += 1
            if counting:
                raise KeyboardInterrupt
            return self

    def body(state):
        nonlocal counting
        counting = sys.getprofile() is not before
        return step(state), Interrupting()

    counting, before = False, sys.getprofile()
    training = call(body, jnp.zeros(3), carry=1)
    with pytest.raises(KeyboardInterrupt):
        host_calls(training)
    assert not training.args[0].is_deleted()


def test_a_compile_while_counting_is_an_error_and_no_count():
    runs = itertools.count(1)

    def body():
        run = next(runs)
        if run >= 3:  # the first is the warming
            jax.jit(lambda x: x + 1)(np.ones(run))

    before = sys.getprofile()
    with pytest.raises(RecompilationError):
        host_calls(call(body))
    assert sys.getprofile() is before
    assert not any(context.refused for context in compiles.open_contexts())


def test_an_error_of_the_function_is_shown_without_the_frames_that_ran_it():
    def fails(x):
        raise ZeroDivisionError("the user's own")

    with pytest.raises(ZeroDivisionError) as raised:
        host_calls(call(fails, 1))
    shown = [entry.name for entry in raised.traceback.filter(raised)]
    assert shown == ["test_an_error_of_the_function_is_shown_without_the_frames_that_ran_it", "fails"]


FILE = os.path.basename(__file__)
TREE = {"a": 1, "b": 2}


def line_of(function, offset=1):
    return function.__code__.co_firstlineno + offset


def origins(function):
    return {str(origin): calls for origin, calls in host_calls(call(function)).by_origin.items()}


def test_all_that_a_library_does_is_of_the_call_that_the_user_made():
    def body():
        jax.tree.map(leaf, TREE)

    counted = host_calls(call(body))
    called = CallOrigin("jax._src.tree:map", f"{FILE}:{line_of(body)} in body")
    assert counted.by_origin == {called: counted.total - 1, CallOrigin(f"{__name__}:{body.__qualname__}"): 1}
    part = f"{__name__}:leaf by jax._src.tree:map in body ({FILE})"
    assert (counted.parts[part], counted.metrics("step")[0].places[part]) == (2, str(called))


def test_every_call_has_one_origin():
    counted = host_calls(call(eqx.filter_jit(lambda x: x + 1), jnp.ones(2)))
    assert sum(counted.by_origin.values()) == sum(counted.by_function.values()) == counted.total
    assert sum(counted.parts.values()) == counted.total
    assert set(counted.places) == set(counted.parts)


def test_inside_of_a_library_the_function_that_calls_into_c_is_responsible():
    counted = host_calls(call(lambda: json.dumps({"a": [1, 2]})))
    (part,) = (part for part in counted.parts if part.startswith("json.encoder:JSONEncoder.encode "))
    assert part == f"json.encoder:JSONEncoder.encode by json:dumps in <lambda> ({FILE})"
    assert counted.parts[part] > counted.by_function["json.encoder:JSONEncoder.encode"], "isinstance is its own"
    assert not any(part.startswith("builtins:isinstance ") for part in counted.parts)


def test_in_the_users_code_a_c_function_has_its_own_part():
    def body():
        len("abc")
        return [isinstance(value, int) for value in range(3)]

    counted = host_calls(call(body))
    assert counted.parts[f"builtins:isinstance in body ({FILE})"] == 3
    assert counted.places[f"builtins:len in body ({FILE})"] == f"builtins:len at {FILE}:{line_of(body)} in body"


def test_the_users_own_calls_are_each_an_origin_at_the_line_that_makes_them():
    def body():
        leaf()
        leaf()
        len("abc")

    assert origins(body) == {
        f"{__name__}:{body.__qualname__}": 1,
        f"{__name__}:leaf at {FILE}:{line_of(body)} in body": 1,
        f"{__name__}:leaf at {FILE}:{line_of(body, 2)} in body": 1,
        f"builtins:len at {FILE}:{line_of(body, 3)} in body": 1,
    }


def test_the_innermost_line_of_the_user_is_named():
    def helper():
        return jax.tree.leaves(TREE)

    def body():
        return len(helper())

    assert f"jax._src.tree:leaves at {FILE}:{line_of(helper)} in helper" in origins(body)


def test_after_an_exception_in_a_library_the_next_call_has_its_own_origin():
    def failing(value):
        raise KeyError(value)

    def body():
        with contextlib.suppress(KeyError):
            jax.tree.map(failing, TREE)
        leaf()

    assert f"{__name__}:leaf at {FILE}:{line_of(body, 3)} in body" in origins(body)


def test_what_only_shortens_tracebacks_is_not_named():
    jitted = functools.partial(jax.jit, leaf)

    def body():
        jitted()

    assert any(name.startswith("jax._src.api:jit") for name in origins(body))


def test_functools_and_contextlib_pass_the_users_line_on():
    @contextlib.contextmanager
    def context():
        leaf()
        yield

    def body():
        with context():
            pass

    assert f"{__name__}:leaf at {FILE}:{line_of(context.__wrapped__, 2)} in context" in origins(body)


def test_a_part_is_where_its_calls_are_made_the_line_with_most_first():
    def body():
        leaf()
        [leaf() for _ in range(2)]

    counted = host_calls(call(body))
    lines = [f"{HERE}:leaf at {FILE}:{line_of(body, offset)} in body" for offset in (2, 1)]
    assert counted.places[f"{HERE}:leaf in body ({FILE})"] == ", ".join(lines)


def test_an_installed_package_is_a_library_whatever_its_name(tmp_path, monkeypatch):
    package = tmp_path / "site-packages" / "unheard_of.py"
    package.parent.mkdir()
    package.write_text(
        "def helper(value):\n    return value\ndef unwrap(tree):\n    return [helper(each) for each in tree]\n"
    )
    monkeypatch.syspath_prepend(package.parent)
    unheard_of = importlib.import_module("unheard_of")

    def body():
        return unheard_of.unwrap(TREE)

    named = origins(body)
    assert {each for each in named if each.startswith("unheard_of")} == {
        f"unheard_of:unwrap at {FILE}:{line_of(body)} in body"
    }


def test_a_call_that_compiles_in_every_run_is_refused_with_its_line():
    def step(x):
        return jax.jit(lambda x: x * 2)(x) + jax.lax.scan(lambda total, y: (total + y, None), 0.0, x)[0]

    with pytest.raises(RecompilationError, match=f"test_host_calls.py:{step.__code__.co_firstlineno + 1}"):
        host_calls(call(step, jnp.ones(3)))


def test_an_eager_call_that_compiles_in_every_run_is_refused_with_its_line_too():
    sizes = itertools.count(100)

    def step(x):
        return jnp.full(next(sizes), x)

    with pytest.raises(RecompilationError, match=f"test_host_calls.py:{step.__code__.co_firstlineno + 1}"):
        host_calls(call(step, 1.0))
