"""`covers`: every signature that inputs bring is compared with what is warm, and no program runs."""

import contextlib
import dataclasses
import functools
import itertools
import sys
import types
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support.jits import each_jit

from perfsuite.measure.call import call
from perfsuite.measure.compiles import causes, compiles
from perfsuite.measure.compiles.warmup import warm
from perfsuite.measure.covers import inputs as walking
from perfsuite.measure.covers.coverage import covers
from perfsuite.measure.errors import MeasurementError

PARAMS, LONG = jnp.zeros(3), jnp.ones(16)
BUCKETS = (8, 16)

directly = pytest.mark.parametrize("jit", [jax.jit, eqx.filter_jit, nnx.jit])


def made(jit=jax.jit):
    @jit
    def step(params, x):
        return params + x.sum()

    return step


def of(size, dtype=np.float32):
    return np.ones(size, dtype)


@pytest.fixture
def warmed():
    return warm(made(), over=[(PARAMS, of(size)) for size in BUCKETS])


@pytest.fixture(autouse=True)
def _observed():
    with compiles.observe():
        yield


@contextlib.contextmanager
def nothing_compiles():
    with compiles.count() as counted:
        yield
    assert counted.events == ()


def padded(text):
    size = next(bucket for bucket in (*BUCKETS, 24) if len(text) <= bucket)
    return np.pad(text, (0, size - len(text)))


@directly
def test_inputs_of_warmed_signatures_are_covered_and_nothing_compiles(jit):
    step = warm(made(jit), over=[(PARAMS, of(size)) for size in BUCKETS])
    with nothing_compiles():
        found = covers(step, [(PARAMS, of(8)), (PARAMS, LONG), call(step, PARAMS, of(8))])
    assert (found.inputs, found.signatures, found.uncovered, found.unused) == (3, 2, (), ())
    assert found.ended


@directly
def test_an_uncovered_signature_is_named_with_its_input_and_how_many_bring_it(jit):
    step = warm(made(jit), over=[(PARAMS, of(size)) for size in BUCKETS])
    with nothing_compiles():
        found = covers(step, [(PARAMS, of(size)) for size in (8, 8, 5, 8, 5)])
    (uncovered,) = found.uncovered
    assert (uncovered.first, uncovered.inputs, uncovered.warmed) == (2, 2, 2)
    assert uncovered.changes == ("args[1]: shape was (8,), is (5,)",)
    assert "2 inputs, the first is input 2, bring `step` a signature that was not warmed" in str(uncovered)
    ((function, unused),) = found.unused
    assert (function, str(unused)) == ("step", "(args[0]: float32[3], args[1]: float32[16])")
    assert "warmed and not used: `step` (args[0]: float32[3], args[1]: float32[16])" in str(found)


def test_a_named_tuple_is_one_argument():
    class Batch(NamedTuple):
        x: np.ndarray
        mask: np.ndarray

    step = warm(jax.jit(lambda batch: batch.x * batch.mask), over=[(Batch(of(8), of(8)),)])
    assert covers(step, [Batch(of(8), of(8))]).uncovered == ()
    assert covers(lambda batch: step(batch), [Batch(of(8), of(8))]).uncovered == ()


def test_specs_stand_for_arrays(warmed):
    specs = [(jax.ShapeDtypeStruct((3,), jnp.float32), jax.ShapeDtypeStruct((size,), jnp.float32)) for size in (8, 9)]
    (uncovered,) = covers(warmed, specs).uncovered
    assert uncovered.first == 1


@pytest.mark.parametrize(
    ("entry", "change"),
    [
        ((PARAMS, of(8, np.int32)), "args[1]: dtype was float32, is int32"),
        ((PARAMS, jax.device_put(of(8), jax.devices()[0])), "args[1]: was uncommitted, is committed to cpu:0"),
        ((PARAMS, [of(8)]), "args[1]: structure was float32[8], is list of 1"),
    ],
)
def test_what_differs_is_said_as_for_a_recompilation(warmed, entry, change):
    (uncovered,) = covers(warmed, [entry]).uncovered
    assert uncovered.changes == (change,) or change.partition(": ")[0] in uncovered.changes[0]


