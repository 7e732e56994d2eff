"""docs/extending.md, followed: the instrument that it shows measures, saves a baseline, and fails a regression."""

import sys
import types

import pytest
from support.markdown_blocks import DOCS, blocks

from perfsuite.fixture import Method, Perf
from perfsuite.instruments import METHODS, base

FILE = "perfsuite/instruments/output_bytes.py"


@pytest.fixture
def extended(pytester, monkeypatch):
    """A project whose `perf` has the instrument of the page."""
    (block,) = (each for each in blocks((DOCS / "extending.md").read_text(encoding="utf-8")) if each.file == FILE)
    monkeypatch.setattr(base, "DECLARED", dict(base.DECLARED))
    module = types.ModuleType("perfsuite.instruments.output_bytes")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(block.text, FILE, "exec"), module.__dict__)
    monkeypatch.setitem(METHODS, "output_bytes", ("output_bytes", "OutputBytes"))
    monkeypatch.setattr(Perf, "output_bytes", Method("output_bytes"), raising=False)
    return pytester


def write_test(project, outputs, budget=""):
    project.makepyfile(
        f"""
        import jax, jax.numpy as jnp
        from perfsuite import Budget, call

        def test_step(perf):
            step = jax.jit(lambda x: ({outputs}))
            perf.output_bytes(call(step, jnp.ones(256)), name="step"{budget})
        """
    )


def test_the_instrument_of_the_page_saves_and_gates(extended):
    write_test(extended, "x + 1,")
    extended.runpytest_inprocess("--perf-save").assert_outcomes(passed=1)
    extended.runpytest_inprocess("--perf", "--perf-strict").assert_outcomes(passed=1)
    write_test(extended, "x + 1, x + 2")
    result = extended.runpytest_inprocess("--perf")
    result.assert_outcomes(failed=1)
    said = "step output bytes is 2,048 bytes, +100 % over the baseline 1,024 bytes (limit +1 %)"
    result.stdout.fnmatch_lines([f"*{said}"])


def test_it_refuses_a_budget_that_it_does_not_check(extended):
    write_test(extended, "x + 1", budget=", budget=Budget(ratio=1.05)")
    result = extended.runpytest_inprocess("--perf")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*perf.output_bytes does not check Budget(ratio=...), perf.compare does*"])
