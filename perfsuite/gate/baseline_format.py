"""The text of a baseline file: one metric a line, sorted, the same bytes for the same metrics: a diff to be read."""

import functools
import json
import json.decoder
import json.scanner
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from perfsuite.gate.baseline import Baselines, Entry, Revision
from perfsuite.gate.environment import Environment, environment_from_dict
from perfsuite.measure.metric import Interval
from perfsuite.measure.words import printable

SCHEMA = 3

_TOP_KEYS = ("schema", "device", "environments", "metrics")
_REVISIONS = "revisions"
_NEEDED = ("value", "unit", "kind", "provenance")
_OPTIONAL = ("environment", "low", "high", "samples", "better", "source", "detail", "label")

# No line of JSON starts like this: a line break inside a text is written as an escape.
_CONFLICT = re.compile(r"^(?:<{7}|\|{7}|={7}|>{7})(?:[ \r]|$)", re.MULTILINE)

_REPAIR = "repair it, or `git checkout` the file"
_DAMAGED = f"cut short or half merged? {_REPAIR}"

Metrics = Mapping[str, Mapping[str, Entry]]
"""Entries by the test's id and the metric's."""

_DEEPEST = 50
"""A baseline file nests six deep. The limit keeps a file of brackets from using up Python's stack."""

# The functions that the standard library's reader in Python is made of. They get the position in the text.
_READ_OBJECT = json.decoder.JSONObject  # type: ignore[attr-defined]
_READ_ARRAY = json.decoder.JSONArray  # type: ignore[attr-defined]


def render(baselines: Baselines) -> str:
    """The file's text. Environments that no metric refers to are left out."""
    environments = baselines.environments
    revisions = [(test, _line(_revision_fields(each))) for test, each in sorted(baselines.revisions.items())]
    top = (
        ("schema", str(SCHEMA)),
        ("device", _line(baselines.device)),
        ("environments", _object(" ", ((id, _line(environments[id].as_dict())) for id in sorted(environments)))),
        *([(_REVISIONS, _object(" ", revisions))] if revisions else []),
        ("metrics", _object(" ", _rendered(baselines.metrics, "  "))),
    )
    return _object("", top) + "\n"


def encode(baselines: Baselines) -> bytes:
    """`render`, in UTF-8. Half a surrogate pair, which UTF-8 does not know, becomes the escape that JSON has for it."""
    return render(baselines).encode("utf-8", errors="backslashreplace")


def parse(text: str, device: str | None = None) -> Baselines:
    """The inverse of `render`. `device` is the one that the metrics have to be of.

    Names and texts are made printable: a pull request can bring any file, and messages show what is in it.

    Raises `LocatedError` naming the line and what to do, for a text that is not exactly such a file.
    """
    if marker := _CONFLICT.search(text):
        problem = "unresolved merge conflict: resolve it, or `git checkout` the file"
        raise LocatedError(problem, _line_at(text, marker.start()))
    if not text.strip():
        raise LocatedError("the file is empty: `git checkout` it, or delete it and run pytest --perf-save", 1)
    top = _Reader(text).read()
    _check_schema(top)
    _check_keys(top, "the file", needed=_TOP_KEYS, optional=(_REVISIONS,))
    recorded = top["device"]
    if not isinstance(recorded, str) or not recorded:
        problem = f"`device` must be the name of a device, got {recorded!r:.40}: {_REPAIR}"
        raise LocatedError(problem, top.line_of("device"))
    if device is not None and recorded != device:
        # Gating one device by another's metrics would pass and fail at random.
        raise LocatedError(f"these are the metrics of {recorded!r}: rename the file to that", top.line_of("device"))
    found = top.member("environments", "environments")
    environments = {id: _environment(id, found.member(id, f"environment {id!r}")) for id in found}
    metrics = _metrics(top.member("metrics", "metrics"), environments)
    revisions = dict(_revisions(top.member(_REVISIONS, _REVISIONS))) if _REVISIONS in top else {}
    return Baselines(recorded, metrics, revisions)


class LocatedError(ValueError):
    """What is wrong with a text, and the line (from 1) on which it is wrong."""

    def __init__(self, problem: str, line: int):
        super().__init__(f"line {line}: {problem}")
        self.problem = problem
        self.line = line