def test_numbers_that_are_not_static_are_one_signature_and_static_ones_are_several():
    rated = warm(jax.jit(lambda x, rate: x * rate), over=[(of(8), 0.5)])
    assert covers(rated, ((of(8), 0.1 * i) for i in range(5))).signatures == 1
    assert len(covers(rated, [(of(8), jnp.float32(1))]).uncovered) == 1
    static = warm(jax.jit(lambda x, n: x * n, static_argnums=1), over=[(of(8), 2)])
    found = covers(static, [(of(8), n) for n in (2, 3, 4, 3)])
    assert [(each.first, each.inputs) for each in found.uncovered] == [(1, 2), (2, 1)]
    from_the_end = warm(jax.jit(lambda x, n: x * n, static_argnums=-1), over=[(of(8), 2)])
    assert [each.first for each in covers(from_the_end, [(of(8), n) for n in (2, 3)]).uncovered] == [1]


def test_filter_jit_takes_equal_numbers_for_one_and_a_static_argument_of_jit_does_not():
    def scaled(x, rate):
        return x * rate

    def found(jitted):
        step = warm(jitted, over=[(PARAMS, 1)])
        missing = covers(step, [(PARAMS, rate) for rate in (1, 1.0, True, 2, 2.0)]).uncovered
        compiled = []
        for place, rate in enumerate((1, 1.0, True, 2, 2.0)):
            with compiles.count() as counted:
                step(PARAMS, rate)
            compiled += [place] if counted.events else []
        return [each.first for each in missing], compiled

    assert found(eqx.filter_jit(scaled)) == ([3], [3])
    rates = (np.float32(2), jnp.float32(2), np.float32(3))
    (numpys,) = covers(warm(eqx.filter_jit(scaled), over=[(PARAMS, 1)]), [(PARAMS, rate) for rate in rates]).uncovered
    assert (numpys.first, numpys.inputs) == (0, 3)
    assert found(jax.jit(scaled, static_argnums=1)) == ([1, 2, 3, 4], [1, 2, 3, 4])


def test_a_python_function_shows_what_its_jitted_functions_get(warmed):
    def pipeline(text):
        return warmed(PARAMS, padded(text))

    with nothing_compiles():
        covered = covers(pipeline, [of(size) for size in (3, 4, 8, 9)])
        found = covers(pipeline, [of(size) for size in (3, 17, 18)])
    assert (covered.signatures, covered.uncovered, covered.unused) == (2, (), ())
    (uncovered,) = found.uncovered
    assert (uncovered.function, uncovered.first, uncovered.inputs) == ("step", 1, 2)
    assert uncovered.location.startswith(("tests/measure/covers/test_coverage.py:", "/"))
    with compiles.count() as counted:
        pipeline(of(17))
    assert counted.compiles == 1, "what was looked at is not compiled yet"


@directly
def test_a_function_that_is_not_called_through_what_warm_returned_is_known_too(jit):
    step = made(jit)
    warmed = warm(step, over=[(PARAMS, of(8))])
    step(PARAMS, of(16))
    assert [each.first for each in covers(lambda text: warmed(PARAMS, text), [of(8), of(16)]).uncovered] == [1]
    found = covers(lambda text: step(PARAMS, padded(text)), [of(3), of(9), of(17)])
    assert [each.first for each in found.uncovered] == [2]
    assert [each.first for each in covers(step, [(PARAMS, of(8)), (PARAMS, of(3))]).uncovered] == [1]


@each_jit
def test_a_python_function_that_was_warmed_is_compared_by_what_it_calls(jit):
    step = made(jit)

    def train(text):
        return step(PARAMS, padded(text))

    warmed = warm(train, over=[(of(3),)])
    for each in (train, warmed):
        assert [found.first for found in covers(each, [of(5), of(9)]).uncovered] == [1]


