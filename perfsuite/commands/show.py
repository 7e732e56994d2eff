"""Print a baseline file for people.

First the environments of its metrics, then every metric with its interval, test
by test. Without a file: the files of this project, each with its environments.
"""

import argparse

from perfsuite.commands import PATTERN_HELP, CommandError, project_baselines
from perfsuite.gate.baseline_file import baseline_files
from perfsuite.report.baselines import file_lines, header_lines
from perfsuite.report.tables import style
from perfsuite.sources import named, on_disk, select

SUMMARY = "print a baseline file for people"

EXAMPLES = """examples:
  perfsuite show                                      the files of the project
  perfsuite show baselines/tpu-v5e.json
  perfsuite show baselines/cpu.json "*host calls*"
  perfsuite show main:baselines/cpu.json test_generation
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("file", metavar="FILE", nargs="?", help="a baseline file, or REVISION:PATH of git")
    parser.add_argument("pattern", metavar="PATTERN", nargs="?", help=PATTERN_HELP)


def run(arguments: argparse.Namespace) -> int:
    """Print the file, or what files there are."""
    if arguments.file is None:
        folder = project_baselines()
        files = baseline_files(folder)
        if not files:
            raise CommandError(f"{folder}: no baseline file in this folder: pytest --perf-save writes them")
        print("\n".join(line for path in files for line in header_lines(on_disk(path), style())))
        return 0
    source = named(arguments.file)
    selected = select(source.baselines, arguments.pattern)
    if source.baselines.metrics and not selected.metrics:
        raise CommandError(f"{source.name}: no metric has this name")
    print("\n".join(file_lines(source, selected, style())))
    return 0
