"""perfsuite's gate and pytest-benchmark's, on the same workloads, seconds and machine: false alarms, and plants caught.

    python tests/promise/side_by_side.py --repeats 20 --seconds 2.5
    python tests/promise/side_by_side.py --repeats 20 --seconds 2.5 --busy

Prints a Markdown table. Each repeat runs both tools as their users do, each in pytest processes of its own:

- pytest-benchmark times the baseline code in one process (`--benchmark-save`), and the code under test in others
  (`--benchmark-compare --benchmark-compare-fail mean:5% ...`), one for each plant: it compares metrics of two
  processes, one after the other. Each test may take `--benchmark-max-time` = SECONDS in each. Its three rules judge the
  same two runs.
- perfsuite runs both in one process (`perf.compare(candidate, reference, Budget(ratio=...))`, no baseline), in pairs.
  `--perf-seconds` is twice SECONDS, for both sides together; it may stop earlier, and its two rules are two gates.

The code under test is the baseline code (A/A: every failure is a false alarm), or the same with a plant: after each
call is ready, it waits busily for a share of the time that this very call took. The baseline code runs the same lines,
with a share of 0. A rule whose limit lies above the plant is not meant to catch it; the table shows that too.

The seconds are those of the tests of one verdict, warming and compiling included. pytest and JAX start besides, for
pytest-benchmark once more in each repeat.
"""

import argparse
import contextlib
import dataclasses
import math
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import tabulate
from support.busy import busy_neighbours

from perfsuite.measure.words import plural

WORKLOADS = {  # by name; `project.py` makes them
    "small": "a chain of products, about 0.4 ms",
    "1ms": "a longer chain, about 1 ms",
    "train": "a BERT train step of perfsuite.workloads",
}

PROJECT = '''
import time

import jax
import jax.numpy as jnp


def chain(products):
    @jax.jit
    def step(x):
        return jax.lax.fori_loop(0, products, lambda _, x: jnp.tanh(x @ x), x)

    x = jnp.full((32, 32), 0.01)
    return lambda: step(x)


def train():
    import equinox as eqx
    import optax

    from perfsuite.workloads.bert import BertConfig, BertForMaskedLM, masked_lm_loss
    from perfsuite.workloads.training import make_filter_train_step, mlm_batches

    config, adamw = BertConfig.tiny().narrowed(), optax.adamw(1e-4)
    model = BertForMaskedLM(config, key=jax.random.key(0))
    (made,) = mlm_batches(config.vocab_size, 2, buckets=(16,), num_batches=1)
    batch, key = {name: jnp.asarray(values) for name, values in made.items()}, jax.random.key(1)
    step = make_filter_train_step(masked_lm_loss, adamw)
    state = [model, adamw.init(eqx.filter(model, eqx.is_inexact_array))]

    def run():
        *state[:], outputs = step(*state, batch, key)
        return outputs

    return run


MAKE = {"small": lambda: chain(300), "1ms": lambda: chain(750), "train": train}


def work(name, plant):
    """The workload, each call of which is waited for and then takes `plant` times as long again."""
    run = MAKE[name]()

    def planted():
        start = time.perf_counter_ns()
        outputs = jax.block_until_ready(run())
        now = time.perf_counter_ns()
        end = now + plant * (now - start)
        while time.perf_counter_ns() < end:
            pass
        return outputs

    return planted
'''

BENCHMARK = """
import os

import pytest
from project import work


@pytest.mark.parametrize("name", os.environ["WORKLOADS"].split(","))
def test_work(benchmark, name):
    planted = work(name, float(os.environ["PLANT"]))
    planted()  # compiles
    benchmark(planted)
"""

PERFSUITE = """
import os

import pytest
from project import work

from perfsuite import Budget, call


@pytest.mark.parametrize("limit", {limits})
@pytest.mark.parametrize("name", os.environ["WORKLOADS"].split(","))
def test_work(perf, name, limit):
    candidate, reference = work(name, float(os.environ["PLANT"])), work(name, 0.0)
    perf.compare(call(candidate), call(reference), Budget(ratio=limit), name=name)
"""

