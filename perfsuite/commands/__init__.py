"""The command line beside pytest's: `perfsuite show`, `diff`, `history`, `against` and `bisect`.

Each command is a module of its name (with `_` for `-`) with `SUMMARY` (one line for `perfsuite --help`), `EXAMPLES`,
`add_arguments(parser)` and `run(arguments) -> int`, the exit status. A command that cannot go on raises `CommandError`,
or `HistoryError` for a file that it cannot read.
"""

import argparse
import contextlib
import importlib.metadata
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from perfsuite.history import HistoryError

COMMANDS = ("show", "diff", "history", "against", "bisect")

PATTERN_HELP = "only metrics whose test or name contains it, or matches it with * and ?"


class CommandError(Exception):
    """What the user gave cannot be used: the message names the file or argument, and says what to do."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, with the arguments of the process by default; returns the exit status.

    A reader that goes away (`| head`) ends the command with the status that a shell gives for it, 141.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser(given).parse_args(given)
    try:
        status = _module(options.command).run(options)
        sys.stdout.flush()
        return status
    except (CommandError, HistoryError) as error:
        print(f"perfsuite {options.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Python flushes once more when it exits, and needs a standard output that takes it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def project_baselines() -> Path:
    """The folder of this project's baselines, as pytest would find it from here: by its option, ini file and rootdir.

    Raises `CommandError` where pytest refuses its configuration.
    """
    import pytest  # the other commands start without it

    folders: list[Path] = []

    class Asking:
        @pytest.hookimpl(tryfirst=True)
        def pytest_cmdline_main(self, config: pytest.Config) -> int:
            given = config.getoption("perf_baselines", None)
            folders.append(Path(given) if given else config.rootpath / config.getini("perf_baselines"))
            return 0

    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        pytest.main(["--noconftest"], plugins=[Asking()])
    if not folders:
        raise CommandError(f"name the file: pytest cannot read its configuration here: {said.getvalue().strip()}")
    return Path(os.path.relpath(folders[0]))


def _parser(given: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="perfsuite", description="Read, compare and follow the baselines that `pytest --perf-save` records."
    )
    parser.add_argument("--version", action="version", version=f"perfsuite {importlib.metadata.version('perfsuite')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    # Load the named command alone, so that it starts fast.
    for name in given[:1] if given[:1] and given[0] in COMMANDS else COMMANDS:
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
