"""Keeps off the terminal what libtpu writes there on a machine without a TPU.

JAX loads libtpu wherever it is installed. libtpu writes to file descriptor 2 itself, so no Python stream, logger or
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
"""Matches a line, given without its line end, that says nothing of use."""

_STDERR = 2


@contextlib.contextmanager
def libtpu_silenced() -> Iterator[None]:
    """Hold back what is written to file descriptor 2. At the end, also after an error, write all but libtpu's noise."""
    with contextlib.ExitStack() as cleanup:
        try:
            kept = os.dup(_STDERR)
            cleanup.callback(os.close, kept)
            held = cleanup.enter_context(tempfile.TemporaryFile())
        except OSError:  # No such descriptor, or no place for a file: libtpu's noise is shown.
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
            # A terminal that is gone is no reason to fail.
            with contextlib.suppress(OSError), open(_STDERR, "wb", closefd=False) as terminal:
                terminal.write(meaningful(held.read()))


def meaningful(output: bytes) -> bytes:
    """`output` without the lines that are noise."""
    lines = output.splitlines(keepends=True)
    return b"".join(line for line in lines if not NOISE.search(line.decode(errors="replace").rstrip("\r\n")))


def _flush() -> None:
    # The stream may be closed, or None under pythonw.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.flush()