@pytest.mark.parametrize(
    ("jit", "modes", "first"),
    [
        (functools.partial(jax.jit, static_argnums=1), [(1, 2), (1, 2.0), (True, 2)], []),
        (functools.partial(jax.jit, static_argnums=1), [(np.float32, 1), (jnp.float32, 1)], []),
        (functools.partial(jax.jit, static_argnums=1), [np.float32, jnp.float32], [1]),
        (functools.partial(jax.jit, static_argnums=1), [1, 1.0, True], [1, 2]),
        (eqx.filter_jit, [(1, 2), (1, 2.0), (True, 2)], []),
        (eqx.filter_jit, [np.float32, jnp.float32], []),
        (eqx.filter_jit, [1, np.int64(1)], [1]),
    ],
)
def test_statics_that_are_equal_are_one_signature_where_jax_takes_them_for_one(jit, modes, first):
    step = warm(jit(lambda x, mode: x * 2), over=[(PARAMS, modes[0])])
    found = covers(step, [(PARAMS, mode) for mode in modes])
    compiled = []
    for place, mode in enumerate(modes):
        with compiles.count() as counted:
            step(PARAMS, mode)
        compiled += [place] if counted.events else []
    assert [each.first for each in found.uncovered] == compiled == first


@pytest.mark.parametrize("jit", [functools.partial(jax.jit, static_argnums=1), eqx.filter_jit])
def test_statics_that_are_equal_are_one_signature_where_none_of_them_is_warm(jit):
    step = warm(jit(lambda x, mode: x * 2), over=[(PARAMS, (3, 4))])
    modes = [(1, 2), (1, 2.0), (np.float32, 1), (jnp.float32, 1)]
    assert [(each.first, each.inputs) for each in covers(step, [(PARAMS, mode) for mode in modes]).uncovered] == [
        (0, 2),
        (2, 2),
    ]


@pytest.mark.parametrize("jit", [jax.jit, nnx.jit])
def test_a_wrapper_that_has_the_attributes_of_a_jitted_function_is_looked_into(jit):
    step = made(jit)

    @functools.wraps(step)
    def zeros(params, size):
        return step(params, of(size))

    @functools.wraps(step)
    def bucketed(params, text):
        return step(params, padded(text))

    assert [each.first for each in covers(warm(zeros, over=[(PARAMS, 3)]), [(PARAMS, 3), (PARAMS, 9)]).uncovered] == [1]
    assert covers(warm(bucketed, over=[(PARAMS, of(3))]), [(PARAMS, of(5))]).uncovered == ()


@pytest.mark.parametrize(
    "around",
    [
        lambda step: functools.partial(step, PARAMS),
        lambda step: functools.partial(eqx.filter_jit(step), PARAMS),
        lambda step: types.MethodType(step, PARAMS),
        lambda step: functools.partial(jax.vmap(step, in_axes=(None, 0)), PARAMS),
        lambda step: functools.partial(nnx.vmap(step, in_axes=(None, 0)), PARAMS),
        lambda step: functools.partial(jax.grad(jax.jit(lambda params, x: step(params, x).sum())), PARAMS),
    ],
    ids=["partial", "partial of filter_jit", "method", "vmap", "nnx.vmap", "grad"],
)
def test_what_is_around_a_jitted_function_has_the_signatures_that_it_was_warmed_with(around):
    step = warm(around(made()), over=[(np.ones((4, 3), np.float32),)])
    found = covers(step, [(np.ones((rows, 3), np.float32),) for rows in (4, 5, 4)])
    assert [each.first for each in found.uncovered] == [1]
    assert "shape was (4, 3), is (5, 3)" in str(found)


