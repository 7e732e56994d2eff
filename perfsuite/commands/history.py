"""Show what each save of a baseline file changed, metric by metric, through git.

Each commit that changed the file is compared with the one before it, by the
rules of `perfsuite diff`. The cause of a change lies in the named commit, or in
those since the commit before it.
"""

import argparse
from pathlib import Path

from perfsuite.commands import PATTERN_HELP, CommandError, project_baselines
from perfsuite.gate.baseline_file import baseline_files
from perfsuite.history import saves_of, select
from perfsuite.report.baselines import history_lines
from perfsuite.report.tables import style

SUMMARY = "show what each save of a baseline file changed, through git"

EXAMPLES = """examples:
  perfsuite history                                   the files of the project
  perfsuite history baselines/cpu.json "*ratio*" --since v1.0
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("file", metavar="FILE", nargs="?", help="a baseline file")
    parser.add_argument("pattern", metavar="PATTERN", nargs="?", help=PATTERN_HELP)
    parser.add_argument("--since", metavar="REVISION", help="the saves after this revision")
    parser.add_argument("--all", action="store_true", help="list every metric, also those that pass or never gate")


def run(arguments: argparse.Namespace) -> int:
    """Print what the saves of each file changed."""
    paths = [Path(arguments.file)] if arguments.file else baseline_files(folder := project_baselines())
    if not paths:
        raise CommandError(f"{folder}: no baseline file in this folder: pytest --perf-save writes them")
    for place, path in enumerate(paths):
        saves = saves_of(path, arguments.since)
        if arguments.pattern and not any(select(each.baselines, arguments.pattern).metrics for each in saves.sources):
            raise CommandError(f"{path}: no metric ever had this name: {arguments.pattern}")
        print(*([""] if place else []), *history_lines(saves, arguments.pattern, arguments.all, style()), sep="\n")
    return 0
