"""Find the commit, or the release of a package, since which a metric is worse.

The metric is one that `perfsuite show` prints, as "TEST::METRIC"; the perf test of
the working tree runs at each step, and the gate's rules say which end a step is
like. The bad end may also be the older one: then the answer is the first good
step. `git bisect` chooses the commits. With --package, the steps are releases; of
several packages that changed together it is one release of one of them. Arguments
for pytest come last, after `--`.

Exits with 0 when the step is found, 1 when steps that could not be tried leave
several, 2 when nothing can be searched.
"""

import argparse
import json
from pathlib import Path

from perfsuite.commands import CommandError, check_output, say, scratch_folder, write_text
from perfsuite.measure.serialise import plain
from perfsuite.options import above_zero
from perfsuite.report.tables import style

SUMMARY = "find the commit, or the release of a package, since which a metric is worse"

EXAMPLES = """examples:
  perfsuite bisect --good v1.2 --bad HEAD "tests/test_a.py::test_step::step host calls"
  perfsuite bisect --package jax==0.10.0..0.10.2 "tests/test_a.py::test_step::step fusions"
  perfsuite bisect --package jax==0.10.0..0.10.2 --package flax==0.12.1..0.12.8 "tests/test_a.py::test_step::step flops"
"""

MINUTES = 5.0
SECONDS = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments; pytest gets those after `--`."""
    package = "search the releases of this package, from a good one to a bad one; again for each that changed too"
    minutes = f"of a time: about how long the processes that take it may run at a step (default: {MINUTES:g})"
    seconds = f"of a time: how long one timing takes in each of these processes (default: {SECONDS:g})"
    add = parser.add_argument
    add("metric", metavar="TEST::METRIC", help="a metric of a test, as `perfsuite show` prints them")
    add("--good", metavar="REV", help="a commit where the metric is good")
    add("--bad", metavar="REV", help="one where it is worse, older or newer")
    add("--package", action="append", default=[], metavar="NAME==GOOD..BAD", help=package)
    add("--minutes", type=above_zero("a number of minutes"), default=MINUTES, metavar="M", help=minutes)
    add("--seconds", type=above_zero("a number of seconds"), default=SECONDS, metavar="S", help=seconds)
    add("--json", type=Path, metavar="FILE", help="also write the steps and the answer to this file")


def run(arguments: argparse.Namespace) -> int:
    """Search, and print what was tried and what did it. Raises `CommandError` where nothing can be searched."""
    # Here, not above: `perfsuite --help` loads every command, and these import numpy.
    from perfsuite.against.bisection import BisectFailed, Package, Wanted, over_commits, over_packages
    from perfsuite.against.runs import Effort
    from perfsuite.report.against import bisection_lines

    check_output(arguments.json)
    effort = Effort(arguments.minutes, arguments.seconds)
    try:
        wanted = Wanted.read(arguments.metric)
        packages = list(map(Package.read, arguments.package))
        of_pytest = arguments.pytest_arguments or [wanted.test]
        if bool(packages) == bool(arguments.good and arguments.bad):
            raise CommandError("say where it is good and where it is worse: --good REV --bad REV, or --package alone")
        with scratch_folder("bisect") as scratch:
            if packages:
                bisection = over_packages(wanted, packages, of_pytest, effort, scratch, say)
            else:
                bisection = over_commits(wanted, arguments.good, arguments.bad, of_pytest, effort, scratch, say)
    except BisectFailed as error:
        raise CommandError(str(error)) from None
    print("\n".join(bisection_lines(bisection, style())))
    if arguments.json is not None:
        write_text("--json", arguments.json, json.dumps({"schema": 3, **plain(bisection)}, indent=1))
    return 0 if len(bisection.suspects) == 1 else 1
