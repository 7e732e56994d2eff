"""Why two keys of one program differ: which part of the key, and which lines of StableHLO."""

import itertools
import os
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator

import perfsuite.measure
from perfsuite.measure.hlo.hlo_module import Stack
from perfsuite.measure.hlo.locations import number_locations
from perfsuite.measure.private.persistent_cache import CACHE_FOLDER, COMPUTATION, ProgramKey
from perfsuite.measure.program.placed import source_of
from perfsuite.measure.program.program import place_of
from perfsuite.measure.words import plural

_PLACES_SHOWN = 3
_LONGEST = 120
"""Characters of a line that are shown; a constant may have millions."""

_VALUE = re.compile(r"%\w+")
_REORDERED = "the same operations in another order; code that iterates over a set does that, and sorted(...) does not"

_MEASURE = os.path.join(os.path.dirname(perfsuite.measure.__file__), "")
"""What asked for the trace: neither it nor the test around it is where a line comes from."""

_INSTALLED = os.path.join(sysconfig.get_path("purelib"), "")

_WITHOUT_FOLDER = "jax_persistent_cache_enable_xla_caches='none'"
_WITH_PLACES = "jax_compilation_cache_include_metadata_in_key"

Line = tuple[str, Stack]


def difference(first: ProgramKey, second: ProgramKey, names: tuple[str, str]) -> list[str]:
    """How the keys of two processes, called `names`, differ. Empty for equal keys."""
    if first.key == second.key:
        return []
    parts = [part for part in first.parts if first.parts[part] != second.parts.get(part)]
    said: list[str] = []
    if COMPUTATION in parts:
        said += _computation(first.text, second.text, names)
    for part in parts:
        if part != COMPUTATION:
            said += _part(part, first.contents.get(part, ""), second.contents.get(part, ""), names)
    return said or ["the keys differ, and JAX does not log their parts"]


def _part(part: str, first: str, second: str, names: tuple[str, str]) -> list[str]:
    said = [f"the part {part!r} of the key differs"]
    if first != second:
        said += [f"  {name}: {text}" for name, text in zip(names, _shortened(first, second), strict=True)]
    if _folder_of(first) != _folder_of(second):
        said.append(f"  JAX puts the folder of the cache into the key: {_WITHOUT_FOLDER} takes it out")
    return said


def _folder_of(text: str) -> str:
    found = re.search(rf"{CACHE_FOLDER} [^,]*", text)
    return "" if found is None else found[0]


def _computation(first: str, second: str, names: tuple[str, str]) -> list[str]:
    one, other = (number_locations(text).lines() for text in (first, second))
    places = list(_different(one, other))
    if not places:
        return _locations(one, other)
    differ = sum(a[0] != b[0] for a, b in zip(one, other, strict=False))
    said = [f"the program differs in {differ:,} of {plural(len(one), 'line')} of StableHLO"]
    if len(one) != len(other):
        counts = " and ".join(f"{len(lines):,} in {name}" for lines, name in zip((one, other), names, strict=True))
        said = [f"the program has another number of lines of StableHLO: {counts}; the first that differs:"]
    elif _operations(one) == _operations(other):
        said[0] += f": {_REORDERED}"
    for at, line, texts in places[:_PLACES_SHOWN]:
        said.append(f"  line {line:,}{at and f', from {at}'}")
        said += [f"    {name}: {text}" for name, text in zip(names, texts, strict=True)]
    if (more := len(places) - _PLACES_SHOWN) > 0:
        said.append(f"  and from {plural(more, 'more place')}")
    return said


def _operations(lines: list[Line]) -> Counter[str]:
    """The lines without the names of their values, which follow their order."""
    return Counter(_VALUE.sub("", text) for text, _ in lines)


def _different(one: list[Line], other: list[Line]) -> Iterator[tuple[str, int, tuple[str, str]]]:
    """The first line that differs from each place of the user's code: the place, its number, and both texts.

    Where lines were added, those after them differ by their numbers alone: then only the first is told.
    """
    seen = set()
    for number, (a, b) in enumerate(zip(one, other, strict=False)):
        if a[0] == b[0]:
            continue
        at = _place(one, number)
        if at not in seen:
            seen.add(at)
            yield at, number + 1, _shortened(a[0], b[0])
        if len(one) != len(other):
            return
    if len(one) != len(other) and not seen:
        number = min(len(one), len(other))
        longer = one if len(one) > number else other
        texts = longer[number][0] if longer is one else "", longer[number][0] if longer is other else ""
        yield _place(longer, number), number + 1, texts


def _place(lines: list[Line], number: int) -> str:
    """The line of Python that a line comes from. JAX says only of what uses a constant where that is."""
    text, stack = lines[number]
    name = text.partition(" ")[0]
    if "stablehlo.constant" in text:
        uses = (
            used for line, used in lines[number + 1 :] if f"{name} " in f"{line} ".replace(",", " ").replace(")", " ")
        )
        stack = next((used for used in uses if _in_words(used)), stack)
    return _in_words(stack)


def _in_words(stack: Stack) -> str:
    """`model.py:10 in step (through numpyro/infer/elbo.py:275 in loss)`: the user's line, and the innermost."""
    traced = tuple(itertools.takewhile(lambda frame: not frame.file.startswith(_MEASURE), stack))
    source = source_of(traced)
    if source is None:
        return ""
    innermost = place_of(traced[0]).removeprefix(_INSTALLED)
    return innermost if source == traced[0] else f"{place_of(source)} (through {innermost})"


def _locations(one: list[Line], other: list[Line]) -> list[str]:
    """Of equal lines."""
    for number, (a, b) in enumerate(zip(one, other, strict=False)):
        if a[1] != b[1]:
            texts = " and ".join(f"{stack[0].file}:{stack[0].line}" for stack in (a[1], b[1]) if stack)
            return [f"places of the source are in the key ({_WITH_PLACES}): those of line {number + 1:,} are {texts}"]
    return [f"the part {COMPUTATION!r} of the key differs, and no line of StableHLO does"]


def _shortened(first: str, second: str) -> tuple[str, str]:
    """Both texts from a little before where they begin to differ."""
    begin = 0
    if max(len(first), len(second)) > _LONGEST:
        differs = (number for number, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
        begin = max(0, next(differs, min(len(first), len(second))) - _LONGEST // 2)
    return tuple(_cut(text, begin) for text in (first, second))  # type: ignore[return-value]


def _cut(text: str, begin: int) -> str:
    cut = text[begin : begin + _LONGEST]
    return f"{'...' if begin else ''}{cut}{'...' if begin + _LONGEST < len(text) else ''}"
