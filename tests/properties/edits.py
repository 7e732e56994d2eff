"""Files and texts that went wrong: cut, overwritten, lines twice or in another order, another number, another word.

What reads them gets a real one with a few edits, because of random bytes alone it never reads past the first line.
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("PERFSUITE_FUZZ", "60"))
"""How many edited inputs each reader gets: a few in each run, 10,000 when a reader changes."""

_NUMBER, _WORD = re.compile(r"\d+"), re.compile(r"[A-Za-z%_][\w.-]*")
_NUMBERS = ("0", "1", "-1", "7", "1e999", "NaN", "9" * 30, "")
_INSERTED = (
    "",
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    '"',
    "\\",
    "\n",
    ",",
    ":",
    "é",
    "\x00",
    "\ud7ff",
    "null",
    "<<<<<<< ",
    " ",
)

_places = st.floats(0, 1, exclude_max=True)
_edits = st.tuples(
    st.sampled_from(("cut out", "cut off", "swap lines", "repeat line", "number", "word", "insert")),
    _places,
    _places,
    st.sampled_from(_NUMBERS),
    st.sampled_from(_INSERTED),
)


def edited(text: str) -> st.SearchStrategy[str]:
    """The text after one to four edits."""

    def after(edits: list) -> str:
        changed = text
        for edit in edits:
            changed = _edit(changed, *edit)
        return changed

    return st.lists(_edits, min_size=1, max_size=4).map(after)


def edited_bytes(content: bytes) -> st.SearchStrategy[bytes]:
    """The bytes after one to four edits."""
    return edited(content.decode("latin-1")).map(lambda text: text.encode("latin-1", errors="replace"))


_OTHER_VALUES = (
    None,
    True,
    0,
    -1,
    7,
    1.5,
    10**400,
    float("inf"),
    float("nan"),
    "",
    "inf",
    "a\x1b[2J\n",
    "\ud800",
    [],
    {},
)
_changes = st.tuples(
    st.sampled_from(("drop", "replace", "nest", "rename", "repeat")), _places, st.sampled_from(_OTHER_VALUES)
)
_deep = st.sampled_from(("[", '{"a":')).map(lambda start: start.encode() * 100_000)


def misshapen(value: Any) -> st.SearchStrategy[Any]:
    """The JSON value with one to three of its parts dropped, replaced, nested, renamed or repeated."""

    def after(changes: list) -> Any:
        changed = json.loads(json.dumps(value))
        for what, where, other in changes:
            parts = list(_parts(changed))
            if not parts:
                return other
            _change(*parts[int(where * len(parts))], what, other)
        return changed

    return st.lists(_changes, min_size=1, max_size=3).map(after)


def contents(value: Any) -> st.SearchStrategy[bytes]:
    """What a file or message may hold where this JSON value is expected: any bytes, JSON of another shape, edits."""
    written = json.dumps(value, indent=0).encode()
    others = st.binary(max_size=50) | st.text(max_size=50).map(lambda text: json.dumps(text).encode()) | _deep
    shapes = misshapen(value).map(lambda changed: json.dumps(changed).encode())
    return st.just(written) | shapes | shapes | edited_bytes(written) | others


def _parts(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each part of a JSON value: the dict or list that has it, and its name or place in there."""
    inside = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    for name, each in inside:
        yield value, name
        yield from _parts(each)


def _change(holder: Any, name: Any, what: str, other: Any) -> None:
    if what == "drop":
        del holder[name]
    elif what == "replace":
        holder[name] = other
    elif what == "nest":
        holder[name] = [holder[name]]
    elif isinstance(holder, list):
        holder.insert(0, holder[name])
    else:
        holder[f"{name}x"] = holder.pop(name) if what == "rename" else holder[name]


def outcome(refusals: type[Exception], function: Callable, *args: Any) -> tuple[Any, Exception | None]:
    """What a function returns and None, or None and the exception, one of `refusals`, that it raises."""
    try:
        return function(*args), None
    except refusals as error:
        return None, error


def _edit(text: str, what: str, first: float, second: float, number: str, inserted: str) -> str:
    at = int(first * len(text))
    if what == "cut out":
        return text[:at] + text[at + 1 + int(second * 200) :]
    if what == "cut off":
        return text[:at]
    if what == "insert":
        return text[:at] + inserted + text[at + int(second * 2) :]
    if what in ("number", "word"):
        found = list((_NUMBER if what == "number" else _WORD).finditer(text))
        if not found:
            return text
        here, other = (found[int(place * len(found))] for place in (first, second))
        return text[: here.start()] + (number if what == "number" else other[0]) + text[here.end() :]
    lines = text.split("\n")
    one, other_line = int(first * len(lines)), int(second * len(lines))
    if what == "swap lines":
        lines[one], lines[other_line] = lines[other_line], lines[one]
    else:
        lines.insert(other_line, lines[one])
    return "\n".join(lines)
