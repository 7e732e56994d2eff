"""Where this perfsuite was installed from, for commands that install more of it.

The name is not on PyPI. So a command names the folder, the file or the repository that pip or uv recorded (PEP 610).
"""

import importlib.metadata
import json
import urllib.parse
from collections.abc import Mapping
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


def _origin() -> Mapping[str, Any]:
    """As `direct_url.json` has it; empty for a package of an index."""
    try:
        return json.loads(importlib.metadata.distribution("perfsuite").read_text("direct_url.json") or "{}")
    except (importlib.metadata.PackageNotFoundError, json.JSONDecodeError):  # run from its sources
        return {}
