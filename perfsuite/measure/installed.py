"""Where this perfsuite was installed from, for commands that install more of it; and whether Valgrind is installed.

The name is not on PyPI. So a command names the folder, the file or the repository that pip or uv recorded (PEP 610).
"""

import functools
import importlib.metadata
import json
import shutil
import subprocess
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def install(*extras: str) -> str:
    """The command that adds extras to the perfsuite that runs: `pip install "perfsuite[tpu] @ git+https://..."`."""
    origin = _origin()
    if origin.get("dir_info", {}).get("editable"):
        folder = urllib.parse.unquote(urllib.parse.urlsplit(origin["url"]).path)
        return f'pip install -e "{folder}[{",".join(extras)}]"'
    place = ""
    if origin:
        place = f" @ {origin['url']}"
    if repository := origin.get("vcs_info"):
        place = f" @ {repository['vcs']}+{origin['url']}@{repository['commit_id']}"
    return f'pip install "perfsuite[{",".join(extras)}]{place}"'


def installed_file(package: str, name: str) -> Path | None:
    """The file of this name that a package has installed; None without one, and where the package is not installed."""
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    return next((Path(str(file.locate())) for file in files if file.name == name), None)


@functools.cache
def valgrind_version() -> str | None:
    """The version of Valgrind; None where it is not installed."""
    if shutil.which("valgrind") is None:
        return None
    ended = subprocess.run(["valgrind", "--version"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return ended.stdout.strip().removeprefix("valgrind-") or None


def _origin() -> Mapping[str, Any]:
    """As `direct_url.json` has it; empty for a package of an index."""
    try:
        return json.loads(importlib.metadata.distribution("perfsuite").read_text("direct_url.json") or "{}")
    except (importlib.metadata.PackageNotFoundError, json.JSONDecodeError):  # run from its sources
        return {}
