"""`perf.count_compiles`, `perf.no_compiles(only=)` and the warning of `perf.warm`, end to end."""

import pytest

COUNTED = [
    "fresh = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf * 2, tree))",
    "inputs = [batch({}) for _ in range(3)]",
    "with perf.count_compiles(name='epoch'):",
    "    for each in [*inputs, batch({})]:",
    "        fresh(each)",
]


def test_one_more_compile_than_in_the_baseline_fails_and_names_the_function(project, perf_test):
    perf_test(*[line.format(8) for line in COUNTED])
    assert project.runpytest_inprocess("--perf-save").ret == pytest.ExitCode.OK
    assert project.runpytest_inprocess("--perf").ret == pytest.ExitCode.OK
    perf_test(*[line.format(8 + place) for place, line in enumerate(COUNTED)])
    result = project.runpytest_inprocess("--perf")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*epoch compiles*"])
    result.stdout.fnmatch_lines(["*<lambda>*(+1)*"])
    result.stdout.fnmatch_lines(["cause unknown: * runs alone *perf.warm*"])


def test_only_a_named_function_may_not_compile(project, perf_test):
    lines = [
        "mine, other = jax.jit(lambda x: x * 2), jax.jit(lambda x: x * 3)",
        "x = jax.device_put(np.ones(8))",
        "with perf.no_compiles(only=[mine]):",
        "    {}(x)",
    ]
    perf_test("import numpy as np", *[line.format("other") for line in lines])
    assert project.runpytest_inprocess("--perf").ret == pytest.ExitCode.OK
    perf_test("import numpy as np", *[line.format("mine") for line in lines])
    result = project.runpytest_inprocess("--perf")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*RecompilationError: `<lambda>` was traced*at *"])
