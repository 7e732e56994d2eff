"""Run the perf tests with two sets of packages, and say what changed and where.

Two virtual environments are made, both as the present one but for the packages named. The tests run in both: counts,
sizes and ratios are compared by the gate's rules, times over pairs of processes in random order. Arguments for pytest
come last, after `--`: perfsuite upgrade-check "jax==0.10.2" --from "jax==0.10.0" -- tests/perf -k step
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
from perfsuite.report.terminal.output import style

SUMMARY = "run the perf tests with other versions of packages, and say what got worse and where"

ROUNDS = 10
SECONDS = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments; what follows `--` is pytest's."""
    parser.add_argument(
        "specs", nargs="+", metavar="SPEC", help='a package to try, as pip takes it: "jax==0.10.2", or a folder'
    )
    parser.add_argument(
        "--from",
        dest="before",
        nargs="+",
        default=[],
        metavar="SPEC",
        help="what to compare with (default: the packages as they are)",
    )
    parser.add_argument(
        "--rounds",
        type=_rounds,
        default=ROUNDS,
        metavar="N",
        help=f"processes of each side in which the times are taken, 5 and 5 in random order; 0 compares no times "
        f"(default: {ROUNDS})",
    )
    parser.add_argument(
        "--minutes",
        type=_above_zero,
        metavar="M",
        help="about how long these processes may take in all; ten of them are the least",
    )
    parser.add_argument(
        "--seconds",
        type=_above_zero,
        default=SECONDS,
        metavar="S",
        help=f"most time for one timing in each of these processes (default: {SECONDS:g})",
    )
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="keep the environments in this folder, and use those that are there"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was found to this file, too")
    parser.add_argument("--all", action="store_true", help="list the metrics too that did not change")
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
    """Make the environments, run the tests, print what changed; 1 where something is worse."""
    from perfsuite.report.terminal.upgrade import render
    from perfsuite.upgrade.check import CheckFailed, check
    from perfsuite.upgrade.environments import EnvironmentFailed, check_specs

    try:
        check_specs(arguments.specs)
        check_specs(arguments.before)
        _check_writable(arguments.json)
        with (
            _ended_by_sigterm(),
            tempfile.TemporaryDirectory(prefix="perfsuite-upgrade-", ignore_cleanup_errors=True) as scratch,
        ):
            found = check(
                arguments.before,
                arguments.specs,
                arguments.pytest_arguments,
                scratch=Path(scratch),
                keep=arguments.keep,
                rounds=arguments.rounds,
                minutes=arguments.minutes,
                seconds=arguments.seconds,
                say=_say,
            )
    except (EnvironmentFailed, CheckFailed) as error:
        raise CommandError(str(error)) from None
    print("\n".join(render(found, everything=arguments.all, paint=style())))
    if arguments.json is not None:
        _write(arguments.json, json.dumps(found.to_dict(), indent=1))
    return 1 if found.worse else 0


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the check as Ctrl-C does: the process that it runs ends with it, and its scratch folder goes."""
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


def _say(text: str) -> None:
    print(f"perfsuite: {text}", file=sys.stderr, flush=True)


def _check_writable(path: Path | None) -> None:
    """Before minutes of work, not after them."""
    if path is not None and not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
        raise CommandError(f"--json {path}: there is no folder {path.parent} that can be written to: make it first")


def _write(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.part")
    try:
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, path)
    except OSError as error:
        raise CommandError(f"--json {path}: cannot be written ({error.strerror or error})") from None


def _rounds(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0 or value == 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of 2 or more, or 0 for no times, got {text!r}")
    return value


def _above_zero(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"must be a number above zero, got {text!r}")
    return value
