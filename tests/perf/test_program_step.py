"""What the compilers make of BERT's train step: two configurations, on the v5e, and the main one elsewhere.

The lab note behind docs/workloads/bert.md reports 53 to 62 s to compile without dropout, 205 to 228 s with it, on a
v5e's own host at full size.
"""

import pytest

from .abstract_steps import GPUS, TARGET, flat_step, shapes, zeros
from .conftest import DROPOUT, Steps, Workload

SCORES = {"no-dropout": "BTNH,BSNH->BNTS", "dropout": "bqnd,bknd->bnqk"}
"""QK^T as JAX's own attention names it, and as the eager one does."""


@pytest.mark.parametrize("configuration", DROPOUT)
def test_step_on_the_v5e(perf, configuration):
    program = perf.program(flat_step(shapes(perf.size, **DROPOUT[configuration])), TARGET)
    assert program.fits
    assert not program.lost_donations
    # Scores are float32 for softmax, and so is their gradient: an operand of two products in the backward pass.
    for product in program.float32_products:
        assert SCORES[configuration] in product.op_name
        assert "transpose(" in product.op_name
    assert not program.host_transfers
    assert not program.collectives


@pytest.mark.parametrize("target", [None, "tpu-v4", "tpu-v5p", "tpu-v6e", *GPUS])
def test_step_elsewhere(perf, target):
    program = perf.program(flat_step(shapes(perf.size, **DROPOUT["no-dropout"])), target)
    assert program.fits is not False
    assert not program.lost_donations
    assert not program.host_transfers


def test_compile_seconds_of_filter_jit_with_dropout(perf):
    """Beside those of the flat step above. Without dropout they are in test_program_variants.py."""
    made = shapes(perf.size, **DROPOUT["dropout"])
    steps = Steps(Workload(made.config, made.batch_size, made.sequence), model=zeros(made.config))
    perf.program(steps.cold_call("filter_jit"), TARGET, name="filter_jit")
