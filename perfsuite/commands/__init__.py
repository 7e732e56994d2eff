"""The command line beside pytest's: `perfsuite show`, `diff`, `history` and `upgrade-check`.

One module a command, named as it is (with `_` for `-`); each has `SUMMARY` (one line for `perfsuite --help`),
`add_arguments(parser)` and `run(arguments) -> int`, the exit status. A command that cannot go on raises `CommandError`.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

COMMANDS = ("show", "diff", "history", "upgrade-check")


class CommandError(Exception):
    """What the user gave cannot be worked with: the message names the file or argument, and what to do."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, with the arguments of the process where none are given; the exit status.

    A reader that goes away (`| head`) ends the command with the status that a shell gives for it, 141.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog="perfsuite", description="Read, compare and follow the baselines that `pytest --perf-save` records."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    # Of a command that is named, the others need not be loaded.
    for name in given[:1] if given[:1] and given[0] in COMMANDS else COMMANDS:
        module = _module(name)
        module.add_arguments(commands.add_parser(name, help=module.SUMMARY, description=module.__doc__))
    options = parser.parse_args(given)
    try:
        status = _module(options.command).run(options)
        sys.stdout.flush()
        return status
    except CommandError as error:
        print(f"perfsuite {options.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Python flushes once more on its way out, and must find something that takes it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _module(command: str) -> Any:
    return import_module(f"{__name__}.{command.replace('-', '_')}")
