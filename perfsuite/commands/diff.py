"""Say what differs between two baseline files, by the gate's rules.

Noise is not called worse: a metric is worse where a gate with the older metric
on file would fail, and the two intervals lie apart. Given a revision alone,
every file of the folder `baselines` is held against what it was then.
"""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfsuite.history.source import Source

SUMMARY = "say what differs between two baseline files, by the gate's rules"

_EXAMPLES = """examples:
  perfsuite diff main                                 every file of baselines/
  perfsuite diff main baselines/cpu.json              one file
  perfsuite diff v1.0:baselines/cpu.json main:baselines/cpu.json
  perfsuite diff downloaded/cpu.json baselines/cpu.json --fail-on-worse
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EXAMPLES
    parser.add_argument("old", metavar="OLD", help="a baseline file, REVISION:PATH of git, or a REVISION of NEW")
    parser.add_argument(
        "new",
        metavar="NEW",
        nargs="?",
        default="baselines",
        help="a baseline file, REVISION:PATH, or a folder of baseline files (default: baselines)",
    )
    parser.add_argument("pattern", metavar="PATTERN", nargs="?", help="only metrics whose test or name matches it")
    parser.add_argument(
        "--all", action="store_true", help="list every metric, also those that are the same, tolerated or never gate"
    )
    parser.add_argument("--fail-on-worse", action="store_true", help="exit with 1 where a metric is worse")


def run(arguments: argparse.Namespace) -> int:
    """Print the differences; 1 with --fail-on-worse where a metric is worse, 0 else."""
    from perfsuite.commands import CommandError
    from perfsuite.history.comparing import compare
    from perfsuite.history.selecting import select
    from perfsuite.history.source import SourceError
    from perfsuite.report.terminal.baselines import differences
    from perfsuite.report.terminal.output import style

    worse = False
    try:
        pairs = list(_pairs(arguments.old, arguments.new))
    except SourceError as error:
        raise CommandError(str(error)) from None
    for place, (old, new) in enumerate(pairs):
        found = compare(*(select(source.baselines, arguments.pattern) for source in (old, new)))
        worse = worse or any(each.outcome == "worse" for each in found)
        if place:
            print()
        print("\n".join(differences(old, new, found, arguments.all, style())))
    return 1 if worse and arguments.fail_on_worse else 0


def _pairs(old: str, new: str) -> Iterator[tuple["Source", "Source"]]:
    from perfsuite.history.source import SourceError, baseline_files, files_at, gating, named, nothing, on_disk

    folder = Path(new)
    if not folder.is_dir():
        after_one = gating(named(new))
        yield gating(named(old, default=lambda: folder)), after_one
        return
    if Path(old).is_file():
        raise SourceError(f"{new} is a folder, and {old} a file: name the two files")
    if Path(old).is_dir():
        before = {path.name: on_disk(path) for path in baseline_files(Path(old))}
    else:
        before = files_at(old, folder)
    after = {path.name: on_disk(path) for path in baseline_files(folder)}
    for name in sorted({**before, **after}):
        in_old, in_new = before.get(name), after.get(name)
        device = os.path.splitext(name)[0]
        yield in_old or nothing(f"{old} (no {name})", device), in_new or nothing(f"{new} (no {name})", device)
