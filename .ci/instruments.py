"""Writes what the instruments declare into code and pages: `python .ci/instruments.py`. A test says when to run it.

An instrument is its module, its page and its planted test. What else names it stands between two marks: the methods and
fields that editors and type checkers see, the tables of the README and of budgets, and the navigation of the site.
"""

import importlib
import itertools
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

from perfsuite import instruments
from perfsuite.instruments.base import DECLARED, METHODS, Instrument

ROOT = Path(__file__).parents[1]
PACKAGE = instruments.__name__
MARK = "Written by .ci/instruments.py"


def owners() -> dict[str, str]:
    """The module and class of each method: in the order of `METHODS`, new methods at the end."""
    classes = {}
    for info in pkgutil.iter_modules(instruments.__path__):
        name = f"{PACKAGE}.{info.name}"
        for value in vars(importlib.import_module(name)).values():
            if isinstance(value, type) and issubclass(value, Instrument) and value.__module__ == name:
                classes |= {key: f"{info.name}:{value.__name__}" for key in vars(value) if not key.startswith("_")}
    return {method: classes[method] for method in [*METHODS, *classes] if method in classes}


def pages() -> dict[str, str]:
    """The page of each method. Its title begins with the method, or has several."""
    names = {}
    for page in sorted((ROOT / "docs/instruments").glob("*.md")):
        title = page.read_text(encoding="utf-8").partition("\n")[0]
        if title.startswith("# `perf."):
            names |= dict.fromkeys(re.findall(r"`perf\.(\w+)`", title), page.name)
    return names


OWNERS, PAGES = owners(), pages()
CLASSES = sorted({tuple(owner.split(":")) for owner in OWNERS.values()})


def methods() -> Iterator[str]:
    for method, owner in OWNERS.items():
        yield f'"{method}": "{owner}",'


def bases() -> Iterator[str]:
    for module, name in CLASSES:
        yield f"from {PACKAGE}.{module} import {name}"
    yield from ("", "class _Instruments(")
    for _, name in CLASSES:
        yield f"    {name},"
    yield from ("):", '    """What `METHODS` names."""', "")


def fields() -> Iterator[str]:
    for method in OWNERS:
        for field, text in DECLARED[f"perf.{method}"].budget.items():
            yield f"{field}: float | None = None"
            yield f'"""`perf.{method}`: {text}."""'


def budgets() -> Iterator[str]:
    yield from ("| field | limits | checked by |", "|---|---|---|")
    for method in OWNERS:
        for field, text in DECLARED[f"perf.{method}"].budget.items():
            yield f"| `{field}=` | {text} | [`perf.{method}`](instruments/{PAGES[method]}) |"


def table() -> Iterator[str]:
    """A row for each module, with what its docstring says."""
    yield from ("| `perf.` | measures |", "|---|---|")
    for owner, group in itertools.groupby(OWNERS, key=OWNERS.__getitem__):
        links = [f"[`{method}`](docs/instruments/{PAGES[method]})" for method in group]
        docstring = importlib.import_module(f"{PACKAGE}.{owner.partition(':')[0]}").__doc__ or ""
        text = docstring.partition("\n")[0].partition(": ")[2].removesuffix(".")
        yield f"| {', '.join(links)} | {text} |"


def navigation() -> Iterator[str]:
    for page, group in itertools.groupby(OWNERS, key=PAGES.__getitem__):
        yield f"- {', '.join(group)}: instruments/{page}"


BLOCKS = {
    "perfsuite/instruments/base.py": methods,
    "perfsuite/fixture.py": bases,
    "perfsuite/gate/budget.py": fields,
    "docs/options.md": budgets,
    "README.md": table,
    "mkdocs.yml": navigation,
}


def written(path: str) -> str:
    """The text of a file with its block as it should be."""
    text = (ROOT / path).read_text(encoding="utf-8")
    block = re.compile(rf"(^( *)\S+ {re.escape(MARK)}: begin.*\n)[^\0]*?(^.*{re.escape(MARK)}: end)", re.MULTILINE)
    head, indent, tail = block.search(text).groups()
    lines = "".join(f"{indent}{line}".rstrip() + "\n" for line in BLOCKS[path]())
    return block.sub(lambda _: head + lines + tail, text)


if __name__ == "__main__":
    for path in BLOCKS:
        (ROOT / path).write_text(written(path), encoding="utf-8")
