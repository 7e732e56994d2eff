"""The pages of the reference, in Markdown: mkdocstrings fills in signatures and docstrings from the sources.

`tests/docs/test_site.py` fails where a public name, a method of `perf`, or what one of them returns is on no page.
"""

import dataclasses
import re
import typing
from collections.abc import Iterator
from pathlib import Path

from perfsuite.instruments.base import METHODS, instrument_class

INSTRUMENTS = Path(__file__).parents[2] / "docs" / "instruments"


def named_in(title: str) -> list[str]:
    """The objects that the title of a page in docs/instruments names: `perf.time`, `compile_counter`."""
    return re.findall(r"`([\w.]+)`", title)


def _guides() -> dict[str, str]:
    guides: dict[str, str] = {}
    for page in sorted(INSTRUMENTS.glob("*.md")):
        for name in named_in(page.read_text(encoding="utf-8").partition("\n")[0]):
            # perf.program has pages of its parts, too
            if name not in guides or page.stem == name.removeprefix("perf."):
                guides[name] = f"../instruments/{page.name}"
    return guides


GUIDES = _guides()
"""The page in docs/instruments of each object, seen from a page of the reference."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """A heading, the object below it, and a last line. `options` are those of mkdocstrings for this object alone."""

    heading: str
    path: str
    options: tuple[str, ...] = ()
    more: str = ""

    def markdown(self) -> str:
        lines = [f"heading: {self.heading}", f"toc_label: {self.heading}", *self.options]
        return f"::: {self.path}\n    options:\n" + "".join(f"      {line}\n" for line in lines) + f"\n{self.more}"


@dataclasses.dataclass(frozen=True)
class Page:
    """A page of the reference: its introduction, and its entries under their headings."""

    title: str
    introduction: str
    sections: dict[str, tuple[Entry, ...]]

    def markdown(self) -> str:
        parts = [f"# {self.title}", self.introduction]
        for heading, entries in self.sections.items():
            parts += [f"## {heading}", *(entry.markdown() for entry in entries)]
        return "\n\n".join(parts)

    @property
    def entries(self) -> list[Entry]:
        return [entry for entries in self.sections.values() for entry in entries]


def _public(*names: str, options: tuple[str, ...] = ()) -> tuple[Entry, ...]:
    return tuple(Entry(name, f"perfsuite.{name}", options) for name in names)


def _measured(path: str, *options: str) -> Entry:
    return Entry(path.rpartition(".")[2], f"perfsuite.measure.{path}", ("show_source: false", *options))


_NO_CONSTRUCTOR = ("show_signature: false", "merge_init_into_class: false")
_PERF = ("members: []", "inherited_members: false", "show_source: false", *_NO_CONSTRUCTOR)

PERF = Page(
    "The fixture perf",
    "A test that has an argument `perf` gets this object, runs only with `--perf`, and is marked `perf`. Each method "
    "records its metrics; the budget is checked at once, the baselines when the test's body has ended.\n\n"
    "Those that take a call raise `TypeError` for anything else. All raise `ValueError` for a field of `Budget` "
    "that they do not check, [`BudgetExceeded`][perfsuite.BudgetExceeded] over a limit, "
    "[`RecompilationError`][perfsuite.RecompilationError] where a measured call compiles, and "
    "[`MeasurementError`][perfsuite.MeasurementError], which says what to change, where they cannot measure.",
    {
        "The object": (
            Entry("Perf", "perfsuite.Perf", _PERF),
            Entry("perf.size", "perfsuite.Perf.size"),
        ),
        "Methods": tuple(
            Entry(name, f"perfsuite.Perf.{name.removeprefix('perf.')}", more=f"[Examples, gates and costs]({guide})")
            for name, guide in GUIDES.items()
            if name.startswith("perf.")
        ),
    },
)

COMPILE_COUNTER = Page(
    "The fixture compile_counter",
    "For any test, with or without `--perf`. Both are context managers, and give the same object.",
    {
        "Methods": tuple(
            Entry(f"compile_counter.{name}", f"perfsuite.measure.compiles.compiles.{name}")
            for name in ("count", "forbid")
        ),
    },
)

CALLS = Page(
    "Calls and budgets",
    "`from perfsuite import Budget, call`",
    {
        "Calls": (*_public("call"), _measured("call.Call")),
        "Budgets": _public("Budget"),
    },
)

_BASES = ("show_bases: true", "show_source: false")

ERRORS = Page(
    "Errors and warnings",
    "All are names of `perfsuite`. A test that catches one can read its attributes.",
    {
        "A gate fails": _public("BudgetExceeded", "RecompilationError", "TransferError", options=_BASES),
        "Nothing can be measured": _public("MeasurementError", options=_BASES),
        "Warnings": _public("SignatureWarning", options=_BASES),
    },
)

_OF_RESULTS = {
    "Compiles": (*_NO_CONSTRUCTOR, 'filters: ["!^(_|add|counts|refused|only|eager|errors|repairs|hears_traces)"]'),
    "Traced": _NO_CONSTRUCTOR,
    "Transfers": _NO_CONSTRUCTOR,
}


def _results() -> Iterator[Entry]:
    """What the methods return, as their annotations say, in the order of the methods."""
    classes = set()
    for method in METHODS:
        result = typing.get_type_hints(getattr(instrument_class(method), method))["return"]
        for each in (result, *typing.get_args(result)):
            if getattr(each, "__module__", "").startswith("perfsuite.") and each not in classes:
                classes.add(each)
                options = ("show_source: false", *_OF_RESULTS.get(each.__name__, ()))
                by = f"Returned by [`perf.{method}`][perfsuite.Perf.{method}]; [its attributes in a table]"
                guide = f"{by}({GUIDES[f'perf.{method}']}#what-it-returns)"
                yield Entry(each.__name__, f"{each.__module__}.{each.__name__}", options, guide)


RESULTS = Page(
    "What the methods return",
    "Nobody makes these by hand: the list in parentheses has the attributes and their types, and the text says what "
    "they mean. Units are in the names: `_us` is microseconds, `_seconds` seconds, `_bytes` bytes.",
    {
        "Results": tuple(_results()),
        "Their parts": (
            _measured("compiles.warm.Uncovered"),
            _measured("compiles.compiles.FunctionCompiles"),
            _measured("compiles.compiles.CompileEvent"),
            _measured("timing.timing.Duration"),
            _measured("metric.Estimate"),
            _measured("metric.Interval"),
            _measured("runtime.transfers.Transfer"),
            _measured("runtime.memory.UndonatedArray"),
            _measured("program.program.Operation"),
            _measured("program.program.Fusion"),
            _measured("program.program.Fused", *_NO_CONSTRUCTOR),
            _measured("program.program.Product"),
            _measured("program.program.Kernel"),
            _measured("program.program.Loop"),
            _measured("program.program.DonatedArgument"),
        ),
        "Words": tuple(map(_measured, ("timing.block.Until", "metric.Kind", "metric.Better"))),
    },
)

PAGES = {
    "reference/perf.md": PERF,
    "reference/compile_counter.md": COMPILE_COUNTER,
    "reference/calls.md": CALLS,
    "reference/results.md": RESULTS,
    "reference/errors.md": ERRORS,
}
"""By their place on the site."""


def entry_of(title: str) -> str | None:
    """The object that the title of a page in docs/instruments names first, as autorefs knows it."""
    paths = {entry.heading: entry.path for page in PAGES.values() for entry in page.entries}
    return next((paths[name] for name in named_in(title) if name in paths), None)
