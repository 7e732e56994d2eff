"""`python .ci/release_notes.py v0.1.0` prints what CHANGELOG.md says of the version of a tag.

It fails where tag, pyproject.toml and CHANGELOG.md disagree.
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def notes(tag: str, root: Path = ROOT) -> str:
    """The section of the tag's version, without its heading. Raises `SystemExit` with what to do."""
    version = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    if tag != f"v{version}":
        raise SystemExit(f"the tag is {tag}, and pyproject.toml has the version {version}: tag it v{version}")
    changes = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    section = re.search(rf"^## {re.escape(version)}\b[^\n]*\n(.*?)(?=^## |\Z)", changes, re.DOTALL | re.MULTILINE)
    if section is None:
        raise SystemExit(f"CHANGELOG.md has no section {version}: name its section Unreleased `## {version} - DATE`")
    return section[1].strip()


if __name__ == "__main__":
    print(notes(*sys.argv[1:]))
