"""What MkDocs calls while it builds the site: pages from outside `docs/`, links, anchors, the reference.

The pages are the same on GitHub. Here the README becomes the first page, a file outside `docs/` that a page links to
becomes a page of its own, and the links follow. https://www.mkdocs.org/dev-guide/plugins/#events
"""

import logging
import re
from collections import Counter
from html import unescape
from pathlib import Path

from links import DOCS, ROOT, place_of, relinked, targets
from markdown_it import MarkdownIt
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from reference import PAGES, entry_of

LOG = logging.getLogger("mkdocs.hooks")

ORIGINS: dict[str, Path] = {}
"""The file of each page, by the page's place on the site. Pages of the reference have none."""

ADDED = "Signature, errors and source"
"""The link from the page of an instrument to the reference."""

_LANGUAGES = {".yml": "yaml", ".py": "python", ".toml": "toml"}
_PICTURE = re.compile(r"^!\[([^\]]*)\]\(([\w./-]+\.svg)\)$", re.MULTILINE)
_OUTPUT = re.compile(r'<div class="language-text highlight">(?=<pre>.*?<code>(.*?)</code>)', re.DOTALL)
_COLUMNS = re.compile(r"^(?!E ).*\S {3,}\S|[=_~-]{4}", re.MULTILINE)
_OPTION = re.compile(r"(?<=<code)>(?=--[\w=-]{,24}</code>)")
_ELEMENT = re.compile(r"<(h[1-6]|table|tr|li|pre|blockquote|em|strong)\b")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Headings have the anchors that they have on GitHub."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = anchor
    return config


def anchor(heading: str, separator: str) -> str:
    """The anchor of a heading on GitHub."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside `docs/` and those of the reference."""
    ORIGINS.clear()
    for file in [*files.documentation_pages()]:
        files.remove(file)
    waiting = [*sorted(DOCS.rglob("*.md")), *sorted(ROOT.glob("[A-Z]*.md"))]
    while waiting:
        origin = waiting.pop()
        if (place := place_of(origin)) in ORIGINS:
            continue
        ORIGINS[place] = origin
        files.append(File.generated(config, place, content=(text := read(origin))))
        waiting += targets(text, origin) if origin.suffix == ".md" else []
    for place, page in PAGES.items():
        files.append(File.generated(config, place, content=page.markdown()))
    return files


def read(origin: Path) -> str:
    """A file as a page: Markdown as it is, anything else as a listing."""
    text = origin.read_text(encoding="utf-8")
    if origin.suffix == ".md":
        return text
    return f"# {origin.name}\n\n`{origin.relative_to(ROOT)}`\n\n```{_LANGUAGES.get(origin.suffix, 'text')}\n{text}```\n"


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links lead to the place on the site, pictures become part of the page, instruments lead to their reference."""
    origin = ORIGINS.get(page.file.src_uri)
    if origin is None or origin.suffix != ".md":
        return markdown
    if page.file.src_uri == "index.md":
        page.meta["hide"] = ["navigation"]  # it would have the page itself alone
    text = _PICTURE.sub(lambda found: picture(found[1], origin.parent / found[2]), relinked(markdown, origin))
    entry = entry_of(text.partition("\n")[0]) if origin.parent == DOCS / "instruments" else None
    return text if entry is None else text.replace("\n## ", f"\n[{ADDED}][{entry}]\n\n## ", 1)


def picture(title: str, file: Path) -> str:
    """A drawing as a part of the page, so that it has the colours of the scheme that the reader chose."""
    drawing = re.sub(r"\s*\n\s*", " ", file.read_text(encoding="utf-8").strip())
    return f'<figure role="img" aria-label="{title}">{drawing}</figure>'


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let messages be as wide as the screen, but no tables of a terminal, and compare the page with GitHub's."""
    origin = ORIGINS.get(page.file.src_uri)
    if origin is not None and origin.suffix == ".md":
        compare_with_github(html, origin)
    html = _OPTION.sub(' class="option">', html)
    return _OUTPUT.sub(lambda found: found[0] if _COLUMNS.search(found[1]) else '<div class="highlight wraps">', html)


def compare_with_github(html: str, origin: Path) -> None:
    """Warn where GitHub makes something else of a page: a list, say, that needs an empty line above it here."""
    there = MarkdownIt("commonmark").enable("table").render(read(origin))
    for what, of in (("elements", _ELEMENT.findall), ("text", words_of)):
        more, less = Counter(of(html)) - Counter(of(there)), Counter(of(there)) - Counter(of(html))
        if more or less:
            LOG.warning("%s: other %s than on GitHub: here %s, there %s", origin, what, dict(more), dict(less))


def words_of(html: str) -> list[str]:
    """What a page says, without what is added here."""
    text = re.sub(r'<figure.*?</figure>|<a class="headerlink".*?</a>', " ", html, flags=re.DOTALL).replace(ADDED, " ")
    return unescape(re.sub(r"<[^>]*>", "", text)).split()
