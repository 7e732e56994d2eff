"""What makes a step cost the host more, or wait for the device, as users write it by mistake: every cause is named.

Each entry has the wrong way to write a step and the right one, which compile the same program. Host calls are counted,
and are exact; the samples of time are made up, so that no test depends on the machine. Numbers of issues are of the
project that is named with them; "measured" is what equinox 0.13.8, flax 0.12.8 and optax 0.2.8 do with jax 0.10.2.
"""

import dataclasses
import functools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState

from perfsuite import call
from perfsuite.gate import messages
from perfsuite.gate.baseline import Entry, entry_of
from perfsuite.gate.diagnosis import HOST_CALL_US, busiest, likely_cause
from perfsuite.gate.environment import Environment
from perfsuite.gate.verdict import Verdict, judge_baseline
from perfsuite.measure.call import Call
from perfsuite.measure.metric import Estimate, Interval
from perfsuite.measure.runtime.host_calls import host_calls
from perfsuite.measure.timing.comparison import Comparison
from perfsuite.measure.timing.waits import Asynchrony

HERE = Environment("cpu", 2, "Xeon", "3.11.7", "0.10.2", "0.10.1")
RIGHT_US = (100.0, 1000.0)
"""Microseconds until the right call returns and until its outputs are ready: it does not wait."""

X = jnp.ones(3)
ASLEEP = Asynchrony(
    label="step",
    waits=True,
    share=0.9,
    share_interval=Interval(0.8, 1.0),
    asleep=0.9,
    where="train.py:9",
    to_return_us=900.0,
    to_ready_us=1000.0,
    samples=40,
)
LEAVES = 8
PARAMS = {f"w{i}": X for i in range(LEAVES)}
STEP = jax.jit(lambda params, x: jax.tree.map(lambda leaf: leaf + x, params))
SUM = jax.jit(lambda leaves, x: sum(jnp.sum(leaf * x) for leaf in leaves))
KEY = jax.random.key(0)

FILTER_JIT = "filter_jit takes its arguments apart on every call"
PARTITION = "eqx.partition once, before the loop"
A_PASS = "It passes over every leaf of the tree on every call"
OUTSIDE = "It runs an operation outside jit, by itself, on every call: move it into the jitted function"
OPTAX = "Optax runs outside jit, an operation at a time: call it inside the jitted step"
JIT_ONCE = "create the jitted function once, outside the loop"
TRACED = "A transformation outside jit traces its function again on every call"
PLACED = "It places an array on the device on every call: place it once, before the loop"
NEW_STATE = "It builds a new state object on every call: replace the field inside the jitted function"
GRAPH = "It walks the module's graph on every call: nnx.split once, before the loop"
STATE = "JAX takes an nnx.State apart in Python on every call"
NNX_JIT = "nnx.cached_partial(step, model, ...) keeps the graph"
PYTHON = "It is the user's own Python, run on every call"
WAITS = "returns only when the device is done"
READ_LATER = "Return the array, and read it some steps later"


@dataclasses.dataclass(frozen=True)
class Pair:
    """One cause. `says` are words of the likely cause; `waits` says that the wrong call waits where the right does not."""

    name: str
    source: str
    says: tuple[str, ...]
    build: Callable[[], tuple[Call, Call]]
    waits: bool = False


PAIRS: list[Pair] = []


def entry(source: str, *says: str, waits: bool = False):
    """Enter the function below, which gives the wrong call and the right one."""

    def enter(build: Callable[[], tuple[Call, Call]]):
        PAIRS.append(Pair(build.__name__, source, says, build, waits))
        return build

    return enter


class Layer(eqx.Module):
    weight: jax.Array
    bias: jax.Array


class Model(eqx.Module):
    layers: list[Layer]
    name: str = eqx.field(static=True, default="model")