def test_a_function_of_which_nothing_is_warm_is_uncovered():
    step = jax.jit(lambda params, x: params - x.sum())
    (uncovered,) = covers(step, [(PARAMS, of(8))]).uncovered
    assert "no signature of it was warmed: perf.warm(lambda, over=[...])" in str(uncovered)


def test_a_function_that_is_jitted_anew_for_each_input_is_one_finding():
    def pipeline(x):
        return jax.jit(lambda x: x * 2)(x)

    pipeline(of(8))
    (uncovered,) = covers(pipeline, [of(8), of(8), of(8)], every=True).uncovered
    assert uncovered.inputs == 3
    assert "every lambda is a new function" in str(uncovered)


def test_more_signatures_than_are_remembered_are_said(monkeypatch):
    step = made()
    known = causes.HISTORY.known
    warm(step, over=[(PARAMS, of(8))])
    monkeypatch.setattr(causes.HISTORY, "known", lambda key: known(key)[-1:] * causes.CALLS_EACH)
    (uncovered,) = covers(step, [(PARAMS, of(3))]).uncovered
    assert uncovered.warmed == 1
    assert "Of its signatures only the last are remembered: give perf.covers what perf.warm returned" in str(uncovered)


def test_what_another_jitted_function_returns_has_no_place_yet(warmed):
    committed = jax.device_put(of(8), jax.devices()[0])
    second = warm(jax.jit(lambda params, x: params * x.sum()), over=[(PARAMS, committed)])

    def pipeline(x):
        return second(warmed(PARAMS, x), committed)

    assert covers(pipeline, [of(8)]).uncovered == ()
    assert len(covers(lambda x: second(PARAMS, x), [of(8)]).uncovered) == 1, "NumPy arrays are not committed"


def test_a_setting_that_was_not_warmed_is_named(warmed):
    def pipeline(x):
        with jax.default_matmul_precision("highest"):
            return warmed(PARAMS, x)

    (uncovered,) = covers(pipeline, [of(8)]).uncovered
    assert "jax_default_matmul_precision" in uncovered.changes[0]


def test_generators_are_run_to_their_end(warmed):
    def pipeline(texts):
        for text in texts:
            yield warmed(PARAMS, padded(text))

    assert [each.first for each in covers(pipeline, [([of(3), of(17)],)]).uncovered] == [0]


def test_operations_outside_any_jitted_function_are_listed_and_not_compared(warmed):
    def pipeline(x):
        return warmed(PARAMS, jnp.pad(x, (0, 8 - len(x))))

    found = covers(pipeline, [of(3), of(5)])
    assert found.uncovered == ()
    assert [each.partition(" at ")[0] for each in found.eager] == ["_pad"]
    assert "operations outside any jitted function, which compile for each new shape: _pad at " in str(found)


def test_objects_that_python_may_look_into_are_all_looked_at(warmed):
    @dataclasses.dataclass(frozen=True)
    class Text:
        ids: np.ndarray

    def pipeline(text):
        return warmed(PARAMS, padded(text.ids))

    assert [each.first for each in covers(pipeline, [Text(of(3)), Text(of(4)), Text(of(17))]).uncovered] == [2]
    strings = covers(lambda text: warmed(PARAMS, padded(np.ones(len(text), np.float32))), ["a", "b" * 17, "a"])
    assert [(each.first, each.inputs) for each in strings.uncovered] == [(1, 1)]


def test_shapes_that_depend_on_numbers_need_every_input(warmed):
    def pipeline(mask):
        return warmed(PARAMS, np.ones(int(mask.sum()), np.float32))

    masks = [np.arange(20) < length for length in (8, 8, 5)]
    assert covers(pipeline, masks).uncovered == ()
    assert [each.first for each in covers(pipeline, masks, every=True).uncovered] == [2]


