"""What the commands share that run the perf tests for minutes, in processes of their own."""

import argparse
import contextlib
import json
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


def split_at_dashes(parser: argparse.ArgumentParser) -> None:
    """Leave what follows `--` to pytest: argparse would count it among the packages."""
    parse = parser.parse_known_args

    def parse_known_args(args: Any = None, namespace: Any = None) -> Any:
        given = list(sys.argv[1:] if args is None else args)
        end = given.index("--") if "--" in given else len(given)
        options, unknown = parse(given[:end], namespace)
        options.pytest_arguments = given[end + 1 :]
        return options, unknown

    parser.parse_known_args = parse_known_args  # type: ignore[method-assign]


def scratch_folder(command: str) -> tempfile.TemporaryDirectory[str]:
    """A folder that is gone afterwards."""
    return tempfile.TemporaryDirectory(prefix=f"perfsuite-{command}-", ignore_cleanup_errors=True)


def say(text: str) -> None:
    """Tell what begins, beside what the command prints."""
    print(f"perfsuite: {text}", file=sys.stderr, flush=True)


def write_json(path: Path, values: Any) -> None:
    """What --json asks for."""
    write_text("--json", path, json.dumps(values, indent=1))


def write_text(option: str, path: Path, text: str) -> None:
    """What an option asks for."""
    try:
        write_atomically(path, text)
    except OSError as error:
        raise CommandError(f"{option} {path}: cannot be written ({error.strerror or error})") from None


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the command as Ctrl-C does: its process ends with it, and its scratch folder is removed."""
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


def check_writable(path: Path | None, option: str = "--json") -> None:
    """Whether a file can be written, before minutes of work and not after them."""
    if path is not None and not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
        raise CommandError(f"{option} {path}: there is no writable folder {path.parent}: make it first")
