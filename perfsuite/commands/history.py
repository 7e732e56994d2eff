"""Follow baselines over their git history, and find where a metric moved.

Every commit that changed the file is read. A count or a size moved when it is
not what it was; ratios and times where a change point is found in their noise.
The commit that is named recorded the metric: its cause lies there, or in the
commits since the record before. Renames of tests are not guessed.
"""

import argparse
from pathlib import Path

from perfsuite.measure.measurement import KINDS

SUMMARY = "follow baselines over their git history, and find where a metric moved"

_EXAMPLES = """examples:
  perfsuite history                                   every file of baselines/
  perfsuite history baselines/cpu.json "*ratio*" --since v1.0
  perfsuite history baselines/tpu-v5e.json --out history.html
"""
_METRICS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        default="baselines",
        help="a baseline file, or a folder of them (default: baselines)",
    )
    parser.add_argument(
        "pattern",
        metavar="PATTERN",
        nargs="?",
        help="only metrics whose test or name contains it, or matches it with * and ?",
    )
    parser.add_argument(
        "--kind",
        action="append",
        choices=KINDS,
        default=[],
        help="metrics of this kind; may be given again (default: all that gate, which leaves out info)",
    )
    parser.add_argument("--since", metavar="REV|DATE", help="from this revision or day (2026-11-21) on")
    parser.add_argument(
        "--metrics", type=_count, default=_METRICS, metavar="N", help=f"at most so many metrics (default: {_METRICS})"
    )
    parser.add_argument("--out", type=Path, metavar="PAGE.html", help="also draw the metrics into this page")


def run(arguments: argparse.Namespace) -> int:
    """Print the history, and write the page."""
    from perfsuite.commands import CommandError
    from perfsuite.history.following import GATING, follow
    from perfsuite.history.reading import HistoryError, read_history
    from perfsuite.history.source import baseline_files
    from perfsuite.report.terminal.history import BLOCKS, LETTERS, history_lines
    from perfsuite.report.terminal.output import can_write, style

    path = Path(arguments.file)
    paths = baseline_files(path) if path.is_dir() else [path]
    if not paths:
        raise CommandError(f"{path}: no baseline file in this folder: pytest --perf-save makes them")
    if arguments.out is not None:
        _check_page(arguments.out)
    followings = []
    try:
        for each in paths:
            history = read_history(each, arguments.since)
            followings.append(follow(history, arguments.pattern, arguments.kind or GATING))
    except HistoryError as error:
        raise CommandError(str(error)) from None
    except ImportError as error:
        raise CommandError(f'{error.name} is not installed: pip install "perfsuite[report]"') from None
    if arguments.pattern and not any(following.metrics for following in followings):
        raise CommandError(f"{path}: no metric was ever of this name and kind: {arguments.pattern}")
    # First of all: the terminal's lines may have a reader that goes away.
    if arguments.out is not None:
        from perfsuite.report.history_page import PageError, write_history

        try:
            write_history(followings, arguments.out, most=arguments.metrics)
        except PageError as error:
            raise CommandError(str(error)) from None
    levels = BLOCKS if can_write(BLOCKS) else LETTERS
    for place, following in enumerate(followings):
        print(*([""] if place else []), *history_lines(following, arguments.metrics, style(), levels), sep="\n")
    if arguments.out is not None:
        print(f"\nwritten: {arguments.out}")
    return 0


def _count(text: str) -> int:
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count < 1:
        raise argparse.ArgumentTypeError(f"needs a whole number from 1 on, got {text!r}")
    return count


def _check_page(path: Path) -> None:
    """Before the history is read, which may take long."""
    from perfsuite.commands import CommandError

    if path.is_dir():
        raise CommandError(f"--out {path} is a folder: name a file in it, {path / 'history.html'}")
    if not path.parent.is_dir():
        raise CommandError(f"--out {path}: there is no folder {path.parent}")
