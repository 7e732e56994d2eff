"""Run the perf tests on a commit and on the working tree: what got worse.

perfsuite puts the commit into a git worktree, lays the perf tests of the
working tree over it, and runs them on both. The gate's rules compare what is
exact; processes of both sides in random order compare times, of the tests whose
exact metrics or code changed. Packages can differ too, or alone. Arguments for
pytest come last, after `--`.
"""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from perfsuite.commands import CommandError, check_output, say, scratch_folder, write_text
from perfsuite.options import above_zero
from perfsuite.report.tables import style

if TYPE_CHECKING:  # it imports numpy: see `run`
    from perfsuite.against.changes import Check

SUMMARY = "run the perf tests on a commit and on the working tree, or with other packages: what got worse, and where"

EXAMPLES = """examples:
  perfsuite against
  perfsuite against v1.2 --time=none -- tests/perf -k step
  perfsuite against --with "jax==0.10.2"
  perfsuite against --with jax==0.10.2 --base-with jax==0.10.0 -- -k step
"""

MINUTES = 10.0
SECONDS = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments; pytest gets those after `--`."""
    revision = "the commit to compare with (default: the merge base with main, or with master or origin's branch)"
    spec = 'a package as uv takes it: "jax==0.10.2", or a folder'
    head = (
        f"packages of the head in the place of the present ones; without REV, the base is the working tree too; {spec}"
    )
    times = "which tests are timed: those that changed in what is exact or in what they run, all, or none"
    minutes = f"about how long the processes that take times may run in all (default: {MINUTES:g})"
    seconds = f"how long one timing takes in each of these processes (default: {SECONDS:g})"
    add = parser.add_argument
    add("revision", nargs="?", metavar="REV", help=revision)
    add("--with", dest="head", nargs="+", default=[], metavar="SPEC", help=head)
    add("--base-with", dest="base", nargs="+", default=[], metavar="SPEC", help="the same for the base")
    add("--time", choices=("changed", "all", "none"), default="changed", help=f"{times} (default: changed)")
    add("--minutes", type=above_zero("a number of minutes"), default=MINUTES, metavar="M", help=minutes)
    add("--seconds", type=above_zero("a number of seconds"), default=SECONDS, metavar="S", help=seconds)
    add("--json", type=Path, metavar="FILE", help="also write all results to this file")
    add("--markdown", type=Path, metavar="FILE", help="also write a report for a pull request's comment")
    add("--all", action="store_true", help="also list the metrics that did not change")


def run(arguments: argparse.Namespace) -> int:
    """Make both sides, run the tests, print what changed; returns 1 when something is worse.

    Raises `CommandError` where nothing could be compared.
    """
    # Here, not above: `perfsuite --help` loads every command, and these import numpy.
    from perfsuite.report.against import against_markdown, check_lines

    for option, path in {"--json": arguments.json, "--markdown": arguments.markdown}.items():
        check_output(path, option)
    check = _check(arguments)
    print("\n".join(check_lines(check, everything=arguments.all, paint=style())))
    if arguments.json is not None:
        write_text("--json", arguments.json, json.dumps(check.to_dict(), indent=1))
    if arguments.markdown is not None:
        write_text("--markdown", arguments.markdown, against_markdown(check))
    if not (check.compared or check.worse or check.only_new):
        raise CommandError(
            "no metric was made on both sides, so nothing is compared: see above which tests did not pass, and why"
        )
    return 1 if check.worse else 0


def _check(arguments: argparse.Namespace) -> "Check":
    from perfsuite.against.changes import check  # see `run`
    from perfsuite.against.runs import Effort, both_sides
    from perfsuite.against.sides import SideFailed, package_name
    from perfsuite.git import GitError

    specs, of_pytest = (arguments.base, arguments.head), arguments.pytest_arguments
    revision = arguments.revision if any(specs) else arguments.revision or ""
    effort = Effort(arguments.minutes, arguments.seconds)
    try:
        for spec in (*arguments.base, *arguments.head):
            package_name(spec)
        with scratch_folder("against") as scratch:
            say("what is to compare: the code and the packages of both sides")
            with both_sides(revision, specs, of_pytest, scratch) as (base, head):
                return check(base, head, of_pytest, effort, timed=arguments.time, scratch=scratch, say=say)
    except (SideFailed, GitError) as error:
        raise CommandError(str(error)) from None
