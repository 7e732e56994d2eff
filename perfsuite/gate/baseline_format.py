"""The text of a baseline file: one metric a line, sorted, the same bytes for the same metrics: a diff to be read."""

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from perfsuite.gate.baseline import Baselines, Entry
from perfsuite.gate.environment import Environment, environment_from_dict
from perfsuite.gate.located_json import Located, LocatedError, parse_located
from perfsuite.measure.measurement import Interval

SCHEMA = 1

_TOP_KEYS = ("schema", "device", "environments", "metrics")
_NEEDED = ("value", "unit", "kind", "provenance")
_OPTIONAL = ("environment", "low", "high", "noise", "samples", "better", "source", "detail")

# No line of JSON starts like this: a line break inside a text is written as an escape.
_CONFLICT = re.compile(r"^(?:<{7}|\|{7}|={7}|>{7})(?:[ \r]|$)", re.MULTILINE)

_REPAIR = "repair it, or `git checkout` the file"


def render(baselines: Baselines) -> str:
    """The file's text. Environments that no metric refers to are left out."""
    environments = baselines.environments
    metrics = (
        (test, _object("  ", ((name, _line(_entry_fields(entries[name]))) for name in sorted(entries))))
        for test, entries in sorted(baselines.metrics.items())
    )
    top = (
        ("schema", str(SCHEMA)),
        ("device", _line(baselines.device)),
        ("environments", _object(" ", ((id, _line(environments[id].as_dict())) for id in sorted(environments)))),
        ("metrics", _object(" ", metrics)),
    )
    return _object("", top) + "\n"


def encode(baselines: Baselines) -> bytes:
    """`render`, in UTF-8. Half a surrogate pair, which UTF-8 does not know, becomes the escape that JSON has for it."""
    return render(baselines).encode("utf-8", errors="backslashreplace")


def parse(text: str, device: str | None = None) -> Baselines:
    """The inverse of `render`. `device` is the one that the metrics have to be of.

    Raises `LocatedError` naming the line and what to do, for a text that is not exactly such a file.
    """
    if marker := _CONFLICT.search(text):
        line = text.count("\n", 0, marker.start()) + 1
        raise LocatedError("unresolved merge conflict: resolve it, or `git checkout` the file", line)
    if not text.strip():
        raise LocatedError("the file is empty: `git checkout` it, or delete it and run pytest --perf-save", 1)
    try:
        top = parse_located(text)
    except LocatedError as error:
        raise LocatedError(f"{error.problem}; cut short or half merged? {_REPAIR}", error.line) from None
    _check_schema(top)
    _check_keys(top, "the file", needed=_TOP_KEYS)
    located = top.value["device"]
    if not isinstance(located.value, str) or not located.value:
        _fail(located, f"`device` must be the name of a device, got {located.plain()!r:.40}: {_REPAIR}")
    if device is not None and located.value != device:
        # Gating one device by another's metrics would pass and fail at random.
        _fail(located, f"these are the metrics of {located.value!r}: rename the file to that")
    environments = {id: _environment(id, fields) for id, fields in _members(top.value["environments"], "environments")}
    metrics = {
        test: {name: _entry(f"{name!r} of {test!r}", fields, environments) for name, fields in _members(entries, test)}
        for test, entries in _members(top.value["metrics"], "metrics")
    }
    return Baselines(located.value, metrics)


def _line(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)


def _object(indent: str, members: Iterable[tuple[str, str]]) -> str:
    lines = [f"{indent} {_line(key)}: {value}" for key, value in members]
    return "{\n" + ",\n".join(lines) + "\n" + indent + "}" if lines else "{}"


def _entry_fields(entry: Entry) -> dict[str, Any]:
    fields = {
        "value": entry.value,
        "unit": entry.unit,
        "kind": entry.kind,
        "provenance": entry.provenance,
        "environment": entry.environment.id if entry.environment else None,
        "low": entry.interval.low if entry.interval else None,
        "high": entry.interval.high if entry.interval else None,
        "noise": entry.noise,
        "samples": entry.samples,
        "better": entry.better if entry.better != "lower" else None,
        "source": entry.source,
        "detail": dict(entry.detail) if entry.detail else None,
    }
    return {key: value for key, value in fields.items() if value is not None}


def _check_schema(top: Located) -> None:
    if not isinstance(top.value, dict) or "schema" not in top.value:
        _fail(top, f"no `schema`, so this is not a whole baseline file: {_REPAIR}")
    located = top.value["schema"]
    schema = located.value
    if type(schema) is not int:
        _fail(located, f"`schema` must be a whole number, got {schema!r}: {_REPAIR}")
    if schema > SCHEMA:
        _fail(located, f"written by a newer perfsuite (schema {schema}, this one reads {SCHEMA}): upgrade perfsuite")
    if schema < SCHEMA:
        how = "delete the file and run pytest --perf-save"
        _fail(located, f"written by an older perfsuite (schema {schema}, this one reads {SCHEMA}): {how}")


def _environment(id: str, fields: Located) -> Environment:
    if not isinstance(fields.value, dict):
        _fail(fields, f"environment {id!r} must be an object: {_REPAIR}")
    try:
        return environment_from_dict(fields.plain())
    except (TypeError, ValueError) as error:
        _fail(fields, f"environment {id!r}: {error}: {_REPAIR}")


def _entry(label: str, located: Located, environments: Mapping[str, Environment]) -> Entry:
    _check_keys(located, label, needed=_NEEDED, optional=_OPTIONAL)
    fields = located.plain()
    if missing := [key for key, value in fields.items() if value is None]:
        _fail(located, f"{label}: {missing[0]} is null; leave the key out or give it a value")
    id = fields.pop("environment", None)
    if id is not None and (not isinstance(id, str) or id not in environments):
        _fail(located, f"{label}: environment {id!r} is not among the file's environments: {_REPAIR}")
    low, high, noise = (fields.pop(key, None) for key in ("low", "high", "noise"))
    try:
        interval = _interval(low, high, noise)
        return Entry(**fields, interval=interval, environment=None if id is None else environments[id])
    except (TypeError, ValueError) as error:
        _fail(located, f"{label}: {error}: {_REPAIR}")


def _interval(low: Any, high: Any, noise: Any) -> Interval | None:
    for key, number in (("low", low), ("high", high), ("noise", noise)):
        if number is not None and type(number) not in (int, float):
            raise TypeError(f"{key} must be a number, got {number!r}")
        if isinstance(number, float) and not math.isfinite(number):
            raise ValueError(f"{key} must be finite, got {number}")
    if (low is None) != (high is None):
        raise ValueError("low and high belong together, one of them is missing")
    if low is None:
        if noise is not None:
            raise ValueError("noise needs low and high")
        return None
    return Interval(low, high)


def _members(located: Located, label: str) -> Iterable[tuple[str, Located]]:
    if not isinstance(located.value, dict):
        _fail(located, f"{label!r} must be an object, got {located.plain()!r:.40}: {_REPAIR}")
    return located.value.items()


def _check_keys(located: Located, label: str, *, needed: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
    if not isinstance(located.value, dict):
        _fail(located, f"{label} must be an object, got {located.plain()!r:.40}: {_REPAIR}")
    if missing := [key for key in needed if key not in located.value]:
        _fail(located, f"{label} lacks {', '.join(missing)}: {_REPAIR}")
    for key, value in located.value.items():
        if key not in needed + optional:
            _fail(value, f"{label} has the unknown key {key!r}: {_REPAIR}")


def _fail(located: Located, problem: str) -> NoReturn:
    raise LocatedError(problem, located.line)