def test_modules_of_equinox_and_nnx_are_arguments():
    linear = eqx.nn.Linear(2, 2, key=jax.random.key(0))
    forward = warm(eqx.filter_jit(lambda model, x: model(x)), over=[(linear, of(2))])
    assert covers(forward, [(linear, of(2))] * 3).uncovered == ()
    model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    graph = warm(nnx.jit(lambda model, x: model(x)), over=[(model, np.ones((1, 2), np.float32))])
    assert [each.first for each in covers(graph, [(model, np.ones((n, 2), np.float32)) for n in (1, 2)]).uncovered] == [
        1
    ]


def test_a_loader_without_an_end_needs_a_limit(warmed, monkeypatch):
    endless = ((PARAMS, of(8)) for _ in itertools.count())
    found = covers(warmed, endless, limit=5)
    assert (found.inputs, found.ended) == (5, False)
    assert next(endless), "no more than the limit is taken"
    monkeypatch.setattr(walking, "MOST_INPUTS", 10)
    with pytest.raises(ValueError, match=r"has given 10 inputs and goes on.*limit=10_000"):
        covers(warmed, endless)


def test_fast_paths_are_as_before(warmed):
    def pipeline(text):
        return warmed(PARAMS, padded(text))

    pipeline(of(3))
    covers(pipeline, [of(3)])
    with jax.no_tracing(True):
        pipeline(of(3))


@pytest.mark.parametrize("reads", [float, np.asarray, int, bool, lambda x: x.block_until_ready()])
def test_a_step_that_reads_a_result_is_refused_with_its_line(warmed, reads):
    def pipeline(x):
        return reads(warmed(PARAMS, x)[0])

    with pytest.raises(
        MeasurementError, match=r"with input 0, .*test_coverage\.py:\d+ waits for an array or reads its"
    ):
        covers(pipeline, [of(8)])


@pytest.mark.parametrize("called_before", [False, True])
@pytest.mark.parametrize("catches", [False, True])
def test_what_was_compiled_ahead_of_time_is_refused_before_it_runs(warmed, called_before, catches):
    state = jnp.ones(4)
    compiled = jax.jit(lambda s, x: s + x.sum(), donate_argnums=0).lower(state, LONG).compile()
    if called_before:
        compiled(jnp.ones(4), LONG)

    def pipeline(x):
        with contextlib.suppress(MeasurementError) if catches else contextlib.nullcontext():
            compiled(state, LONG)
        return warmed(PARAMS, x)

    before = sys.getprofile()
    with pytest.raises(
        MeasurementError, match=r"test_coverage\.py:\d+ calls a function that was compiled ahead of time"
    ):
        covers(pipeline, [of(8)])
    assert not state.is_deleted()
    assert sys.getprofile() is before


def test_other_errors_of_the_step_say_which_input(warmed):
    def pipeline(x):
        return warmed(PARAMS, x[5])

    with pytest.raises(IndexError) as caught:
        covers(pipeline, [of(8), of(2)])
    assert caught.value.__notes__[-1].startswith("perf.covers was looking at what pipeline calls with input 1")


@pytest.mark.parametrize(
    ("inputs", "error", "says"),
    [
        ([], ValueError, "there are no inputs; a generator that was walked before is empty"),
        (call(len, ()), TypeError, r"got one call: \[call\(...\)\]"),
        ({"x": 1}, TypeError, "must be a list of arguments or a data loader; got dict"),
        (np.ones(3), TypeError, "got ndarray"),
        (5, TypeError, "got int"),
        ([call(len, ())], ValueError, "input 0 is a call of another function, len"),
    ],
)
def test_what_are_no_inputs_is_refused(warmed, inputs, error, says):
    with pytest.raises(error, match=says):
        covers(warmed, inputs)


@pytest.mark.parametrize("limit", [0, -1, True, 2.5])
def test_a_limit_is_a_number_of_inputs(warmed, limit):
    with pytest.raises(ValueError, match=r"limit=.* must be an int of 1 or more"):
        covers(warmed, [(PARAMS, of(8))], limit=limit)


