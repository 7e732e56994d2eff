"""What libtpu writes to the terminal about a machine that has no TPU, kept off it.

libtpu is loaded by JAX wherever it is installed, and writes to file descriptor 2 itself: no Python stream, logger or
warning filter sees it.
"""

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator

NOISE = re.compile(
    r"Failed to find host bounds for accelerator type"
    r"|Logging before InitGoogle\(\)|log messages before absl::InitializeLog"
    r"|unexpected worker hostname"
    r"|^=== Source Location Trace|^learning/\S+:\d+$"
)
"""A line that means nothing, without its end."""

_STDERR = 2


@contextlib.contextmanager
def libtpu_silenced() -> Iterator[None]:
    """Hold back what is written to file descriptor 2, and write the lines that are not libtpu's noise when it ends.

    Also when the body raises. Where there is no such descriptor nothing is done.
    """
    try:
        kept = os.dup(_STDERR)
    except OSError:
        yield
        return
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(os.close, kept)
        try:
            held = cleanup.enter_context(tempfile.TemporaryFile())
        except OSError:  # no room, no right to: then the noise is the smaller evil
            yield
            return
        _flush()
        os.dup2(held.fileno(), _STDERR)
        try:
            yield
        finally:
            _flush()
            os.dup2(kept, _STDERR)
            held.seek(0)
            _write(meaningful(held.read()))


def meaningful(output: bytes) -> bytes:
    """`output` without the lines that are noise."""
    lines = output.splitlines(keepends=True)
    return b"".join(line for line in lines if not NOISE.search(line.decode(errors="replace").rstrip("\r\n")))


def _write(text: bytes) -> None:
    # As what writes to it does otherwise: a terminal that is gone is no reason to end.
    with contextlib.suppress(OSError):
        while text:
            text = text[os.write(_STDERR, text) :]


def _flush() -> None:
    # It may be closed, or None under pythonw.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.flush()