BENCHMARK_RULES = ("mean:5%", "median:5%", "min:5%")
RATIO_LIMITS = (1.05, 1.01)
COMPARES = {
    "pytest-benchmark": "a process with an earlier one",
    "perfsuite": "pairs of calls in one process",
}


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Of one rule, on one workload with one plant: whether the build failed, and the seconds that it took."""

    tool: str
    rule: str
    workload: str
    plant: float
    failed: bool
    seconds: float


def write_project(folder: Path) -> None:
    """The workloads, and for each tool a test that runs them."""
    files = {
        "pytest.ini": "[pytest]\n",
        "project.py": PROJECT,
        "test_benchmark.py": BENCHMARK,
        "test_perfsuite.py": PERFSUITE.format(limits=list(RATIO_LIMITS)),
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


def run_pytest(
    folder: Path, plant: float, workloads: Sequence[str], *arguments: str
) -> tuple[str, dict[str, tuple[bool, float]]]:
    """One pytest process: what it printed; and for each test, by its parameters, whether it failed and its seconds.

    Raises `RuntimeError` with everything that it printed where a test has no verdict.
    """
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    environment = {
        **os.environ,
        "PLANT": str(plant),
        "WORKLOADS": ",".join(workloads),
        "PYTEST_ADDOPTS": "-p no:hypothesispytest -p no:jaxtyping",
    }
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={report}", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    output = done.stdout + done.stderr
    tests = {}
    for case in ElementTree.parse(report).iter("testcase") if report.exists() else ():
        failure = case.find("failure")
        if case.find("error") is not None or (failure is not None and "BudgetExceeded" not in (failure.text or "")):
            raise RuntimeError(f"{' '.join(command)}\n{output}")
        parameters = case.get("name", "").partition("[")[2].removesuffix("]")
        tests[parameters] = failure is not None, float(case.get("time", 0))
    if done.returncode not in (0, 1) or not tests:
        raise RuntimeError(f"{' '.join(command)}\n{output}")
    return output, tests


def with_benchmark(
    folder: Path, plants: Sequence[float], workloads: Sequence[str], seconds: float
) -> Iterator[Verdict]:
    """pytest-benchmark: the baseline code once, and then for each plant the code under test."""
    storage = tempfile.mkdtemp(dir=folder)
    common = ("test_benchmark.py", f"--benchmark-max-time={seconds}", f"--benchmark-storage=file://{storage}")
    _, baseline = run_pytest(folder, 0.0, workloads, *common, "--benchmark-save=base")
    for plant in plants:
        rules = ("--benchmark-compare-fail", *BENCHMARK_RULES)  # given several times, the last would count
        output, now = run_pytest(folder, plant, workloads, *common, "--benchmark-compare", *rules)
        regressed = set(re.findall(r"test_work\[(\S+)\] .* - Field '(\w+)' has failed", output))
        for rule in BENCHMARK_RULES:
            for name in workloads:
                failed = (name, rule.partition(":")[0]) in regressed
                took = baseline[name][1] + now[name][1]
                yield Verdict("pytest-benchmark", f"compare-fail={rule}", name, plant, failed, took)


def with_perfsuite(
    folder: Path, plants: Sequence[float], workloads: Sequence[str], seconds: float
) -> Iterator[Verdict]:
    """perfsuite: for each plant a gate for each limit."""
    for plant in plants:
        _, now = run_pytest(folder, plant, workloads, "test_perfsuite.py", "--perf", f"--perf-seconds={2 * seconds}")
        for limit in RATIO_LIMITS:
            for name in workloads:
                yield Verdict("perfsuite", f"ratio={limit}", name, plant, *now[f"{name}-{limit}"])


def table(verdicts: Sequence[Verdict], plants: Sequence[float]) -> str:
    """The Markdown table: builds that failed, of how many, by rule and plant; over all workloads, then each."""
    groups: dict[tuple[str, str, str], list[Verdict]] = {}
    for verdict in verdicts:
        for workload in ("all", verdict.workload):
            groups.setdefault((workload, verdict.tool, verdict.rule), []).append(verdict)
    rows = []
    for (workload, tool, rule), of_group in sorted(groups.items(), key=lambda group: group[0][0] != "all"):
        counts = []
        for plant in plants:
            failed = [verdict.failed for verdict in of_group if verdict.plant == plant]
            counts.append(f"{sum(failed)} of {len(failed)}")
        took = sum(verdict.seconds for verdict in of_group) / len(of_group)
        rows.append((workload, tool, COMPARES[tool], rule, *counts, f"{took:.1f}"))
    planted = [f"+{100 * plant:g} % caught" if plant else "false alarms, A/A" for plant in plants]
    columns = ("workload", "tool", "compares", "fails at", *planted, "seconds a verdict")
    return tabulate.tabulate(rows, columns, tablefmt="github", disable_numparse=True)


def main(arguments: Sequence[str] | None = None) -> list[Verdict]:
    """Run it, print the table, and give the verdicts."""
    options = parse(arguments)
    plants = [0.0, *options.plants]
    verdicts: list[Verdict] = []
    started = time.monotonic()
    with contextlib.ExitStack() as cleanup:
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory()))
        write_project(folder)
        if options.busy:
            cleanup.enter_context(busy_neighbours())
        for repeat in range(options.repeats):
            # In turn, so that neither tool always has the better part of the machine's day.
            for tool in (with_benchmark, with_perfsuite) if repeat % 2 else (with_perfsuite, with_benchmark):
                verdicts += tool(folder, plants, options.workloads, options.seconds)
            took = time.monotonic() - started
            print(f"repeat {repeat + 1} of {options.repeats}, {took:.0f} s so far", file=sys.stderr, flush=True)
    machine = "a busy process on each core" if options.busy else "the machine as it is"
    print(f"{plural(options.repeats, 'repeat')}, {options.seconds:g} s a side, {machine}:\n")
    print(table(verdicts, plants))
    return verdicts


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line. Bad values end the program, with a message that names the option."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=_count, default=5, help="how often each tool runs all (default: 5)")
    parser.add_argument("--seconds", type=_positive, default=2.5, help="seconds a side and gate (default: 2.5)")
    parser.add_argument("--busy", action="store_true", help="beside a process on each core that computes all the time")
    parser.add_argument(
        "--plants", type=_positive, nargs="+", default=[0.03, 0.1], help="slowdowns to plant (default: 0.03 0.1)"
    )
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS), help="default: all")
    return parser.parse_args(arguments)


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"must be a whole number above zero, got {text!r}")
    return int(text)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"must be a number above zero, got {text!r}")
    return value


if __name__ == "__main__":
    main()
