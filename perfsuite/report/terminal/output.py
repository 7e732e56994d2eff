"""What the present standard output can show."""

import os
import sys

from perfsuite.report.terminal.baselines import Paint, colored, plain


def style() -> Paint:
    """Colours on a terminal that has them, unless NO_COLOR (https://no-color.org) is set; else the text alone.

    A letter that the output cannot write becomes a question mark from here on.
    """
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    on_terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    return colored if on_terminal and not os.environ.get("NO_COLOR") else plain


def can_write(text: str) -> bool:
    """Whether the output's encoding has these letters."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True
