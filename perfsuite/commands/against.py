"""Run the perf tests with two sets of packages, and report what got worse.

perfsuite creates two virtual environments, both like the present one except for
the named packages, and runs the tests in both. The gate's rules compare counts,
sizes and ratios; pairs of processes in random order compare times. Arguments
for pytest come last, after `--`.
"""

import argparse
import contextlib
import json
import math
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from perfsuite.commands import CommandError
from perfsuite.measure.io import write_atomically
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
    add("--rounds", type=_rounds, default=ROUNDS, metavar="N", help=f"{rounds} (default: {ROUNDS})")
    add("--minutes", type=_above_zero, metavar="M", help=minutes)
    add("--seconds", type=_above_zero, default=SECONDS, metavar="S", help=seconds)
    add("--keep", type=Path, metavar="DIR", help=keep)
    add("--json", type=Path, metavar="FILE", help="also write all results to this file")
    add("--all", action="store_true", help="also list the metrics that did not change")
    _split_at_dashes(parser)


def _split_at_dashes(parser: argparse.ArgumentParser) -> None:
    """Leave what follows `--` to pytest: argparse would count it among the packages."""
    parse = parser.parse_known_args

    def parse_known_args(args: Any = None, namespace: Any = None) -> Any:
        given = list(sys.argv[1:] if args is None else args)
        end = given.index("--") if "--" in given else len(given)
        options, unknown = parse(given[:end], namespace)
        options.pytest_arguments = given[end + 1 :]
        return options, unknown

    parser.parse_known_args = parse_known_args  # type: ignore[method-assign]


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
        _check_writable(arguments.json)
        with _ended_by_sigterm(), _scratch_folder() as scratch:
            found = check(
                arguments.before,
                arguments.specs,
                arguments.pytest_arguments,
                effort,
                scratch=Path(scratch),
                keep=arguments.keep,
                say=_say,
            )
    except (EnvironmentFailed, CheckFailed) as error:
        raise CommandError(str(error)) from None
    print("\n".join(check_lines(found, everything=arguments.all, paint=style())))
    if arguments.json is not None:
        _write(arguments.json, json.dumps(found.to_dict(), indent=1))
    if not (found.compared or found.worse):
        raise CommandError(
            "no metric was made with both sets of packages, so nothing is compared: see above which tests did not "
            "pass, and why"
        )
    return 1 if found.worse else 0


def _scratch_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="perfsuite-against-", ignore_cleanup_errors=True)


def _say(text: str) -> None:
    print(f"perfsuite: {text}", file=sys.stderr, flush=True)


def _write(path: Path, text: str) -> None:
    try:
        write_atomically(path, text)
    except OSError as error:
        raise CommandError(f"--json {path}: cannot be written ({error.strerror or error})") from None


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the check as Ctrl-C does: its process ends with it, and its scratch folder is removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _check_writable(path: Path | None) -> None:
    """Before minutes of work, not after them."""
    if path is not None and not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
        raise CommandError(f"--json {path}: there is no writable folder {path.parent}: make it first")


def _rounds(text: str) -> int:
    if not text.isdecimal() or int(text) == 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of 2 or more, or 0 for no times, got {text!r}")
    return int(text)


def _above_zero(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"must be a number above zero, got {text!r}")
    return value