def test_what_is_no_step_is_refused():
    with pytest.raises(TypeError, match="step must be a function, jitted or not, got int"):
        covers(3, [(1,)])
    with pytest.raises(MeasurementError, match="it calls no jitted function"):
        covers(lambda x: x, [(1,)])


def test_a_name_of_jax_that_moved_is_seen(warmed, monkeypatch):
    monkeypatch.setattr("perfsuite.measure.private.slow_path._MISSES", ())
    with pytest.raises(MeasurementError, match="the calls of jitted functions cannot be seen"):
        covers(lambda x: warmed(PARAMS, x), [of(8)])


class Model(eqx.Module):
    weight: jax.Array

    @eqx.filter_jit
    def __call__(self, x):
        return self.weight + x.sum()

    @jax.jit
    def scaled(self, x):
        return self.weight * x.sum()

    def python(self, x):
        return self.scaled(x)


class Net(nnx.Module):
    def __init__(self):
        self.weight = nnx.Param(PARAMS)

    @nnx.jit
    def __call__(self, x):
        return self.weight[...] + x.sum()


def bound_kinds():
    model, net = Model(PARAMS), Net()
    return {
        "a partial": functools.partial(made(), PARAMS),
        "Equinox's partial": eqx.Partial(made(), PARAMS),
        "an Equinox module": model,
        "its bound __call__": model.__call__,
        "its method of jax.jit": model.scaled,
        "its method that calls a jitted one": model.python,
        "an NNX module": net,
        "the bound __call__ of an NNX module": net.__call__,
        "a mapped partial": jax.vmap(functools.partial(made(), PARAMS), axis_size=1, in_axes=None),
    }


@pytest.mark.parametrize("kind", bound_kinds())
def test_what_binds_arguments_to_a_jitted_function_is_compared_with_them(kind):
    jax.clear_caches()
    step = warm(bound_kinds()[kind], over=[(of(8),)])
    with nothing_compiles():
        found = covers(step, [of(8), of(5), of(8), of(5)])
    assert found.signatures == 2
    (uncovered,) = found.uncovered
    assert (uncovered.first, uncovered.inputs, uncovered.warmed) == (1, 2, 1)
    (change,) = uncovered.changes
    assert change.endswith(": shape was (8,), is (5,)")


class Sliced:
    @functools.partial(jax.jit, static_argnums=(0, 2))
    def top(self, x, n):
        return jnp.sort(x)[:n]

    @functools.partial(jax.jit, static_argnums=(0, -1))
    def last(self, x, n):
        return x[-n:]

    @functools.partial(jax.jit, static_argnums=0)
    def scaled(self, rate, x):
        return x * rate


def test_the_static_arguments_of_a_method_are_those_beside_its_object():
    model = Sliced()
    for method in (model.top, model.last):
        step = warm(method, over=[(of(8), 3)])
        (uncovered,) = covers(step, [(of(8), n) for n in (3, 4, 4)]).uncovered
        assert (uncovered.changes, uncovered.inputs) == (("args[2]: static value was 3, is 4",), 2)
        with compiles.count() as counted:
            step(of(8), 4)
        assert counted.compiles == 1
    step = warm(model.scaled, over=[(1.0, of(8))])
    assert covers(step, [(rate, of(8)) for rate in (1.0, 2.0)]).uncovered == ()
    with nothing_compiles():
        step(2.0, of(8))


def test_the_method_of_another_object_is_not_warm():
    model, other = Sliced(), Sliced()
    step = warm(model.scaled, over=[call(model.scaled, 1.0, of(8))])
    assert covers(step, [call(model.scaled, 1.0, of(8))]).uncovered == ()
    assert covers(model.scaled, [(1.0, of(8))]).uncovered == ()
    (uncovered,) = covers(other.scaled, [(1.0, of(8))]).uncovered
    assert "is another" in uncovered.changes[0]
    with pytest.raises(ValueError, match="a call of another function, scaled"):
        covers(step, [call(other.scaled, 1.0, of(8))])
