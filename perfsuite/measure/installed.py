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
    return f'pip install "{requirement(*extras)}"'


def requirement(*extras: str) -> str:
    """The package with extras, as pip takes it, from where the present one came."""
    named = f"perfsuite[{','.join(extras)}]"
    origin = _origin()
    if not origin:
        return named
    url = origin["url"]
    if repository := origin.get("vcs_info"):
        url = f"{repository['vcs']}+{url}@{repository['commit_id']}"
    return f"{named} @ {url}"


def is_elsewhere_too() -> bool:
    """Whether another machine can install it from there: not from a folder or a file of this one."""
    return not _origin().get("url", "").startswith("file:")


def _origin() -> Mapping[str, Any]:
    """As `direct_url.json` has it; empty for a package of an index."""
    try:
        return json.loads(importlib.metadata.distribution("perfsuite").read_text("direct_url.json") or "{}")
    except (importlib.metadata.PackageNotFoundError, json.JSONDecodeError):  # run from its sources
        return {}
