"""Regressions planted in the programs of a user's train steps: each fails its gate, and the message names its line.

The baselines are saved, then one line of the project changes. All of it is compiled for a TPU that is not here; the
programs of the baselines are compiled once for all tests of this file.
"""

import dataclasses
import re

import pytest
from support.libtpu_needed import needs_libtpu

pytestmark = [needs_libtpu, pytest.mark.usefixtures("quick_to_compile")]

MODEL = """
import jax
import jax.numpy as jnp

BATCH, LENGTH, WIDTH, HIDDEN, WORDS = 2, 64, 128, 256, 128
BF16, F32 = jnp.bfloat16, jnp.float32


def initial_state():
    zeros = {"up": jnp.zeros((WIDTH, HIDDEN)), "down": jnp.zeros((HIDDEN, WIDTH)), "head": jnp.zeros((WIDTH, WORDS))}
    state = {name: jax.tree.map(jnp.copy, zeros) for name in ("params", "mean", "square")}
    return state | {"step": jnp.zeros((), jnp.int32), "losses": jnp.zeros((3000,))}


def batch():
    return {"x": jnp.ones((BATCH, LENGTH, WIDTH), BF16), "labels": jnp.ones((BATCH, LENGTH), jnp.int32)}


def dropout(x, key):
    keep = jax.random.bernoulli(key, 0.9, x.shape)
    return jnp.where(keep, x / 0.9, 0)


def block(params, x, key):
    hidden = jax.nn.gelu(x @ params["up"].astype(BF16))
    hidden = dropout(hidden, key)
    return x + hidden @ params["down"].astype(BF16)


def loss_fn(params, batch, key):
    x = block(params, batch["x"], key)
    scores = jax.nn.log_softmax((x @ params["head"].astype(BF16)).astype(F32))
    return -jnp.take_along_axis(scores, batch["labels"][..., None], -1).mean()


def adamw(gradient, weight, mean, square, step):
    mean = 0.9 * mean + 0.1 * gradient
    square = 0.999 * square + 0.001 * gradient**2
    change = mean / (1 - 0.9**step) / (jnp.sqrt(square / (1 - 0.999**step)) + 1e-8)
    return {"params": weight - 1e-4 * (change + 0.01 * weight), "mean": mean, "square": square}


def train_step(state, batch, key):
    loss, gradients = jax.value_and_grad(loss_fn)(state["params"], batch, key)
    step = state["step"] + 1
    updated = jax.tree.map(
        lambda *leaves: adamw(*leaves, step), gradients, state["params"], state["mean"], state["square"]
    )
    new = {part: {name: updated[name][part] for name in gradients} for part in ("params", "mean", "square")}
    losses = jnp.roll(state["losses"], 1).at[0].set(loss)
    return new | {"step": step, "losses": losses}, loss


train_step = jax.jit(train_step, donate_argnums=0)
"""

SHARDED = """
import functools
import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def of(shape, dtype, *spec):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))


def initial_params():
    return {"up": of((256, 1024), jnp.float32, None, "model"), "down": of((1024, 256), jnp.float32, "model", None)}


def batch():
    return of((64, 256), jnp.bfloat16, "data", None)


def rows(x):
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("data", None)))


def loss_fn(params, x):
    out = jax.nn.gelu(x @ params["up"].astype(x.dtype)) @ params["down"].astype(x.dtype)
    return jnp.mean(out.astype(jnp.float32) ** 2)


@functools.partial(jax.jit, donate_argnums=0)
def sharded_step(params, x):
    gradients = jax.grad(loss_fn)(params, x)
    return jax.tree.map(lambda weight, gradient: weight - 1e-3 * gradient, params, gradients)
"""

HIDDEN = 'jax.nn.gelu(x @ params["up"].astype(x.dtype))'

TESTS = """
import jax
from model import *
from perfsuite import call

def test_program(perf, perf_target):
    perf.program(call(train_step, initial_state(), batch(), jax.random.key(1), carry=1), perf_target)
"""

