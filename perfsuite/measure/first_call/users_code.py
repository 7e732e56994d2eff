"""Which code is the user's, and how a line of it is named."""

import functools
import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

from perfsuite.measure.compiles.callsite import LIBRARIES, STANDARD_LIBRARY
from perfsuite.measure.io import short_path

_LIBRARIES = (*LIBRARIES, "jaxlib", "numpy", "scipy", "ml_dtypes", "jaxtyping", "beartype", "typeguard")
_HARNESS = os.path.join(Path(__file__).parents[2], "")
_WORKLOADS = os.path.join(_HARNESS, "workloads", "")
_NOTEBOOK = "<ipython"
_INSIDE = re.compile(r"\.<(locals|listcomp|setcomp|dictcomp|genexpr)>")
"""From Python 3.12 on most of these have no frames of their own."""


class UserLine(NamedTuple):
    """A line of the user's code."""

    file: str
    function: str
    line: int

    @property
    def name(self) -> str:
        """`model.py:Block.__call__`: stays the same when lines move."""
        return f"{os.path.basename(self.file)}:{_INSIDE.sub('', self.function)}"

    @property
    def place(self) -> str:
        """`models/model.py:12`, from the working directory or from the folder of the installed packages."""
        return f"{short_path(self.file)}:{self.line}"


@functools.cache
def is_users(filename: str) -> bool:
    """Whether the code of a file is the user's: of no library that JAX programs are written with, and not generated."""
    if filename.startswith("<"):
        return filename.startswith(_NOTEBOOK)
    if filename.startswith(STANDARD_LIBRARY) and "-packages" not in filename:
        return False
    if filename.startswith(_HARNESS):
        return filename.startswith(_WORKLOADS)
    return not filename.startswith(tuple(_folders()))


def _folders() -> list[str]:
    """The folders of the libraries that this process has imported."""
    files = (getattr(sys.modules.get(name), "__file__", None) for name in _LIBRARIES)
    return [str(Path(file).parent) + os.sep for file in files if file]
