"""Real pytest sessions of comparisons whose truth is known, one after another, and their verdicts.

    python tests/promise/sessions.py two_builds
    python tests/promise/sessions.py leftovers --sessions 3 --calls unreturned
    python tests/promise/sessions.py another_day --folder /tmp/another_day --sessions 40 --machines busy

prints a Markdown table of the gates, and how many sessions failed. A session takes 15 to 40 seconds. With `--folder` the
outcomes are kept, and only the sessions run that the folder lacks.

- `two_builds`: the same code built twice in a fresh process, each time with closures, dictionaries, compiled programs and
  arrays of its own, with `Budget(ratio=1.02)`: every gate that fails is a false alarm. How the ratio scatters between the
  processes no number of pairs in one process shows.
- `leftovers`: a candidate that leaves a program running whose output it does not return, with `Budget(ratio=1.05)`. Who
  waits for its output does not wait for that program, which then takes its time from whatever runs next. Each gate of
  `unreturned` that does not fail is a miss; the control returns both outputs, on both sides.
- `another_day`: baselines of ten comparisons of unlike calls, saved once on the quiet machine, and gates of the same code
  in later sessions, in turns on the machine as it is and beside a process on each core that computes: every one that fails
  is a false alarm. `--pytest=-o --pytest=perf_tolerance=0.5` tries another tolerance.
- `python`: the interpreter's own work, ten times against once, and once against once, with `Budget(ratio=1.5)`. A control.
"""

import argparse
import contextlib
import dataclasses
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import tabulate
from support.busy import busy_neighbours

from perfsuite.gate.baseline_file import load
from perfsuite.measure.serialise import from_plain, plain
from promise.calls import BUILDS, LEFTOVERS, PYTHON, UNLIKE, Maker

ROOT = Path(__file__).parents[2]

COUNTED = ("fail", "inconclusive", "improved", "pass")

_OUTCOMES = "outcomes.jsonl"
MACHINES = {"quiet": contextlib.nullcontext, "busy": busy_neighbours}
"""What runs beside a session, by the name of the machine."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One comparison in one session. `verdict` is the one that says most; `seconds` are those of its test."""

    session: int
    machine: str
    name: str
    verdict: str
    ratio: float
    seconds: float