def model() -> Model:
    return Model([Layer(X, X) for _ in range(LEAVES // 2)])


def right(params, x):
    return STEP(params, x)


# JAX.


class Table:
    """Is hashed by its values, which are on the device."""

    def __init__(self, values, kept=None):
        self.values, self.kept = values, kept

    def __hash__(self):
        return hash(float(self.values.sum())) if self.kept is None else self.kept

    def __eq__(self, other):
        return self is other


@entry("jax issue 4572", " in __hash__", "JAX calls __hash__ and __eq__ of a static argument on every call")
def a_static_argument_whose_hash_reads_the_device():
    look_up = jax.jit(lambda x, table: x, static_argnums=1)
    return call(look_up, X, Table(X)), call(look_up, X, Table(X, kept=1))


@entry("jax issues 2919 and 10662", "JAX takes a list apart in Python, item by item: jnp.array(np.array(values))")
def an_array_of_a_list_on_every_step():
    numbers = list(range(100))
    return call(lambda: jnp.array(numbers)), call(lambda: jnp.array(np.array(numbers)))


# Equinox.


@entry("equinox issue 973", FILTER_JIT, PARTITION, "equinox._jit:_JitWrapper.__call__", WAITS, READ_LATER, waits=True)
def filter_jit_in_place_of_a_partitioned_step():
    whole = eqx.filter_jit(lambda model, x: jax.tree.map(lambda leaf: leaf + x, model))
    return call(whole, model(), X), call(right, eqx.filter(model(), eqx.is_array), X)


@entry("measured: inside filter_jit", "equinox._filters:partition at", "equinox._filters:combine at", PARTITION)
def partition_and_combine_on_every_step():
    def wrong(model, x):
        arrays, static = eqx.partition(model, eqx.is_array)
        return eqx.combine(STEP(arrays, x), static)

    return call(wrong, model(), X), call(right, eqx.filter(model(), eqx.is_array), X)


@entry("measured: tree_at", "equinox._tree:tree_at at", "It takes the whole tree apart on every call")
def tree_at_on_every_step():
    def wrong(model, x):
        return STEP(eqx.tree_at(lambda model: model.layers[0].weight, model, x), x)

    return call(wrong, model(), X), call(right, model(), X)


@entry(
    "measured: jit over an eqx.Module",
    "generated:flatten of Layer at",
    "Modules are built or taken apart in Python on every call",
)
def a_module_in_place_of_its_arrays():
    def wrong(model, x):
        return SUM(model, x)

    leaves = jax.tree.leaves(model())
    total = jax.jit(lambda model, x: sum(jnp.sum(leaf * x) for leaf in jax.tree.leaves(model)))

    def over_a_module(model, x):
        return total(model, x)

    return call(over_a_module, model(), X), call(lambda leaves, x: SUM(leaves, x), leaves, X)


@entry("equinox issue 1001", "_ModuleMeta.__call__ at", "Modules are built or taken apart in Python on every call")
def a_module_built_on_every_step():
    def wrong(params, x):
        return STEP(Model([Layer(params["w0"], params["w1"])]), x)

    module = Model([Layer(X, X)])
    return call(wrong, PARAMS, X), call(lambda params, x: STEP(module, x), PARAMS, X)


@entry(
    "measured: filter_jit of one function hits its cache, and is built each time",
    "equinox._jit:filter_jit at",
    JIT_ONCE,
)
def filter_jit_on_every_step():
    step = eqx.filter_jit(right)
    return call(lambda params, x: eqx.filter_jit(right)(params, x), PARAMS, X), call(step, PARAMS, X)


@entry("measured: a transformation traces", "equinox._ad:_GradWrapper.__call__ at", TRACED)
def filter_grad_outside_jit():
    def loss(x):
        return jnp.sum(x * x)

    step = jax.jit(jax.grad(loss))
    return call(lambda x: eqx.filter_grad(loss)(x), X), call(lambda x: step(x), X)


# Trees and states.


@entry("measured: host calls are linear in leaves", "jax._src.tree:map at", A_PASS)
def an_extra_tree_map_on_every_step():
    return call(lambda params, x: STEP(jax.tree.map(lambda leaf: leaf, params), x), PARAMS, X), call(right, PARAMS, X)


@entry("measured: host calls are linear in leaves", "jax._src.tree_util:tree_map_with_path at", A_PASS)
def a_pass_with_paths_on_every_step():
    def wrong(params, x):
        return STEP(jax.tree_util.tree_map_with_path(lambda path, leaf: leaf, params), x)

    return call(wrong, PARAMS, X), call(right, PARAMS, X)


@entry("measured: flatten and unflatten", "jax._src.tree:leaves at", "jax._src.tree:unflatten at", A_PASS)
def flatten_and_unflatten_on_every_step():
    def wrong(params, x):
        return STEP(jax.tree.unflatten(jax.tree.structure(params), jax.tree.leaves(params)), x)

    return call(wrong, PARAMS, X), call(right, PARAMS, X)


@entry("measured: a check of every leaf is Python", "builtins:isinstance at", "in checked", PYTHON)
def a_python_loop_over_leaves():
    def checked(leaves, x):
        for leaf in leaves:
            assert isinstance(leaf, jax.Array)
        return SUM(leaves, x)

    return call(checked, [X] * LEAVES, X), call(lambda leaves, x: SUM(leaves, x), [X] * LEAVES, X)


@entry("measured: jnp.sum and ** of every leaf run by themselves", "_operator_pow at", OUTSIDE)
def a_norm_over_leaves_outside_jit():
    def wrong(params, x):
        return STEP(params, x), sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))

    both = jax.jit(lambda params, x: (right(params, x), sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))))
    return call(wrong, PARAMS, X), call(lambda params, x: both(params, x), PARAMS, X)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    params: dict
    step: jax.Array
    rate: jax.Array
    key: jax.Array


