"""Run the perf tests with two sets of packages, and report what got worse.

perfsuite creates two virtual environments, both like the present one except for
the named packages, and runs the tests in both. The gate's rules compare counts,
sizes and ratios; pairs of processes in random order compare times. Arguments
for pytest come last, after `--`.
"""

import argparse
from pathlib import Path

from perfsuite.commands import CommandError
from perfsuite.commands.working import (
    above_zero,
    check_writable,
    ended_by_sigterm,
    number_of_rounds,
    say,
    scratch_folder,
    split_at_dashes,
    write_json,
)
from perfsuite.report.terminal.output import style

SUMMARY = "run the perf tests with other versions of packages, and report what got worse and where"

EXAMPLES = """examples:
  perfsuite against "jax==0.10.2"
  perfsuite against "jax==0.10.2" --from "jax==0.10.0" -- -k step
"""

ROUNDS = 10
SECONDS = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments; pytest gets those after `--`."""
    spec = 'a package to try, as pip takes it: "jax==0.10.2", or a folder'
    before = "what to compare with (default: the packages as they are)"
    rounds = "processes of each side that take the times, 5 and 5 in random order; 0 compares no times"
    minutes = "about how long these processes may take in all; there are at least ten"
    seconds = f"most time for one timing in each of these processes (default: {SECONDS:g})"
    keep = "keep the environments in this folder, and reuse those in it"
    add = parser.add_argument
    add("specs", nargs="+", metavar="SPEC", help=spec)
    add("--from", dest="before", nargs="+", default=[], metavar="SPEC", help=before)
    add("--rounds", type=number_of_rounds, default=ROUNDS, metavar="N", help=f"{rounds} (default: {ROUNDS})")
    add("--minutes", type=above_zero, metavar="M", help=minutes)
    add("--seconds", type=above_zero, default=SECONDS, metavar="S", help=seconds)
    add("--keep", type=Path, metavar="DIR", help=keep)
    add("--json", type=Path, metavar="FILE", help="also write all results to this file")
    add("--all", action="store_true", help="also list the metrics that did not change")
    split_at_dashes(parser)


def run(arguments: argparse.Namespace) -> int:
    """Create the environments, run the tests, print what changed; returns 1 when something is worse.

    Raises `CommandError` where nothing could be compared.
    """
    # Here, not above: `perfsuite --help` loads every command, and these import numpy.
    from perfsuite.against.check import CheckFailed, check
    from perfsuite.against.environments import EnvironmentFailed, check_specs
    from perfsuite.against.runs import Effort
    from perfsuite.report.terminal.against import check_lines

    effort = Effort(arguments.rounds, arguments.minutes, arguments.seconds)
    try:
        check_specs(arguments.specs)
        check_specs(arguments.before)
        check_writable(arguments.json)
        with ended_by_sigterm(), scratch_folder("against") as scratch:
            found = check(
                arguments.before,
                arguments.specs,
                arguments.pytest_arguments,
                effort,
                scratch=Path(scratch),
                keep=arguments.keep,
                say=say,
            )
    except (EnvironmentFailed, CheckFailed) as error:
        raise CommandError(str(error)) from None
    print("\n".join(check_lines(found, everything=arguments.all, paint=style())))
    if arguments.json is not None:
        write_json(arguments.json, found.to_dict())
    if not (found.compared or found.worse):
        raise CommandError(
            "no metric was made with both sets of packages, so nothing is compared: see above which tests did not "
            "pass, and why"
        )
    return 1 if found.worse else 0