TESTS = """
import pytest
from promise.sessions import EXPERIMENTS

from perfsuite import Budget

experiment = EXPERIMENTS[{name!r}]


@pytest.mark.parametrize("name", experiment.compared)
def test(perf, name):
    candidate, reference = experiment.compared[name]
    perf.compare(candidate(), reference(), Budget(ratio=experiment.budget), name=name)
"""


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Sessions of the same comparisons, again and again: `compared` has the makers of both sides, by name.

    The sessions run on each of `machines` in turn. Without a `budget`, one session before all others saves baselines.
    """

    compared: Mapping[str, tuple[Maker, Maker]]
    budget: float | None = None
    machines: Sequence[str] = ("quiet",)

    def main(self, arguments: Sequence[str] | None = None) -> list[Outcome]:
        """Run the sessions that are missing, print the table of all, and give their outcomes."""
        options = self._parse(arguments)
        tests = TESTS.format(name=next(name for name, experiment in EXPERIMENTS.items() if experiment is self))
        with contextlib.ExitStack() as cleanup:
            folder = options.folder or Path(cleanup.enter_context(tempfile.TemporaryDirectory()))
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
            (folder / "test_promise.py").write_text(tests, encoding="utf-8")
            outcomes = self._run(folder.resolve(), options)
        print(table(outcomes))
        for machine in dict.fromkeys(outcome.machine for outcome in outcomes):
            of = [outcome for outcome in outcomes if outcome.machine == machine]
            failed = {outcome.session for outcome in of if outcome.verdict == "fail"}
            print(f"\n{machine}: {len(failed)} of {len({outcome.session for outcome in of})} sessions failed")
        return outcomes

    def _run(self, folder: Path, options: argparse.Namespace) -> list[Outcome]:
        common = f"--perf-seconds={options.seconds:g}", *options.pytest
        outcomes = read(folder / _OUTCOMES)
        done = {(outcome.session, outcome.machine, outcome.name) for outcome in outcomes}
        if self.budget is None and not list((folder / "baselines").glob("*.json")):
            _pytest(folder, "quiet", [*self.compared], "--perf-save", *common)
            files = [load(path) for path in (folder / "baselines").glob("*.json")]
            saved = sum(
                entry.kind == "ratio" for file in files for of in file.metrics.values() for entry in of.values()
            )
            print(f"saved {saved} of {len(self.compared)} ratios", file=sys.stderr, flush=True)
        for session in range(1, options.sessions + 1):
            for machine in options.machines:
                if missing := [name for name in options.calls if (session, machine, name) not in done]:
                    started = time.monotonic()
                    outcomes_of_session = verdicts(
                        _pytest(folder, machine, missing, "--perf", *common), session, machine
                    )
                    write(folder / _OUTCOMES, outcomes_of_session)
                    outcomes += outcomes_of_session
                    took = f"{time.monotonic() - started:.0f} s"
                    print(f"session {session} of {options.sessions}, {machine}: {took}", file=sys.stderr, flush=True)
        return outcomes

    def _parse(self, arguments: Sequence[str] | None) -> argparse.Namespace:
        """The command line. Bad values end the program, with a message that names the option."""
        parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
        add = parser.add_argument
        add("--sessions", type=int, default=20, help="on each machine (default: 20)")
        add("--seconds", type=float, default=5.0, help="most sampling for one gate (default: 5)")
        add("--calls", nargs="+", choices=self.compared, default=[*self.compared], metavar="CALL", help=f"by default {', '.join(self.compared)}")  # fmt: skip
        add("--machines", nargs="+", choices=MACHINES, default=self.machines, help="as it is, or beside a process on each core that computes")  # fmt: skip
        add("--folder", type=Path, help="keep the outcomes in this folder, and run only the sessions that it lacks")
        add("--pytest", action="append", default=[], metavar="OPTION", help="one more option of pytest, such as --pytest=--perf-strict")  # fmt: skip
        return parser.parse_args(arguments)


def _pytest(folder: Path, machine: str, names: Sequence[str], *arguments: str) -> dict[str, Any]:
    """One session of the tests of these names, in a process of its own. Gives its report, or raises `RuntimeError` with the output."""
    report = folder / "report" / "report.json"
    report.unlink(missing_ok=True)
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "PYTEST_ADDOPTS": "-p no:hypothesispytest -p no:jaxtyping"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--perf-report={report.parent}", *arguments]
    command += [f"test_promise.py::test[{name}]" for name in names]
    with MACHINES[machine]():
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if not report.exists():
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return json.loads(report.read_text(encoding="utf-8"))


def verdicts(report: Mapping[str, Any], session: int, machine: str) -> list[Outcome]:
    """The outcomes in a session's report. Raises `RuntimeError` for a test that failed for another reason."""
    outcomes = []
    for test in report["tests"]:
        results = [result for result in test["results"] if " ratio to " in result["title"]]
        given = [result["verdict"] for result in results]
        if not given or (test["outcome"] != "passed") is not ("fail" in given):
            raise RuntimeError(f"{test['test']} {test['outcome']}, its ratios {given}: {test['message']}")
        verdict = next((each for each in COUNTED if each in given), given[0])
        name = test["test"].partition("[")[2].removesuffix("]")
        outcomes.append(Outcome(session, machine, name, verdict, results[0]["metric"]["value"], test["seconds"]))
    return outcomes


def read(path: Path) -> list[Outcome]:
    """The outcomes in a file; none where there is no file yet."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [from_plain(Outcome, json.loads(line)) for line in lines]


def write(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Add the outcomes of one session to the file, a line each."""
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(json.dumps(plain(outcome)) + "\n" for outcome in outcomes))


def table(outcomes: Sequence[Outcome]) -> str:
    """The Markdown table: how often each comparison failed, and how its ratio scatters between sessions."""
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.name, outcome.machine), []).append(outcome)
    lines = []
    for (name, machine), of in groups.items():
        counts = [sum(outcome.verdict == verdict for outcome in of) for verdict in COUNTED]
        logs = [math.log(outcome.ratio) for outcome in of]
        scatter = f"{100 * statistics.stdev(logs):.2g} %" if len(of) > 1 else ""
        ratio = f"{math.exp(statistics.median(logs)):.4g}"
        seconds = f"{statistics.median(outcome.seconds for outcome in of):.1f}"
        lines.append((name, machine, len(of), *counts, len(of) - sum(counts), ratio, scatter, seconds))
    columns = ("compared", "machine", "gates", "failed", "inconclusive", "improved", "passed", "not gated", "ratio", "its standard deviation between sessions", "median s")  # fmt: skip
    return tabulate.tabulate(lines, columns, tablefmt="github", disable_numparse=True)


EXPERIMENTS = {
    "two_builds": Experiment({name: (maker, maker) for name, maker in BUILDS.items()}, budget=1.02),
    "leftovers": Experiment(LEFTOVERS, budget=1.05),
    "another_day": Experiment(UNLIKE, machines=("quiet", "busy")),
    "python": Experiment(PYTHON, budget=1.5),
}

if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in EXPERIMENTS:
        EXPERIMENTS[sys.argv[1]].main(sys.argv[2:])
    else:
        sys.exit(f"{sys.argv[0]} needs one of {', '.join(EXPERIMENTS)}, then --help for its options")