class _Object(dict[str, Any]):
    """An object of the file, which starts at a position of its text."""

    def __init__(self, pairs: Sequence[tuple[str, Any]], text: str, start: int):
        super().__init__(pairs)
        self._text = text
        self._start = start
        self.line = _line_at(text, start)
        if len(self) < len(pairs):  # the last of two equal keys would win
            keys = [key for key, _ in pairs]
            key = next(key for key in keys if keys.count(key) > 1)
            first, second, *_ = self._lines_of(key)
            raise LocatedError(f"the key {key!r} is here a second time, after line {first}; {_DAMAGED}", second)

    def line_of(self, key: str) -> int:
        """The line of one of its keys."""
        return self._lines_of(key)[0]

    def member(self, key: str, label: str) -> "_Object":
        """The object under a key. Raises `LocatedError`, with `label`, where it is none."""
        value = self[key]
        if not isinstance(value, _Object):
            raise LocatedError(f"{label} must be an object, got {value!r:.40}: {_REPAIR}", self.line_of(key))
        return value

    def members(self) -> Iterable[tuple[str, "_Object"]]:
        return ((key, self.member(key, repr(key))) for key in self)

    def _lines_of(self, key: str) -> list[int]:
        written = "|".join(re.escape(json.dumps(key, ensure_ascii=ascii)) for ascii in (False, True))
        pattern = re.compile(rf"(?:{written})\s*:")
        return [_line_at(self._text, match.start()) for match in pattern.finditer(self._text, self._start)]


class _Reader(json.JSONDecoder):
    """The standard library's reader, in Python, which tells where each object starts and reads nothing twice."""

    def __init__(self, text: str):
        super().__init__(parse_constant=_no_constant)
        self._text = text
        self._at = self._depth = 0
        self.parse_object = functools.partial(self._nested, _READ_OBJECT)
        self.parse_array = functools.partial(self._nested, _READ_ARRAY)
        self.scan_once = json.scanner.py_make_scanner(self)  # type: ignore[attr-defined]

    def read(self) -> _Object:
        """The object that the text is. Raises `LocatedError` where it is none."""
        try:
            value = self.decode(self._text)
        except json.JSONDecodeError as error:
            problem = error.msg[0].lower() + error.msg[1:].removesuffix(" at")
            if error.pos < len(self._text) and self._text[error.pos] in "\r\n" and "control" in problem:
                problem = "a text without its closing quote"
            raise LocatedError(f"{problem}; {_DAMAGED}", error.lineno) from None
        except LocatedError:
            raise
        except ValueError as error:  # NaN and its like, or a whole number beyond Python's limit of digits
            raise LocatedError(f"{error}; {_DAMAGED}", _line_at(self._text, self._at)) from None
        if not isinstance(value, _Object):
            raise LocatedError(f"no `schema`, so this is not a whole baseline file: {_REPAIR}", 1)
        return value

    def _nested(self, read: Callable, text_and_end: tuple[str, int], *arguments: Any) -> tuple[Any, int]:
        start = text_and_end[1] - 1
        if self._depth >= _DEEPEST:
            raise LocatedError(f"nested more than {_DEEPEST} deep; {_DAMAGED}", _line_at(self._text, start))
        self._depth += 1
        if read is _READ_ARRAY:
            value = read(text_and_end, self._scan)
        else:
            strict, _, _, _, memo = arguments
            value = read(text_and_end, strict, self._scan, None, lambda pairs: _Object(pairs, self._text, start), memo)
        self._depth -= 1
        return value

    def _scan(self, text: str, at: int) -> tuple[Any, int]:
        self._at = at
        return self.scan_once(text, at)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number that JSON knows")


