"""`dispatches`: the programs of one call, counted by hand and beside the runs that XLA's own profiler shows."""

import concurrent.futures
import functools
import re
from collections import Counter

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.experimental import io_callback
from jax.sharding import NamedSharding, PartitionSpec
from support.libtpu_needed import needs_libtpu

from perfsuite import call
from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.program.compilation import compile_call
from perfsuite.measure.program.program_metrics import metrics_of
from perfsuite.measure.runtime.dispatches import dispatches
from perfsuite.measure.runtime.programs import program_of_all

X = jnp.arange(8.0)
EXECUTION = re.compile(r"\w+Executable::(Execute \(.*\)|ExecuteHelperOnSingleDevice)")
"""What XLA's profiler calls one run of a program on a CPU, on all its devices or on one."""


def executed(function, *args, folder):
    """How many programs a warm call runs, as XLA's own profiler has it."""
    for _ in range(2):
        jax.block_until_ready(function(*args))
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with jax.profiler.trace(folder, profiler_options=options):
        jax.block_until_ready(function(*args))
        jax.effects_barrier()
    (path,) = folder.rglob("*.xplane.pb")
    planes = jax.profiler.ProfileData.from_file(str(path)).planes
    return sum(
        bool(EXECUTION.fullmatch(event.name)) for plane in planes for line in plane.lines for event in line.events
    )


@jax.jit
def step(x):
    return (2 * x).sum()


@jax.jit
def outer(x):
    return step(x) + 1


@jax.jit
def shouting(x):
    jax.debug.callback(lambda value: None, x)
    return x + 1


@jax.jit
def asking(x):
    return io_callback(lambda value: np.asarray(value), jax.ShapeDtypeStruct(x.shape, x.dtype), x, ordered=True)


@functools.partial(jax.jit, donate_argnums=0)
def donating(x):
    return x + 1


@jax.custom_vjp
def own_gradient(x):
    return step(x)


own_gradient.defvjp(lambda x: (step(x), x), lambda x, g: (g * x,))


@nnx.jit
def of_module(module, x):
    return module(x).sum()


def unreturned(x):
    step(x)
    return x


def mesh():
    return jax.make_mesh((8,), ("d",))


def add(total, x):
    return total + x, total


ZERO = jnp.zeros(())


def in_a_loop(x):
    return jax.lax.scan(add, ZERO, x)


def sharded(x):
    return jax.device_put(x, NamedSharding(mesh(), PartitionSpec("d")))


def in_shards(x):
    return jax.shard_map(lambda x: 2 * x, mesh=mesh(), in_specs=PartitionSpec("d"), out_specs=PartitionSpec("d"))(x)


PROGRAMS = {
    "one": (lambda: call(step, X), {"step": 1}, {}),
    "two": (lambda: call(lambda x: step(x) + step(x), X), {"step": 2}, {"add": 1}),
    "jit in jit": (lambda: call(outer, X), {"outer": 1}, {}),
    "carried and donated": (lambda: call(donating, X + 0, carry=1), {"donating": 1}, {}),
    "filter_jit": (lambda: call(eqx.filter_jit(lambda f, x: f(x)), jnp.sin, X), {"lambda": 1}, {}),
    "nnx.jit": (lambda: call(of_module, nnx.Linear(8, 8, rngs=nnx.Rngs(0)), X), {"of_module": 1}, {}),
    "eight devices": (lambda: call(step, sharded(X)), {"step": 1}, {}),
    "shard_map": (lambda: call(jax.jit(in_shards), sharded(X)), {"in_shards": 1}, {}),
    "ahead of time": (lambda: call(step.lower(X).compile(), X), {"step": 1}, {}),
    "ahead of time with effects": (lambda: call(shouting.lower(X).compile(), X), {"shouting": 1}, {}),
    "effects": (lambda: call(shouting, X), {"shouting": 1}, {}),
    "ordered effects": (lambda: call(asking, X), {"asking": 1}, {}),
    "grad outside jit": (lambda: call(jax.grad(step), X), {"step": 2}, None),
    "vjp of a function with its own": (lambda: call(jax.grad(own_gradient), X), {"step": 1}, None),
    "vmap of jit": (lambda: call(jax.vmap(step), jnp.ones((3, 8))), {"step": 1}, {}),
    "jit of vmap": (lambda: call(jax.jit(jax.vmap(step)), jnp.ones((3, 8))), {"step": 1}, {}),
    "jit of grad": (lambda: call(jax.jit(jax.grad(step)), X), {"step": 1}, {}),
    "one operation": (lambda: call(jnp.add, X, X), {}, {"add": 1}),
    "operators": (lambda: call(lambda x: -x * x, X), {}, {"multiply": 1, "negative": 1}),
    "scan outside jit": (lambda: call(in_a_loop, X), {}, {"scan": 1}),
    "split": (lambda: call(jax.random.split, jax.random.key(0)), {}, {"_threefry_split": 1}),
    "device_put": (lambda: call(jax.device_put, np.ones(3, np.float32)), {}, {}),
    "to another device": (lambda: call(lambda x: jax.device_put(x, jax.devices()[1]), X), {}, {}),
    "pmap": (lambda: call(jax.pmap(lambda x: 2 * x), X), {"lambda": 1}, None),
    "not returned": (lambda: call(unreturned, X), {"step": 1}, {}),
    "read": (lambda: call(lambda x: float(step(x)), X), {"step": 1}, {}),
    "nothing": (lambda: call(lambda: 1), {}, {}),
}


