"""A fresh process that is like one on another machine: what must not change a program, and may.

Another hash seed, process id, folder of temporary files and HOSTNAME. While the call is made also another working
folder, host name and `jax.process_index()`, and another number of programs that were compiled before.
"""

import contextlib
import os
import platform
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest


def environment(number: int, folder: Path) -> dict[str, str]:
    """The variables of process `number`, which are the same in every session but for the folder."""
    temporary = folder / "tmp"
    temporary.mkdir()
    return {"PYTHONHASHSEED": str(number), "HOSTNAME": _host(number), "TMPDIR": str(temporary)}


@contextlib.contextmanager
def as_process(number: int, folder: Path) -> Iterator[None]:
    """Be process `number`, which works in `folder`."""
    import jax  # the process that starts this one needs none

    host = _host(number)
    for other in range(number):
        jax.block_until_ready(jax.jit(lambda x, other=other: x + other)(0))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(socket, "gethostname", lambda: host)
        patch.setattr(platform, "node", lambda: host)
        if hasattr(os, "uname"):
            system, _, *others = os.uname()
            patch.setattr(os, "uname", lambda: os.uname_result((system, host, *others)))
        # JAX itself asks by another name.
        patch.setattr(jax, "process_index", lambda backend=None: number)
        yield


def _host(number: int) -> str:
    return f"perfsuite-host-{number}"
