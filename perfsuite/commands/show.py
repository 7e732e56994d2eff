"""Print a baseline file for people.

First where its metrics were made, then every metric with its interval, test by
test.
"""

import argparse

from perfsuite.gate.baseline import PROVENANCES
from perfsuite.measure.measurement import KINDS

SUMMARY = "print a baseline file for people"

_EXAMPLES = """examples:
  perfsuite show baselines/tpu-v5e.json
  perfsuite show baselines/cpu.json "*host calls*" --kind count
  perfsuite show main:baselines/cpu.json test_generation
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EXAMPLES
    parser.add_argument("file", metavar="FILE", help="a baseline file, or REVISION:PATH of git")
    parser.add_argument(
        "pattern",
        metavar="PATTERN",
        nargs="?",
        help="only metrics whose test or name contains it, or matches it with * and ?",
    )
    parser.add_argument(
        "--kind", action="append", choices=KINDS, default=[], help="only metrics of this kind; may be given again"
    )
    parser.add_argument(
        "--provenance",
        action="append",
        choices=PROVENANCES,
        default=[],
        help="only metrics that were measured, compiled or reported; may be given again",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the file."""
    from perfsuite.commands import CommandError
    from perfsuite.history.selecting import select
    from perfsuite.history.source import SourceError, named
    from perfsuite.report.terminal.baselines import shown
    from perfsuite.report.terminal.output import style

    try:
        source = named(arguments.file)
    except SourceError as error:
        raise CommandError(str(error)) from None
    selected = select(source.baselines, arguments.pattern, arguments.kind, arguments.provenance)
    if source.baselines.metrics and not selected.metrics:
        raise CommandError(f"{source.name}: none of its metrics is of this name, kind and provenance")
    print("\n".join(shown(source, selected, style())))
    return 0