@pytest.mark.parametrize("kind", PROGRAMS)
def test_programs_are_counted_by_name_and_equal_what_xla_runs(kind, tmp_path):
    make_call, by_program, by_operation = PROGRAMS[kind]
    counted = dispatches(make_call())
    if kind != "pmap":  # which does not pass on the name of a lambda
        assert counted.by_program == by_program
    if by_operation is not None:
        assert counted.by_operation == by_operation
    made = make_call()

    def run(*_):
        return made.run()

    assert counted.total == executed(run, folder=tmp_path)


# The facts of all programs of a call.

NOT_LOWERED = ("ahead of time", "ahead of time with effects", "effects", "ordered effects")


@pytest.mark.parametrize("kind", [each for each in PROGRAMS if each not in (*NOT_LOWERED, "nothing", "device_put")])
def test_the_facts_of_a_call_are_those_of_every_program_that_it_runs(kind):
    make_call, *_ = PROGRAMS[kind]
    names = Counter(run.program for run in dispatches(make_call()).runs)
    if not names:
        pytest.skip("it runs no program")
    program = program_of_all(make_call())
    assert len(program.programs) == names.total()
    assert program.flops == sum(each.flops for each in program.programs)
    assert Counter(each.label for each in program.programs) == names


class Trainer:
    def __init__(self):
        self.weights = jnp.ones((8, 8))

    def epoch(self, batches, evaluations):
        """Donates its weights in each step, and adds up the losses outside jit."""
        total = 0.0
        for batch in batches:
            self.weights, loss = train(self.weights, batch)
            total += loss
        return [evaluate(self.weights, batch) for batch in batches[:evaluations]], total


@functools.partial(jax.jit, donate_argnums=0)
def train(weights, batch):
    return weights - 0.1 * (batch.T @ batch @ weights), jnp.mean(batch)


@jax.jit
def evaluate(weights, batch):
    return jnp.sum((batch @ weights) ** 2)


BATCHES = [jnp.ones((64, 8))] * 3


@pytest.mark.parametrize("target", [None, pytest.param("tpu-v5e", marks=needs_libtpu)])
def test_the_program_of_an_epoch_is_the_sum_of_its_programs_and_the_largest_of_their_peaks(target):
    program = program_of_all(call(Trainer().epoch, BATCHES, 2), target)
    calls = [
        call(train, jnp.ones((8, 8)), BATCHES[0]),
        call(evaluate, jnp.ones((8, 8)), BATCHES[0]),
        call(jax.jit(jnp.add), 0.0, X[0]),
    ]
    trained, evaluated, added = (compile_call(each, target).program() for each in calls)
    assert program.flops == 3 * trained.flops + 2 * evaluated.flops + 3 * added.flops
    assert len(program.fusions) == 3 * len(trained.fusions) + 2 * len(evaluated.fusions) + 3 * len(added.fusions)
    assert len(program.products) == 3 * len(trained.products) + 2 * len(evaluated.products) > 0
    assert program.donations_asked == 3 * trained.donations_asked == 3
    assert program.peak_bytes == max(trained.peak_bytes, evaluated.peak_bytes)
    assert program.target == target
    flops = next(metric for metric in metrics_of(program) if metric.name == "epoch flops")
    assert flops.detail == {"train": 3 * trained.flops, "evaluate": 2 * evaluated.flops, "add": 3 * added.flops}


@pytest.mark.parametrize("kind", NOT_LOWERED)
def test_a_program_that_cannot_be_lowered_again_is_refused_and_named(kind):
    made, by_program, _ = PROGRAMS[kind]
    (name,) = by_program
    looped = made()
    with pytest.raises(
        MeasurementError, match=rf"runs {name} at .*test_dispatches.py:\d+, which cannot be lowered again"
    ):
        program_of_all(call(lambda *args: looped.fn(*args), *looped.args), "tpu-v5e")


def test_a_call_that_runs_no_program_is_refused():
    with pytest.raises(MeasurementError, match="the call runs no program; jit its function"):
        program_of_all(call(lambda: 1))


def test_the_user_s_line_of_every_program_is_named():
    def body(x):
        y = step(x)
        return step(x) + y

    counted, first = dispatches(call(body, X)), body.__code__.co_firstlineno
    here = counted.runs[0].location.rpartition(":")[0]
    assert [(run.program, run.location) for run in counted.runs] == [
        ("step", f"{here}:{first + 1}"),
        ("step", f"{here}:{first + 2}"),
        ("add", f"{here}:{first + 2}"),
    ]
    assert here.endswith("test_dispatches.py")
    assert str(counted).startswith(f"step (2) at {here}:{first + 1}, {here}:{first + 2}; eager: add (1) at")


def test_metrics_are_two_counts_with_the_programs_as_detail():
    jitted, eager = dispatches(call(lambda x: -step(x) - step(x), X)).metrics("loop")
    assert (jitted.name, jitted.value, jitted.unit, jitted.kind) == ("loop dispatches", 2, "programs", "count")
    assert (jitted.detail, eager.detail) == ({"step": 2}, {"negative": 1, "subtract": 1})
    assert (eager.name, eager.value, eager.unit) == ("loop eager operations", 2, "operations")


def test_a_pool_of_threads_that_was_there_before_is_counted():
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(step, X).result()
        counted = dispatches(call(lambda x: pool.submit(step, x).result(), X))
        assert counted.by_program == {"step": 1}
        # Tracing takes from a thread the hook of all threads, and it gets that back.
        transforming = jax.vmap(step)
        counted = dispatches(call(lambda x: pool.submit(lambda: (transforming(x[None]), step(x))).result(), X))
        assert counted.by_program == {"step": 2}
