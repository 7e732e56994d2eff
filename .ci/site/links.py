"""Where the files of the repository are on the site, and links from one to another, as GitHub takes them."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_PLACES = {ROOT / "README.md": "index.md", DOCS / "README.md": "contents.md"}
"""The README is the first page, and the list of all pages stands beside it."""

_FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\((?!\w+:)([^()\s#]+)((?:#[^()\s]*)?)\)")


def place_of(file: Path) -> str:
    """Where a file of the repository is on the site, as a path of Markdown."""
    if file in _PLACES:
        return _PLACES[file]
    if file.is_relative_to(DOCS):
        return file.relative_to(DOCS).as_posix()
    if file.suffix == ".md":
        return f"project/{file.stem.lower()}.md"
    parts = file.relative_to(ROOT).parts
    return "source/" + "/".join(part.lstrip(".") for part in parts) + ".md"  # MkDocs leaves out what begins with a dot


def targets(text: str, file: Path) -> Iterator[Path]:
    """The files outside `docs/` that the page `file` links to."""
    for part in _FENCE.split(text)[::2]:
        for link, _ in _LINK.findall(part):
            if _is_page(target := (file.parent / link).resolve()) and not target.is_relative_to(DOCS):
                yield target


def relinked(text: str, file: Path) -> str:
    """The page `file` with its links as on the site. A link that leads nowhere stays, and MkDocs reports it."""
    here = os.path.dirname(place_of(file))

    def on_the_site(link: re.Match[str]) -> str:
        target = (file.parent / link[1]).resolve()
        if not _is_page(target):
            return link[0]
        return f"]({os.path.relpath(place_of(target), here)}{link[2]})"

    parts = _FENCE.split(text)
    parts[::2] = (_LINK.sub(on_the_site, part) for part in parts[::2])
    return "".join(parts)


def _is_page(target: Path) -> bool:
    return target.is_file() and target.is_relative_to(ROOT) and target.suffix != ".svg"