@entry("measured: replace looks at every field and runs __init__", "dataclasses:replace at", NEW_STATE)
def dataclasses_replace_on_every_step():
    step = jax.jit(lambda state: state.step + 1)
    state = State(PARAMS, jnp.int32(0), jnp.float32(0.1), KEY)
    wrong = lambda state: step(dataclasses.replace(state, step=state.step))
    return call(wrong, state), call(lambda state: step(state), state)


# Flax.


def train_state():
    return TrainState.create(apply_fn=right, params=PARAMS, tx=optax.sgd(0.1)).replace(step=jnp.int32(0))


@entry("measured: replace runs the dataclass's __init__", "flax.struct:dataclass.<locals>.replace at", NEW_STATE)
def train_state_replace_on_every_step():
    step = jax.jit(lambda state: state.step + 1)
    state = train_state()
    return call(lambda state: step(state.replace(step=state.step)), state), call(lambda state: step(state), state)


@entry("measured: apply_gradients is no jitted function", "TrainState.apply_gradients at", "Flax runs outside jit")
def apply_gradients_outside_jit():
    step = jax.jit(lambda state: state.apply_gradients(grads=state.params))
    state = train_state()
    wrong = lambda state: state.apply_gradients(grads=state.params)
    return call(wrong, state), call(lambda state: step(state), state)


class NnxModel(nnx.Module):
    def __init__(self):
        self.scales = nnx.List([nnx.Param(X) for _ in range(3)])

    def __call__(self, x):
        for scale in self.scales:
            x = x * scale[...]
        return x


@entry("flax issue 4045", "flax.nnx.transforms.compilation:", NNX_JIT)
def nnx_jit_in_place_of_cached_partial():
    # A step each: a second entry in a jitted function's cache is compared with by Python, and adds host calls.
    step, module = nnx.jit(lambda module, x: module(x)), NnxModel()
    cached = nnx.cached_partial(nnx.jit(lambda module, x: module(x)), NnxModel())
    return call(lambda x: step(module, x), X), call(lambda x: cached(x), X)


def split_step():
    graph, state = nnx.split(NnxModel())
    return graph, state, jax.jit(lambda state, x: nnx.merge(graph, state)(x))


@entry("flax issue 4045", "flax.nnx.graphlib:split at", GRAPH)
def nnx_split_on_every_step():
    module = NnxModel()
    _, state, step = split_step()
    return call(lambda x: step(nnx.split(module)[1], x), X), call(lambda x: step(state, x), X)


@entry("flax issue 4045", "flax.nnx.graphlib:merge at", GRAPH)
def nnx_merge_on_every_step():
    graph, state, step = split_step()

    def wrong(x):
        nnx.merge(graph, state)
        return step(state, x)

    return call(wrong, X), call(lambda x: step(state, x), X)


@entry("flax issue 4045", "flax.nnx.graphlib:update at", GRAPH)
def nnx_update_on_every_step():
    _, state, step = split_step()
    module = NnxModel()

    def wrong(x):
        nnx.update(module, state)
        return step(state, x)

    return call(wrong, X), call(lambda x: step(state, x), X)


@entry("vllm-project/tpu-inference pull request 2615", "flax.nnx.variablelib:_variable_flatten (", STATE)
def nnx_state_as_an_argument():
    _, state, step = split_step()
    leaves, structure = jax.tree.flatten(state)
    step_of_leaves = jax.jit(lambda leaves, x: step(jax.tree.unflatten(structure, leaves), x))
    return call(step, state, X), call(step_of_leaves, leaves, X)


# Optax.


@entry("measured: apply_updates casts and adds leaf by leaf", "optax._src.update:apply_updates at", OPTAX)
def apply_updates_outside_jit():
    step = jax.jit(lambda params, updates: optax.apply_updates(params, updates))
    wrong = lambda params, updates: optax.apply_updates(params, updates)
    return call(wrong, PARAMS, PARAMS), call(lambda *args: step(*args), PARAMS, PARAMS)


