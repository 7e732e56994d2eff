"""A fresh process that is like one of another user on another machine: what must not change a program, and may.

The hash seed, the names of user and host, the folder of temporary files, the process id and the order in which
installed packages are imported differ all the time; the working folder and the home folder while the call is made:
tests read files of theirs, before that.
"""

import contextlib
import importlib
import os
import platform
import random
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

OPTION = "-p", "perfsuite.hooks.elsewhere"
"""What a process needs on pytest's command line."""

_INSTALLED = ("site-packages", "dist-packages")
_HOST = "HOSTNAME"


def environment(number: int, folder: Path) -> dict[str, str]:
    """The variables of process `number`, which are the same in every session but for the folder."""
    temporary = folder / "tmp"
    temporary.mkdir()
    user = f"perfsuite-user-{number}"
    return {
        "PYTHONHASHSEED": str(number),
        _HOST: f"perfsuite-host-{number}",
        **dict.fromkeys(("USER", "LOGNAME", "USERNAME"), user),
        "TMPDIR": str(temporary),
    }


def take_host_name() -> None:
    """Have Python say that this host is called as the variable HOSTNAME says. That name leads to this host."""
    name = os.environ[_HOST]
    for resolver in ("gethostbyname", "gethostbyname_ex", "getaddrinfo"):
        setattr(socket, resolver, _also_resolving(name, getattr(socket, resolver)))
    socket.gethostname = platform.node = lambda: name
    socket.getfqdn = lambda host="": host or name  # type: ignore[assignment]
    if hasattr(os, "uname"):
        system, _, *others = os.uname()
        os.uname = lambda: os.uname_result((system, name, *others))


def _also_resolving(name: str, resolve: Callable[..., Any]) -> Callable[..., Any]:
    def resolved(host: Any, *args: Any, **kwargs: Any) -> Any:
        return resolve("localhost" if host == name else host, *args, **kwargs)

    return resolved


@contextlib.contextmanager
def in_other_folders(folder: Path) -> Iterator[None]:
    """Work in `folder`, which is the user's home too."""
    before, home = Path.cwd(), os.environ.get("HOME")
    os.chdir(folder)
    os.environ["HOME"] = str(folder)
    try:
        yield
    finally:
        os.chdir(before)
        if home is None:
            del os.environ["HOME"]
        else:
            os.environ["HOME"] = home


def installed_packages() -> list[str]:
    """The installed packages that this process has imported, in that order."""
    found = {name.partition(".")[0]: None for name in sys.modules}
    return [name for name in found if _is_installed(getattr(sys.modules.get(name), "__file__", None))]


def in_another_order(packages: Sequence[str], number: int) -> list[str]:
    """The packages as process `number` imports them: the first as they come, the second the other way round."""
    if number < 2:
        return list(reversed(packages)) if number else []
    return random.Random(number).sample(packages, len(packages))


def import_packages(packages: Sequence[str]) -> None:
    """Import them in their order. One that cannot be is left to the test."""
    for name in packages:
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def _is_installed(file: str | None) -> bool:
    return file is not None and bool({*_INSTALLED} & {*Path(file).parts})
