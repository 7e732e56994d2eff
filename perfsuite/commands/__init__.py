"""The command line beside pytest's: `perfsuite show`, `diff`, `history` and `upgrade-check`.

One module a command, named as it is (with `_` for `-`); each has `SUMMARY` (one line for `perfsuite --help`),
`add_arguments(parser)` and `run(arguments) -> int`, the exit status. A command that cannot go on raises `CommandError`.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

COMMANDS = ("show", "diff", "history", "upgrade-check")


class CommandError(Exception):
    """What the user gave cannot be worked with: the message names the file or argument, and what to do."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, with the arguments of the process where none are given; the exit status."""
    parser = argparse.ArgumentParser(
        prog="perfsuite", description="Read, compare and follow the baselines that `pytest --perf-save` records."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        module = import_module(f"{__name__}.{name.replace('-', '_')}")
        module.add_arguments(commands.add_parser(name, help=module.SUMMARY, description=module.__doc__))
    options = parser.parse_args(arguments)
    try:
        return import_module(f"{__name__}.{options.command.replace('-', '_')}").run(options)
    except CommandError as error:
        print(f"perfsuite {options.command}: {error}", file=sys.stderr)
        return 2