@entry("measured: update is no jitted function", "optax.transforms._combining:chain.<locals>.update_fn at", OPTAX)
def optimizer_update_outside_jit():
    optimizer = optax.sgd(0.1, momentum=0.9)
    state = optimizer.init(PARAMS)
    step = jax.jit(lambda grads, state: optimizer.update(grads, state))
    wrong = lambda grads, state: optimizer.update(grads, state)
    return call(wrong, PARAMS, state), call(lambda *args: step(*args), PARAMS, state)


@entry("measured: a norm outside jit is a product and a sum a leaf", "optax.tree_utils._tree_math:tree_norm at", A_PASS)
def a_global_norm_outside_jit():
    both = jax.jit(lambda params, x: (right(params, x), optax.tree.norm(params)))
    wrong = lambda params, x: (STEP(params, x), optax.tree.norm(params))
    return call(wrong, PARAMS, X), call(lambda *args: both(*args), PARAMS, X)


@entry("measured: a schedule is jnp operations", "optax.schedules._schedule:", OPTAX)
def a_schedule_read_outside_jit():
    schedule = optax.linear_schedule(0.1, 0.0, 10)
    both = jax.jit(lambda params, x, count: (right(params, x), schedule(count)))
    wrong = lambda params, x, count: (STEP(params, x), schedule(count))
    return call(wrong, PARAMS, X, jnp.int32(3)), call(lambda *args: both(*args), PARAMS, X, jnp.int32(3))


# JAX around the step.


@entry("measured: jit of the same function hits its cache", "jax._src.api:jit at", JIT_ONCE)
def jax_jit_on_every_step():
    return call(lambda params, x: jax.jit(right)(params, x), PARAMS, X), call(jax.jit(right), PARAMS, X)


@entry("measured: a transformation traces", "jax._src.api:", TRACED)
def jax_grad_outside_jit():
    def loss(x):
        return jnp.sum(x * x)

    gradient = jax.grad(loss)
    step = jax.jit(gradient)
    return call(lambda x: gradient(x), X), call(lambda x: step(x), X)


@entry("measured: device_put of an array that is there already costs host calls", "jax._src.api:device_put at", PLACED)
def device_put_of_the_batch_on_every_step():
    return call(lambda params, x: STEP(params, jax.device_put(x)), PARAMS, X), call(right, PARAMS, X)


@entry("measured: jnp.asarray of a NumPy array copies it", "array_constructors:asarray at", PLACED)
def an_array_made_on_every_step():
    batch = np.ones(3, np.float32)
    return call(lambda params, x: STEP(params, jnp.asarray(x)), PARAMS, batch), call(right, PARAMS, X)


@entry("measured: an index outside jit is a gather", "ArrayImpl.__getitem__ at", OUTSIDE)
def an_index_outside_jit():
    both = jax.jit(lambda params, x: right(params, x[0]))
    rows = jnp.ones((2, 3))
    return call(lambda params, x: STEP(params, x[0]), PARAMS, rows), call(lambda *args: both(*args), PARAMS, rows)


@entry("measured: split outside jit", "jax._src.random", "split the key inside the jitted step, and carry it")
def a_key_split_outside_jit():
    both = jax.jit(lambda params, x, key: (right(params, x), jax.random.split(key)))
    wrong = lambda params, x, key: (STEP(params, x), jax.random.split(key))
    return call(wrong, PARAMS, X, KEY), call(lambda *args: both(*args), PARAMS, X, KEY)


# Asynchrony.


@entry("measured: host time and device time", WAITS, "jax._src.api:block_until_ready at", READ_LATER, waits=True)
def block_until_ready_on_every_step():
    return call(lambda params, x: jax.block_until_ready(STEP(params, x)), PARAMS, X), call(right, PARAMS, X)


@entry("measured: device_get blocks", WAITS, "jax._src.api:device_get at", READ_LATER, waits=True)
def device_get_on_every_step():
    return call(lambda params, x: jax.device_get(STEP(params, x)), PARAMS, X), call(right, PARAMS, X)


@entry(
    "measured: the method of an array is C++, and no host call",
    "sleeps for 90% of its time before it returns, at train.py:9",
    "return the array, and read it some steps later",
    waits=True,
)
def block_until_ready_of_an_array_on_every_step():
    step = jax.jit(lambda x: x * 2)
    return call(lambda x: step(x).block_until_ready(), X), call(lambda x: step(x), X)


each = pytest.mark.parametrize("pair", PAIRS, ids=[pair.name for pair in PAIRS])


@functools.cache
def counted(pair):
    """The host calls of the wrong way and of the right one."""
    return tuple(host_calls(side) for side in pair.build())