def _line_at(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _line(value: Any, *, sort: bool = True) -> str:
    return json.dumps(value, sort_keys=sort, ensure_ascii=False, allow_nan=False)


def _object(indent: str, members: Iterable[tuple[str, str]]) -> str:
    lines = [f"{indent} {_line(key)}: {value}" for key, value in members]
    return "{\n" + ",\n".join(lines) + "\n" + indent + "}" if lines else "{}"


def _rendered(metrics: Metrics, indent: str) -> Iterator[tuple[str, str]]:
    for test, entries in sorted(metrics.items()):
        lines = ((name, _line(_entry_fields(entries[name]), sort=False)) for name in sorted(entries))
        yield test, _object(indent, lines)


def _entry_fields(entry: Entry) -> dict[str, Any]:
    """In the order in which people read a line: what it is, and the longest last."""
    fields = {
        "label": entry.label,
        "value": entry.value,
        "unit": entry.unit,
        "kind": entry.kind,
        "provenance": entry.provenance,
        "environment": entry.environment.id if entry.environment else None,
        "low": entry.interval.low if entry.interval else None,
        "high": entry.interval.high if entry.interval else None,
        "samples": entry.samples,
        "better": entry.better if entry.better != "lower" else None,
        "source": entry.source,
        "detail": dict(entry.detail) if entry.detail else None,
    }
    return {key: value for key, value in fields.items() if value is not None}


def _revision_fields(revision: Revision) -> dict[str, Any]:
    return {"commit": revision.commit, "dirty": True} if revision.dirty else {"commit": revision.commit}


def _revisions(found: _Object) -> Iterator[tuple[str, Revision]]:
    for test, fields in found.members():
        label = f"the revision of {test!r}"
        _check_keys(fields, label, needed=("commit",), optional=("dirty",))
        try:
            yield test, Revision(**fields)
        except TypeError as error:
            raise LocatedError(f"{label}: {error}: {_REPAIR}", fields.line) from None


def _metrics(found: _Object, environments: Mapping[str, Environment]) -> dict[str, dict[str, Entry]]:
    metrics = {}
    for test, entries in found.members():
        labels = ((name, f"{name!r} of {test!r}") for name in entries)
        metrics[printable(test)] = {
            printable(name): _entry(label, entries.member(name, label), environments) for name, label in labels
        }
    return metrics


def _check_schema(top: _Object) -> None:
    if "schema" not in top:
        raise LocatedError(f"no `schema`, so this is not a whole baseline file: {_REPAIR}", top.line)
    schema = top["schema"]
    if type(schema) is not int:
        problem = f"`schema` must be a whole number, got {schema!r}: {_REPAIR}"
    elif schema > SCHEMA:
        problem = f"written by a newer perfsuite (schema {schema}, this one reads {SCHEMA}): upgrade perfsuite"
    elif schema < SCHEMA:
        how = "delete the file and run pytest --perf-save"
        problem = f"written by an older perfsuite (schema {schema}, this one reads {SCHEMA}): {how}"
    else:
        return
    raise LocatedError(problem, top.line_of("schema"))


def _environment(id: str, fields: _Object) -> Environment:
    try:
        return environment_from_dict(_shown(fields))
    except (TypeError, ValueError) as error:
        raise LocatedError(f"environment {id!r}: {error}: {_REPAIR}", fields.line) from None


def _entry(label: str, recorded: _Object, environments: Mapping[str, Environment]) -> Entry:
    _check_keys(recorded, label, needed=_NEEDED, optional=_OPTIONAL)
    fields = _shown(recorded)
    if missing := [key for key, value in fields.items() if value is None]:
        raise LocatedError(f"{label}: {missing[0]} is null; leave the key out or give it a value", recorded.line)
    id = fields.pop("environment", None)
    if id is not None and (not isinstance(id, str) or id not in environments):
        problem = f"{label}: environment {id!r} is not among the file's environments: {_REPAIR}"
        raise LocatedError(problem, recorded.line)
    low, high = (fields.pop(key, None) for key in ("low", "high"))
    try:
        interval = _interval(low, high)
        return Entry(**fields, interval=interval, environment=None if id is None else environments[id])
    except (TypeError, ValueError) as error:
        raise LocatedError(f"{label}: {error}: {_REPAIR}", recorded.line) from None


def _shown(value: Any) -> Any:
    """The value with its texts and keys printable."""
    if isinstance(value, dict):
        return {printable(key): _shown(each) for key, each in value.items()}
    return printable(value) if isinstance(value, str) else value


def _interval(low: Any, high: Any) -> Interval | None:
    for key, number in (("low", low), ("high", high)):
        if number is not None and type(number) not in (int, float):
            raise TypeError(f"{key} must be a number, got {number!r}")
        if isinstance(number, float) and not math.isfinite(number):
            raise ValueError(f"{key} must be finite, got {number}")
    if (low is None) != (high is None):
        raise ValueError("low and high belong together, one of them is missing")
    return None if low is None else Interval(low, high)


def _check_keys(found: _Object, label: str, *, needed: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
    if missing := [key for key in needed if key not in found]:
        raise LocatedError(f"{label} lacks {', '.join(missing)}: {_REPAIR}", found.line)
    if unknown := [key for key in found if key not in needed + optional]:
        raise LocatedError(f"{label} has the unknown key {unknown[0]!r}: {_REPAIR}", found.line_of(unknown[0]))
