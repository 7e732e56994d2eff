"""Keeps off the terminal what libtpu and the CUDA plugin write there on a machine without a TPU or a GPU.

JAX loads both wherever they are installed. They write to file descriptor 2 themselves, so no Python stream, logger or
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
    r"|Could not find cuda drivers on your machine"
    # What a deviceless compile lacks for sorting, over two lines.
    r"|Missing deviceless CUB scratch size data|^To avoid this, compile with a GPU present, or add the deviceless CUB"
)
"""Matches a line, given without its line end, that says nothing of use."""

_NO_CUDA = re.compile(
    rb"^[^\n]*Jax plugin configuration error: Exception when calling jax_plugins\.xla_cuda\d+\.initialize\(\)\n"
    rb".*?^RuntimeError: Unable to load CUDA\. Is it installed\?\n",
    re.MULTILINE | re.DOTALL,
)
"""The traceback that jax logs where the CUDA plugin is installed without CUDA's libraries."""

_DRIVER = "/proc/driver/nvidia"

_STDERR = 2


@contextlib.contextmanager
def compilers_silenced() -> Iterator[None]:
    """Hold back what is written to file descriptor 2. At the end, also after an error, write all but the noise."""
    with contextlib.ExitStack() as cleanup:
        try:
            kept = os.dup(_STDERR)
            cleanup.callback(os.close, kept)
            held = cleanup.enter_context(tempfile.TemporaryFile())
        except OSError:  # No such descriptor, or no place for a file: the noise is shown.
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
    """`output` without the lines that are noise.

    Where there is a driver, somebody wants to use a GPU: that CUDA cannot be loaded is no noise then.
    """
    if not os.path.exists(_DRIVER):
        output = _NO_CUDA.sub(b"", output)
    lines = output.splitlines(keepends=True)
    return b"".join(line for line in lines if not NOISE.search(line.decode(errors="replace").rstrip("\r\n")))


def _flush() -> None:
    # The stream may be closed, or None under pythonw.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.flush()
