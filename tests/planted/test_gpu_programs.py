"""Regressions planted in the programs of a user's train steps for a GPU that is not here: as for TPUs, each is named."""

import re

import pytest
from support.cuda_needed import needs_cuda_plugin

# Fixtures are found by their names in the module.
from .test_programs import HIDDEN, PRINT, SECTION, cache_dir, growth, planted, run, step_project  # noqa: F401

pytestmark = needs_cuda_plugin

GPU = "gpu-h100"


@pytest.fixture
def plant(planted):  # noqa: F811
    """Save the baselines of the GPU, plant, run again; the run must fail."""

    def plant(old, new, module="model"):
        outcome = planted(old, new, target=GPU, module=module)
        assert outcome.status == pytest.ExitCode.TESTS_FAILED, outcome.text
        return outcome

    return plant


def test_control_no_change_is_green_and_compiles_nothing(step_project, run):  # noqa: F811
    run("--perf-save", target=GPU).assert_outcomes(passed=2)
    assert (step_project.path / "baselines" / "gpu-h100.json").exists()
    model = step_project.path / "model.py"
    model.write_text(f"# a comment moves every line\n{model.read_text()}")
    result = run("--perf", "--perf-strict", target=GPU)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["2 programs: 0 compiled, 2 from the cache*"])
    result.stdout.no_fnmatch_line(f"*{SECTION}*")


def test_a_lost_donation_is_named_by_its_path_and_why(plant):
    outcome = plant('"losses": losses}', '"losses": losses.astype(BF16)}')
    message = outcome.message("lost donations")
    assert re.search(r"args\[0\]\['losses'\] \(float32\[3000\]: no output took its memory\) \(\+1\)", message)


def test_a_float32_product_is_named_with_its_line(plant):
    outcome = plant('x @ params["up"].astype(BF16)', '(x @ params["up"]).astype(BF16)')
    message = outcome.message("float32 products")
    assert re.search(rf"f32 \w+ in block \(model.py\) \(\+\d\) at {outcome.line} in block", message)


def test_a_broken_fusion_is_named_with_its_line(plant):
    outcome = plant(
        "keep = jax.random.bernoulli(key, 0.9, x.shape)",
        "keep = jax.lax.optimization_barrier(jax.random.bernoulli(key, 0.9, x.shape))",
    )
    message = outcome.message("fusions")
    assert re.search(rf"fusion in dropout \(model.py\) \(\+\d\) at {outcome.line} in dropout", message)


def test_a_library_call_in_place_of_a_fusion_is_named_with_its_line(plant):
    outcome = plant(
        "jax.jit(train_step, donate_argnums=0)",
        'jax.jit(train_step, donate_argnums=0, compiler_options={"xla_gpu_enable_triton_gemm": False})',
    )
    message = outcome.message("custom calls")
    assert re.search(r"__cublas\$lt\$matmul in block \(model.py\) \(\+\d\) at model.py:\d+ in block", message)


def test_an_extra_all_gather_is_named_with_its_line(plant):
    outcome = plant(HIDDEN, f"rows({HIDDEN})", module="sharded")
    named = f"all-gather in loss_fn (sharded.py) (+1) at {outcome.line} in loss_fn"
    assert named in outcome.message("collectives")
    assert named in outcome.message("resharding")


def test_a_print_left_in_is_a_host_transfer(plant):
    outcome = plant(*PRINT)
    named = f"callback in block (model.py) (+1) at {outcome.line} in block"
    assert named in outcome.message("host transfers")


def test_one_and_a_half_percent_more_flops_are_named_with_their_line(plant):
    outcome = plant(
        'step = state["step"] + 1',
        'step = state["step"] + 1; loss += (batch["x"][0] @ batch["x"][1].T).max()',
    )
    message = outcome.message("flops")
    assert 0.01 < growth(message) < 0.03
    assert re.search(rf"in train_step \(model.py\) \(\+[\d,]+\) at {outcome.line} in train_step", message)