def compared(candidate, reference, waits):
    """A comparison in which a host call costs what it does."""
    overhead = HOST_CALL_US * max(0, candidate.total - reference.total)
    slow = (RIGHT_US[1] + overhead,) * 2 if waits else tuple(us + overhead for us in RIGHT_US)
    samples = [np.tile(side, (5, 1)) for side in (slow, RIGHT_US)]
    later = overhead or slow[0] - RIGHT_US[0]
    unknown, costs = Estimate(1.0, Interval(0.0, 2.0)), Estimate(later, Interval(0.0, 2 * later))
    return Comparison("candidate", "reference", "return", unknown, costs, *samples, seconds=1.0)


@each
def test_the_cause_is_named_with_what_to_do_and_its_control_is_silent(pair):
    wrong, reference = counted(pair)
    cause = likely_cause(
        compared(wrong, reference, pair.waits),
        wrong,
        reference,
        watched=lambda: (ASLEEP, dataclasses.replace(ASLEEP, asleep=0.0)),
    )
    missing = [words for words in pair.says if words not in cause]
    assert not missing, f"not in the likely cause: {missing}\n{cause}"
    assert wrong.total > reference.total or pair.waits

    assert not likely_cause(compared(reference, reference, False), reference, reference)


@each
def test_the_baseline_of_the_right_way_refuses_the_wrong_one_and_passes_the_right_one(pair):
    wrong, reference = (side.metrics("step")[0] for side in counted(pair))
    recorded = Entry(reference.value, "calls", "count", "measured", HERE, detail=reference.detail)
    again = host_calls(pair.build()[1]).metrics("step")[0]
    assert judge_baseline("test", again, recorded, now=HERE).verdict == Verdict.PASS
    if wrong.value == reference.value:
        return  # It waits in C++, which no host call shows.
    result = judge_baseline("test", wrong, recorded, now=HERE)
    assert result.failed
    assert result.grown


def test_the_baseline_names_the_call_that_makes_the_new_host_calls_and_what_to_do():
    wrong, reference = (host_calls(side).metrics("step")[0] for side in an_extra_tree_map_on_every_step())
    recorded = Entry(reference.value, "calls", "count", "measured", HERE, detail=reference.detail)
    reason = messages.in_full(judge_baseline("test", wrong, recorded, now=HERE))
    assert "jax._src.tree:map at test_overhead_causes.py:" in reason
    assert A_PASS in reason


HELPERS = 40


def epoch(model, batches, extra=""):
    """A loop whose other calls are many, and not new."""
    for batch in batches:
        for helper in OTHER_CALLS:
            helper(batch)
        filtered_step(model, batch)
        if extra == "repr":
            [repr(number) for number in range(9)]
        if extra == "leaves":
            jax.tree.leaves(model)


OTHER_CALLS = [
    eval(f"lambda x: [len([i]) for i in range({number})]", {"__name__": f"helper{number}"}) for number in range(HELPERS)
]
filtered_step = eqx.filter_jit(lambda model, x: x.sum())


@pytest.mark.parametrize(
    ("extra", "offset", "says", "advice"),
    [
        ("repr", 7, "more calls of builtins:repr (+36) at {line} in epoch", PYTHON),
        ("leaves", 9, "made in jax._src.tree:leaves at {line} in epoch", A_PASS),
    ],
)
def test_the_baseline_blames_what_grew_and_not_what_is_largest(extra, offset, says, advice):
    before, after = (host_calls(call(epoch, model(), [X] * 4, each)).metrics("epoch")[0] for each in ("", extra))
    recorded = entry_of(before, HERE)
    assert len(recorded.detail) > HELPERS
    assert recorded.detail.keys() - before.detail.keys(), "the names of the smaller parts are short"
    reason = messages.reason(judge_baseline("test", after, recorded, now=HERE))
    line = f"test_overhead_causes.py:{epoch.__code__.co_firstlineno + offset}"
    assert says.format(line=line) in reason
    assert advice in reason
    assert FILTER_JIT not in reason


def test_a_budget_of_host_calls_names_the_call_that_makes_most_of_them_and_what_to_do():
    wrong, _ = nnx_split_on_every_step()
    said = busiest(host_calls(wrong))
    assert said.startswith("busiest: flax.nnx.graphlib:split at test_overhead_causes.py:")
    assert GRAPH in said


def test_every_entry_has_a_source_and_words_of_its_own():
    assert len({pair.name for pair in PAIRS}) == len(PAIRS) >= 30
    known = ("issue", "pull request", "measured")
    assert all(any(word in pair.source for word in known) and pair.says for pair in PAIRS)
