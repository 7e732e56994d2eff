"""`perfsuite init`: the test that it writes, what it says is next, and what it refuses."""

import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree, Shaped

from perfsuite.commands import main
from perfsuite.commands.init import _arguments, _carried
from perfsuite.measure.installed import install

STEPS = """
import functools

import jax
from jaxtyping import Array, Float

class Model:
    def __init__(self, rate=0.1):
        self.rate = rate

    @functools.partial(jax.jit, static_argnums=0, donate_argnums=(1, 2))
    def step(self, w: Float[Array, "8"], unused: Float[Array, "3"]):
        return w * self.rate

SIZE = 3

@jax.jit
def step(state: Float[Array, "8"], batch: Float[Array, "4 8"], scale: float, power: int = 2):
    return state + scale * batch.mean(0) ** power, batch.sum()

@jax.jit
def test_step(x: Float[Array, "8"], *, key: jax.Array):
    return x, key

def call(model: Model, x: "Undefined"):
    return jax.numpy.sin(x)

@jax.jit
def nothing():
    return jax.numpy.zeros(3)

def product(a: Float[Array, "4 8"], b: Float[Array, "4"]):
    return a @ b
"""


@pytest.fixture
def steps(project, monkeypatch):
    """A project with the module `lib.steps` in src."""
    project.makefile(".ini", pytest="[pytest]\npythonpath = src\n")
    project.mkdir("src")
    (project.path / "src/lib").mkdir()
    (project.path / "src/lib/steps.py").write_text(STEPS)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield project
    for name in [each for each in sys.modules if each.partition(".")[0] == "lib"]:
        del sys.modules[name]


def written(project, name):
    return project.path / f"tests/test_perf_{name}.py"


def refused(capsys, *arguments):
    assert main(["init", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.removeprefix("perfsuite init: ").strip()


def test_the_tests_that_it_writes_pass_and_carry_the_state(steps, capsys):
    assert main(["init", "lib.steps:step"]) == 0
    assert [line.partition(". ")[2] for line in capsys.readouterr().out.splitlines()[2:]] == [
        "pytest --perf-save tests/test_perf_step.py",
        "commit tests/test_perf_step.py and the baselines; from then on `pytest --perf` fails what got worse",
    ]
    assert "carry=1" in written(steps, "step").read_text()
    assert "is there already" in refused(capsys, "lib.steps:step")
    steps.runpytest_inprocess("--perf").assert_outcomes(passed=3)


@pytest.mark.parametrize("name", ["nothing", "test_step", "call"])
def test_a_function_of_any_name_and_of_no_or_unknown_arguments(steps, capsys, name):
    assert main(["init", f"lib.steps:{name}"]) == 0
    text = written(steps, name).read_text()
    said = capsys.readouterr().out
    if name == "nothing":
        steps.runpytest_inprocess("--perf").assert_outcomes(passed=3)
        return
    result = steps.runpytest_inprocess("--perf")
    result.assert_outcomes(failed=3)
    argument = "key" if name == "test_step" else "model"
    result.stdout.fnmatch_lines([f"*NotImplementedError: *{name}.py: write the argument `{argument}` of {name} in*"])
    assert f"write the arguments of {name} into tests/test_perf_{name}.py: {argument}: " in said
    for argument in ("key", "model", "x"):
        text = text.replace(f'fill_in("{argument}")', "1.0")
    written(steps, name).write_text(text)
    steps.runpytest_inprocess("--perf").assert_outcomes(passed=3)


def test_a_method_is_called_on_its_object_and_a_lost_donation_is_a_line(steps, capsys):
    steps.makefile(".ini", pytest="[pytest]\npythonpath = src\n")
    assert main(["init", "lib.steps:Model.step"]) == 0
    assert "write the arguments of Model.step into tests/test_perf_Model_step.py: self" in capsys.readouterr().out
    file = written(steps, "Model_step")
    file.write_text(file.read_text().replace('fill_in("self")', "Model()").replace("    )\n", "        carry=0)\n", 1))
    result = steps.runpytest_inprocess("--perf", "-k", "program")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E * args[[]2]: float32[[]3]: the program does not use it"])


def test_the_compilers_of_targets_are_next(steps, capsys):
    targets = "[pytest]\npythonpath = src\nperf_targets = tpu-v5e gpu-h100 tpu-v6e\n"
    steps.makefile(".ini", pytest=targets)
    assert main(["init", "lib.steps:step"]) == 0
    assert f"install the compilers of perf_targets, here and in CI: {install('gpu', 'tpu')}" in capsys.readouterr().out
    steps.makefile(".ini", pytest=targets.replace("v6e", "v66"))
    assert "the ini option perf_targets: no target 'tpu-v66'" in refused(capsys, "lib.steps:nothing")


def test_a_value_that_the_function_does_not_take_and_a_module_off_the_path_are_next(steps, capsys):
    steps.makefile(".ini", pytest="[pytest]\n")
    assert main(["init", "lib.steps:product", "--file", "checks/test_it.py"]) == 0
    said = capsys.readouterr().out
    assert "correct the arguments of product in checks/test_it.py: with them it raises TypeError: " in said
    assert "add to pytest's settings: pythonpath = src" in said
    assert (steps.path / "checks/test_it.py").is_file()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lib.steps.step", "is not module:function"),
        ("lib.steps:", "is not module:function"),
        ("lib.stpes:step", "`import lib.stpes` fails: ModuleNotFoundError"),
        ("lib.steps:stop", "lib.steps:stop is not there"),
        ("lib.steps:Model", "lib.steps:Model is a type: name a function"),
        ("lib.steps:SIZE", "lib.steps:SIZE is a int: name a function"),
        ("lib.broken:step", "`import lib.broken` fails: ZeroDivisionError: division by zero"),
    ],
)
def test_a_function_that_cannot_be_used_is_named_and_nothing_is_written(steps, capsys, name, message):
    (steps.path / "src/lib/broken.py").write_text("1 / 0\n")
    assert message in refused(capsys, name)
    assert not (steps.path / "tests").exists()


@pytest.mark.parametrize(
    ("annotation", "source"),
    [
        (float, "1.0"),
        (bool, "False"),
        (Float[Array, ""], "jnp.zeros(())"),
        (Float[Array, "batch=32 #width _ ?x"], "jnp.zeros((32, 8, 8, 8))"),
        (Float[Array, "*batch 3"], "jnp.zeros((3,))"),
        (Int[Array, "4"], 'jnp.zeros((4,), "int32")'),
        (Shaped[Array, "4"], "jnp.zeros((4,))"),
        (Float[Array, "4"] | None, "jnp.zeros((4,))"),
        (PRNGKeyArray, "jax.random.key(0)"),
        (Float[Array, "n+1"], ""),
        (PyTree[Float[Array, "4"]], ""),
        (str, ""),
    ],
    ids=str,
)
def test_an_annotation_gives_a_value_where_it_says_enough(annotation, source):
    def step(x):
        return x

    step.__annotations__["x"] = annotation
    (argument,) = _arguments(step)
    assert argument.source == (source or 'fill_in("x")')
    if source:
        made = eval(source, {"jax": jax, "jnp": jnp})
        assert jax.eval_shape(lambda x: x, made) == jax.eval_shape(lambda x: x, argument.value)


@pytest.mark.parametrize("jit", [jax.jit, eqx.filter_jit, eqx.filter_jit(donate="all"), nnx.jit])
def test_one_output_is_carried_too_by_every_jit(jit):
    def advance(state: Float[Array, "8"]):
        return state + 1

    assert _carried(jit(advance), _arguments(jit(advance))) == (1, "")
