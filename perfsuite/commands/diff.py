"""Show what differs between two baseline files, by the gate's rules.

A metric fails when a gate with the older metric as its baseline would. With a
revision alone, every file of the folder `baselines` is compared with that at
the revision. Without arguments, every file of this project is compared with
HEAD.
"""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

from perfsuite.commands import PATTERN_HELP, CommandError, project_baselines
from perfsuite.gate.baseline import Baselines
from perfsuite.gate.baseline_file import baseline_files
from perfsuite.gate.verdict import Verdict
from perfsuite.report.baselines import difference_lines
from perfsuite.report.tables import style
from perfsuite.sources import Source, compare, files_at, named, on_disk, select

SUMMARY = "show what differs between two baseline files, by the gate's rules"

EXAMPLES = """examples:
  perfsuite diff                                      all files with HEAD's
  perfsuite diff main                                 every file of baselines/
  perfsuite diff main baselines/cpu.json              one file
  perfsuite diff v1.0:baselines/cpu.json main:baselines/cpu.json
  perfsuite diff downloaded/cpu.json baselines/cpu.json --fail-on-worse
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "old", metavar="OLD", nargs="?", help="a baseline file, REVISION:PATH of git, or a REVISION of NEW"
    )
    parser.add_argument(
        "new",
        metavar="NEW",
        nargs="?",
        default="baselines",
        help="a baseline file, REVISION:PATH, or a folder of baseline files (default: baselines)",
    )
    parser.add_argument("pattern", metavar="PATTERN", nargs="?", help=PATTERN_HELP)
    parser.add_argument("--all", action="store_true", help="list every metric, also those that pass or never gate")
    parser.add_argument("--fail-on-worse", action="store_true", help="exit with 1 when a metric fails")


def run(arguments: argparse.Namespace) -> int:
    """Print the differences; with --fail-on-worse returns 1 when a metric fails, else 0."""
    worse = False
    old, new = arguments.old, arguments.new
    if old is None:
        old, new = "HEAD", str(project_baselines())
        if not Path(new).is_dir():
            raise CommandError(f"{new}: there is no such folder: pytest --perf-save writes baselines into it")
    pairs = list(_pairs(old, new))
    for place, (old, new) in enumerate(pairs):
        differences = compare(*(select(source.baselines, arguments.pattern) for source in (old, new)))
        worse = worse or any(each.verdict == Verdict.FAIL for each in differences)
        if place:
            print()
        print("\n".join(difference_lines(old, new, differences, arguments.all, style())))
    return 1 if worse and arguments.fail_on_worse else 0


def _pairs(old: str, new: str) -> Iterator[tuple[Source, Source]]:
    folder = Path(new)
    if not folder.is_dir():
        after_one = named(new)
        yield named(old, default=folder), after_one
        return
    if Path(old).is_file():
        raise CommandError(f"{new} is a folder, and {old} a file: name the two files")
    if Path(old).is_dir():
        before = {path.name: on_disk(path) for path in baseline_files(Path(old))}
    else:
        before = files_at(old, folder)
    after = {path.name: on_disk(path) for path in baseline_files(folder)}
    for name in sorted({**before, **after}):
        empty = Baselines(os.path.splitext(name)[0])
        yield (
            before.get(name, Source(f"{old} (no {name})", empty)),
            after.get(name, Source(f"{new} (no {name})", empty)),
        )