SHARDED_TESTS = """
import jax
from sharded import *
from perfsuite import call

def test_sharded(perf, perf_target):
    perf.program(call(sharded_step, initial_params(), batch()), perf_target)
"""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a run with a plant said. `line` is where the plant is, `failures` the messages by metric."""

    status: int
    line: str
    text: str
    failures: dict[str, str]

    def message(self, metric: str) -> str:
        """The message of the gate of `metric`."""
        assert metric in self.failures, self.text
        return self.failures[metric]


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def step_project(pytester, cache_dir):
    pytester.makepyfile(model=MODEL, test_model=TESTS, sharded=SHARDED, test_sharded=SHARDED_TESTS)
    # The mesh needs four devices; this process has more by its own conftest.py.
    pytester.makeconftest(
        "import jax\nif jax.config.jax_num_cpu_devices < 4: jax.config.update('jax_num_cpu_devices', 4)"
    )
    pytester.makeini(f"[pytest]\npythonpath = .\ncache_dir = {cache_dir}\n")
    return pytester


@pytest.fixture
def run(step_project):
    def run(*arguments: str, target: str | None = "tpu-v5e") -> pytest.RunResult:
        targets = [f"--perf-target={target}"] if target else []
        return step_project.runpytest_inprocess(*arguments, *targets)

    return run


@pytest.fixture
def planted(step_project, run):
    """Save the baselines, plant `new` where `old` is in a module, and run again."""

    def plant(old: str, new: str, *, target: str | None = "tpu-v5e", module: str = "model") -> Outcome:
        tests = f"test_{module}.py"
        assert run("--perf-save", tests, target=target).ret == pytest.ExitCode.OK
        path = step_project.path / f"{module}.py"
        source = path.read_text()
        assert source.count(old) == 1
        path.write_text(source.replace(old, new))
        line = f"{module}.py:{source.partition(old)[0].count(chr(10)) + 1}"
        result = run("--perf", "-v", tests, target=target)
        text = str(result.stdout)
        device = f" @ {target}" if target else ""
        gates = re.findall(
            rf"^(?:fail: \S+::\S+ at \S+: )?(\w+_step) ([\w ]+){device} is ((?:.|\n(?!\w))*)", text, re.MULTILINE
        )
        return Outcome(result.ret, line, text, {metric: message for _, metric, message in gates})

    return plant


SECTION = "differences from the baseline's program:"


def test_control_no_change_is_green_and_compiles_nothing(step_project, run):
    run("--perf-save").assert_outcomes(passed=2)
    model = step_project.path / "model.py"
    model.write_text(f"# a comment moves every line\n{model.read_text()}")
    result = run("--perf", "--perf-strict")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["2 programs: 0 compiled, 2 from the cache*"])
    result.stdout.no_fnmatch_line(f"*{SECTION}*")


def test_a_donation_lost_to_another_dtype_is_named_by_its_path_and_why(planted):
    outcome = planted('"losses": losses}', '"losses": losses.astype(BF16)}')
    assert outcome.status == pytest.ExitCode.TESTS_FAILED
    message = outcome.message("lost donations")
    assert message.startswith("1 buffer, +1 over the baseline 0 buffers")
    named = (
        r"args\[0\]\['losses'\] \(float32\[3000\]: no output took its memory\) \(\+1\) at model.py:\d+ in train_step"
    )
    assert re.search(named, message)


def test_a_donation_that_was_taken_back_fails_too(planted):
    outcome = planted("jax.jit(train_step, donate_argnums=0)", "jax.jit(train_step)")
    assert outcome.status == pytest.ExitCode.TESTS_FAILED
    assert "also worse: train_step alias bytes @ tpu-v5e 995,840 -> 0 bytes (-100 %)" in outcome.text
    assert "grew: outputs that reuse no argument" in outcome.message("peak bytes")


def test_a_float32_product_is_named_with_its_line(planted):
    outcome = planted('x @ params["up"].astype(BF16)', '(x @ params["up"]).astype(BF16)')
    assert outcome.status == pytest.ExitCode.TESTS_FAILED
    message = outcome.message("float32 products")
    assert re.search(rf"f32 \w+ in block \(model.py\) \(\+\d\) at {outcome.line} in block", message)


def test_a_broken_dropout_fusion_is_named_with_its_line(planted):
    outcome = planted(
        "keep = jax.random.bernoulli(key, 0.9, x.shape)",
        "keep = jax.lax.optimization_barrier(jax.random.bernoulli(key, 0.9, x.shape))",
    )
    assert outcome.status == pytest.ExitCode.TESTS_FAILED
    message = outcome.message("fusions")
    assert re.search(rf"fusion in dropout \(model.py\) \(\+\d\) at {outcome.line} in dropout", message)
    assert SECTION in outcome.text
    assert re.search(r"^  unfused: _uniform and \w+ were in one kernel: model.py:\d+", outcome.text, re.MULTILINE)


def growth(message: str) -> float:
    """By how much a metric is above its baseline, relative."""
    value, baseline = (float(number.replace(",", "")) for number in re.findall(r"([\d,]+) (?:bytes|FLOP)", message)[:2])
    return value / baseline - 1


def test_one_and_a_half_percent_more_bytes_are_named_with_their_line(planted):
    outcome = planted(
        'step = state["step"] + 1',
        'step = state["step"] + jnp.isfinite(state["mean"]["up"]).any().astype(jnp.int32)',
    )
    assert outcome.status == pytest.ExitCode.TESTS_FAILED
    message = outcome.message("bytes accessed")
    assert 0.014 < growth(message) < 0.016
    assert re.search(rf"fusion in train_step \(model.py\) \(\+[\d,]+\) at {outcome.line} in train_step", message)


def test_one_and_a_half_percent_more_flops_are_named_with_their_line(planted):
    outcome = planted(
        'step = state["step"] + 1',
        'step = state["step"] + 1; loss += (batch["x"][0] @ batch["x"][1].T).max()',
    )
    assert outcome.status == pytest.ExitCode.TESTS_FAILED
    message = outcome.message("flops")
    assert 0.014 < growth(message) < 0.016
    assert re.search(rf"in train_step \(model.py\) \(\+[\d,]+\) at {outcome.line} in train_step", message)


def test_an_extra_all_gather_is_named_with_its_line(planted):
    outcome = planted(HIDDEN, f"rows({HIDDEN})", module="sharded")
    assert outcome.status == pytest.ExitCode.TESTS_FAILED
    named = f"all-gather in loss_fn (sharded.py) (+1) at {outcome.line} in loss_fn"
    assert named in outcome.message("collectives")
    assert named in outcome.message("resharding")
    assert f"  + 1 x all-gather in loss_fn (sharded.py): {outcome.line} in loss_fn" in outcome.text


PRINT = (
    "    hidden = jax.nn.gelu(x @",
    '    jax.debug.print("{}", x.mean()); hidden = jax.nn.gelu(x @',
)


def test_a_print_left_in_raises_the_host_transfers_of_the_target(planted):
    outcome = planted(*PRINT)
    assert outcome.status == pytest.ExitCode.TESTS_FAILED
    message = outcome.message("host transfers")
    assert f"send in block (model.py) (+1) at {outcome.line} in block" in message
    assert "train_step host transfers @ tpu-v5e 0 -> 2 transfers" in outcome.text


def test_a_print_left_in_raises_the_host_transfers_of_the_present_device(planted):
    outcome = planted(*PRINT, target=None)
    assert outcome.status == pytest.ExitCode.TESTS_FAILED
    message = outcome.message("host transfers")
    assert f"callback in block (model.py) (+1) at {outcome.line} in block" in message
