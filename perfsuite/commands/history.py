"""Follow baselines over their git history, and find where a metric moved.

perfsuite reads every commit that changed the file. A count or a size moved when
its value changed; a ratio or a time moved where a gate would not allow the new
level and it stands out of the metric's own noise.
The named commit recorded the metric: the cause lies there, or in the commits
since the record before. perfsuite does not guess renames of tests.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from perfsuite.commands import PATTERN_HELP, CommandError
from perfsuite.history.following import GATING, Following, follow
from perfsuite.history.reading import read_history
from perfsuite.history.source import baseline_files
from perfsuite.measure.installed import install
from perfsuite.measure.metric import KINDS
from perfsuite.measure.private.compiler_stderr import compilers_silenced
from perfsuite.report.terminal.history import BLOCKS, LETTERS, history_lines
from perfsuite.report.terminal.output import can_write, style

SUMMARY = "follow baselines over their git history, and find where a metric moved"

EXAMPLES = """examples:
  perfsuite history                                   every file of baselines/
  perfsuite history baselines/cpu.json "*ratio*" --since v1.0
  perfsuite history baselines/tpu-v5e.json --out history.html
"""
_METRICS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        default="baselines",
        help="a baseline file, or a folder of them (default: baselines)",
    )
    parser.add_argument("pattern", metavar="PATTERN", nargs="?", help=PATTERN_HELP)
    parser.add_argument(
        "--kind",
        action="append",
        choices=KINDS,
        default=[],
        help="metrics of this kind; may be given again (default: all that gate, which excludes info)",
    )
    parser.add_argument("--since", metavar="REV|DATE", help="from this revision or day (2026-11-21) on")
    parser.add_argument(
        "--metrics", type=_count, default=_METRICS, metavar="N", help=f"at most this many metrics (default: {_METRICS})"
    )
    parser.add_argument("--out", type=Path, metavar="PAGE.html", help="also draw the metrics into this page")


def run(arguments: argparse.Namespace) -> int:
    """Print the history, and write the page."""
    path = Path(arguments.file)
    paths = baseline_files(path) if path.is_dir() else [path]
    if not paths:
        raise CommandError(f"{path}: no baseline file in this folder: pytest --perf-save writes them")
    if arguments.out is not None:
        _check_page(arguments.out)
    histories = [read_history(each, arguments.since) for each in paths]
    followings = [follow(history, arguments.pattern, arguments.kind or GATING) for history in histories]
    if arguments.pattern and not any(following.metrics for following in followings):
        raise CommandError(f"{path}: no metric ever had this name and kind: {arguments.pattern}")
    # Before anything is printed, because the reader of the terminal's lines may go away.
    if arguments.out is not None:
        _write_page(followings, arguments.out, arguments.metrics)
    levels = BLOCKS if can_write(BLOCKS) else LETTERS
    for place, following in enumerate(followings):
        print(*([""] if place else []), *history_lines(following, arguments.metrics, style(), levels), sep="\n")
    if arguments.out is not None:
        print(f"\nwritten: {arguments.out}")
    return 0


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"needs a whole number from 1 on, got {text!r}")
    return int(text)


def _write_page(followings: Sequence[Following], path: Path, most: int) -> None:
    try:
        with compilers_silenced():  # it imports jax
            from perfsuite.report.history_page import PageError, write_history  # needs the extra `report`
    except ImportError as error:
        raise CommandError(f"{error.name} is not installed: {install('report')}") from None
    try:
        write_history(followings, path, most)
    except PageError as error:
        raise CommandError(str(error)) from None


def _check_page(path: Path) -> None:
    """Before the history is read, which may take long."""
    if path.is_dir():
        raise CommandError(f"--out {path} is a folder: name a file in it, {path / 'history.html'}")
    if not path.parent.is_dir():
        raise CommandError(f"--out {path}: there is no folder {path.parent}")
