"""The command line beside pytest's: `perfsuite init`, `program`, `show`, `diff`, `against` and `bisect`.

Each command is a module of its name (with `_` for `-`) with `SUMMARY` (one line for `perfsuite --help`), `EXAMPLES`,
`add_arguments(parser)` and `run(arguments) -> int`, the exit status. A command that cannot go on raises `CommandError`,
or `SourceError` for a file that it cannot read.
"""

import argparse
import contextlib
import importlib.metadata
import io
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from perfsuite.gate.baseline_file import BaselineError, folder_here
from perfsuite.measure.io import write_atomically
from perfsuite.sources import SourceError

if TYPE_CHECKING:  # see `of_pytest`
    import pytest

T = TypeVar("T")

COMMANDS = ("init", "program", "show", "diff", "against", "bisect")

PATTERN_HELP = "only metrics whose test or name contains it, or matches it with * and ?"


class CommandError(Exception):
    """What the user gave cannot be used: the message names the file or argument, and says what to do."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, with the arguments of the process by default; returns the exit status.

    A reader that goes away (`| head`) ends the command with the status that a shell gives for it, 141.
    """
    options = read_arguments(list(sys.argv[1:] if arguments is None else arguments))
    try:
        status = _module(options.command).run(options)
        sys.stdout.flush()
        return status
    except (CommandError, SourceError) as error:
        print(f"perfsuite {options.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Python flushes once more when it exits, and needs a standard output that takes it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def read_arguments(words: Sequence[str]) -> argparse.Namespace:
    """The options of a command line; `pytest_arguments` is what follows `--` where a command takes some."""
    # argparse would count it among the packages.
    end = words.index("--") if "--" in words and words[0] in ("against", "bisect") else len(words)
    options = _parser(words).parse_args(words[:end])
    options.pytest_arguments = list(words[end + 1 :])
    return options


def project_baselines() -> Path:
    """The folder of this project's baselines, as pytest would find it from here: by its option, ini file and rootdir.

    It is that for the jax that is installed (`gate.baseline_file`). Raises `CommandError` where pytest refuses its
    configuration, or the folder is not in order.
    """

    def folder(config: "pytest.Config") -> Path:
        option = config.getoption("perf_baselines", None)
        return Path(option) if option else config.rootpath / config.getini("perf_baselines")

    try:
        return Path(os.path.relpath(folder_here(of_pytest(folder))))
    except (BaselineError, CommandError) as error:
        raise CommandError(f"name the file: {error}") from None


def of_pytest(ask: Callable[["pytest.Config"], T]) -> T:
    """What `ask` finds in pytest's configuration as it is from here. Raises `CommandError` where pytest refuses it."""
    import pytest  # the other commands start without it

    answers: list[T] = []

    class Asking:
        @pytest.hookimpl(tryfirst=True)
        def pytest_cmdline_main(self, config: pytest.Config) -> int:
            answers.append(ask(config))
            return 0

    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        # Plain, because pytest warns that it cannot rewrite perfsuite, which is imported here.
        pytest.main(["--noconftest", "--assert=plain"], plugins=[Asking()])
    if not answers:
        raise CommandError(f"pytest cannot read its configuration here: {errors.getvalue().strip()}")
    return answers[0]


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="perfsuite", description="Read and compare the baselines that `pytest --perf-save` records."
    )
    parser.add_argument("--version", action="version", version=f"perfsuite {importlib.metadata.version('perfsuite')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    # Load the named command alone, so that it starts fast.
    for name in words[:1] if words[:1] and words[0] in COMMANDS else COMMANDS:
        module = _module(name)
        command = commands.add_parser(
            name,
            help=module.SUMMARY,
            description=module.__doc__,
            epilog=module.EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
    return parser


def _module(command: str) -> Any:
    return import_module(f"{__name__}.{command.replace('-', '_')}")


def say(text: str) -> None:
    """Tell what begins, beside what the command prints."""
    print(f"perfsuite: {text}", file=sys.stderr, flush=True)


def write_text(option: str, path: Path, text: str) -> None:
    """Write the file of an option. Raises `CommandError`."""
    try:
        write_atomically(path, text)
    except OSError as error:
        raise CommandError(f"{option} {path}: cannot be written ({error.strerror or error})") from None


@contextlib.contextmanager
def scratch_folder(command: str) -> Iterator[Path]:
    """A folder that is removed after the block. SIGTERM ends the block as Ctrl-C does, with all that it started."""

    def stop(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    on_main_thread = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, stop) if on_main_thread else None
    try:
        with tempfile.TemporaryDirectory(prefix=f"perfsuite-{command}-", ignore_cleanup_errors=True) as name:
            yield Path(name)
    finally:
        if on_main_thread:
            signal.signal(signal.SIGTERM, before)


def check_output(path: Path | None, option: str = "--json") -> None:
    """Whether a file can be written, before minutes of work and not after them."""
    if path is not None and not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
        raise CommandError(f"{option} {path}: there is no writable folder {path.parent}: make it first")
