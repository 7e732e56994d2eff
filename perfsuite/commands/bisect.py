"""Find the commit, or the release of a package, since which a metric is worse.

The metric is one that `perfsuite show` prints, as "TEST::METRIC"; the perf test of
the working tree runs at each step, and the gate's rules say which end a step is
like. The bad end may also be the older one: then the answer is the first good
step. With --package, the steps are releases, each in an environment of its own;
of several packages it finds first which one it takes. An interrupted search goes
on where it was. Arguments for pytest come last, after `--`.

Exits with 0 when the step is found, 1 when steps that could not be tried leave
several, 2 when nothing can be searched.
"""

import argparse
from pathlib import Path

from perfsuite.commands import CommandError
from perfsuite.commands.working import (
    check_writable,
    ended_by_sigterm,
    number_of_rounds,
    say,
    scratch_folder,
    split_at_dashes,
    write_json,
)
from perfsuite.options.values import above_zero
from perfsuite.report.terminal.output import style

SUMMARY = "find the commit, or the release of a package, since which a metric is worse"

EXAMPLES = """examples:
  perfsuite bisect --good v1.2 --bad HEAD "tests/test_a.py::test_step::step host calls"
  perfsuite bisect --package jax --good 0.10.0 --bad 0.10.2 "tests/test_a.py::test_step::step fusions"
  perfsuite bisect --package jax==0.10.0..0.10.2 --package flax==0.12.1..0.12.8 "tests/test_a.py::test_step::step flops"
"""

ROUNDS = 60
SECONDS = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments; pytest gets those after `--`."""
    metric = "a metric of a test as `perfsuite show` prints them, or a test with one count or size that is worse"
    package = "search the releases of this package; NAME==GOOD..BAD for each of several that changed together"
    rounds = f"of a time: most processes of each side at a step (default: {ROUNDS})"
    seconds = f"of a time: how long one timing takes in each of these processes (default: {SECONDS:g})"
    keep = (
        "keep the environments in this folder, and the steps that were tried (default: the steps, in the user's cache)"
    )
    add = parser.add_argument
    add("metric", metavar="TEST::METRIC", help=metric)
    add("--good", metavar="REV", help="a commit, or a version of the package, where the metric is good")
    add("--bad", metavar="REV", help="one where it is worse, older or newer")
    add("--package", action="append", default=[], metavar="NAME", help=package)
    add("--pre", action="store_true", help="also try releases that are called alpha, beta, candidate or development")
    add("--rounds", type=_rounds, default=ROUNDS, metavar="N", help=rounds)
    add("--seconds", type=above_zero("seconds"), default=SECONDS, metavar="S", help=seconds)
    add("--keep", type=Path, metavar="DIR", help=keep)
    add("--again", action="store_true", help="try steps again that an earlier search kept")
    add("--json", type=Path, metavar="FILE", help="also write the steps and the answer to this file")
    split_at_dashes(parser)


def _rounds(text: str) -> int:
    rounds = number_of_rounds(text)
    if not rounds:
        raise argparse.ArgumentTypeError("must be 2 or more, got '0'")
    return rounds


def run(arguments: argparse.Namespace) -> int:
    """Search, and print what was tried and what did it. Raises `CommandError` where nothing can be searched."""
    # Here, not above: `perfsuite --help` loads every command, and these import numpy.
    from perfsuite.against.environments import EnvironmentFailed, locked
    from perfsuite.against.runs import Effort
    from perfsuite.bisecting.bisection import Request, over_commits, over_packages
    from perfsuite.bisecting.found import BisectFailed
    from perfsuite.bisecting.metric import reading
    from perfsuite.bisecting.releases import read_packages
    from perfsuite.measure.io import user_cache
    from perfsuite.report.terminal.bisect import bisection_lines

    check_writable(arguments.json)
    try:
        with ended_by_sigterm(), scratch_folder("bisect") as scratch, locked(arguments.keep):
            request = Request(
                reading(arguments.metric),
                tuple(arguments.pytest_arguments),
                Effort(arguments.rounds, None, arguments.seconds),
                scratch=Path(scratch),
                keep=arguments.keep,
                folder=arguments.keep or user_cache(),
                again=arguments.again,
                say=say,
            )
            if arguments.package:
                named = read_packages(arguments.package, arguments.good, arguments.bad)
                found = over_packages(request, named, pre=arguments.pre)
            elif arguments.good and arguments.bad:
                found = over_commits(request, arguments.good, arguments.bad)
            else:
                raise CommandError("say where it is good and where it is worse: --good REV --bad REV")
    except (BisectFailed, EnvironmentFailed) as error:
        raise CommandError(str(error)) from None
    print("\n".join(bisection_lines(found, style())))
    if arguments.json is not None:
        write_json(arguments.json, found.to_dict())
    return 0 if found.exact else 1
