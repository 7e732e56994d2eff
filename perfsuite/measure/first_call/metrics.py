"""The metrics of a first call, each with the lines and functions that it comes from."""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from perfsuite.measure.first_call.first_call import FirstCall
from perfsuite.measure.first_call.users_code import UserLine, is_users
from perfsuite.measure.metric import CALLS_TO_LOWER, CALLS_TO_TRACE, EQUATIONS, Kind, Metric
from perfsuite.measure.words import plural

PARTS_KEPT = 12
"""How many parts a metric names."""
PRIMITIVES_NAMED = 3

NOT_USERS = "libraries"
"""What is traced for no line of the user's, such as the wrapper of a jitted function of jax.numpy."""


class Counted(NamedTuple):
    """A metric that is counted: what it is called after the name of the function, its unit and its kind."""

    suffix: str
    unit: str
    kind: Kind = "count"


COUNTED: dict[str, Counted] = {
    "constants": Counted(" constants", "constants"),
    "constant_bytes": Counted(" constant bytes", "bytes", "size"),
    "equations": Counted(" equations", EQUATIONS),
    "traces": Counted(" traces", "traces"),
    "trace_calls": Counted(" trace calls", CALLS_TO_TRACE, "size"),
    "lowering_calls": Counted(" lowering calls", CALLS_TO_LOWER, "size"),
    "stablehlo_bytes": Counted(" StableHLO bytes", "bytes", "size"),
}
"""By the field of `Budget` that limits it. The causes come first, because a message explains the first that fails.

Calls are sizes, with 1 % of room, for two reasons that were seen (jax 0.10.2). A library that leaves a loop over a set
early makes more or fewer of them by the hash seed: `can_blas` of opt_einsum, which `jax.numpy.einsum` runs, makes 8 to
24 of the 762,674 of a step of BERT. And JAX makes a `ShapedArray` anew only where no equal one is alive, which an
earlier test may hold: 4 calls of 178,976 in a generation.
"""

_SECONDS = {"trace_seconds": " trace seconds", "lowering_seconds": " lowering seconds"}
_COMPILE_SECONDS = " compile seconds"
SUFFIXES = (*(each.suffix for each in COUNTED.values()), *_SECONDS.values(), _COMPILE_SECONDS)


class Parts(NamedTuple):
    """What a metric is made of: amounts by name, the largest first, and where in the source each is now."""

    amounts: dict[str, int]
    places: dict[str, str]


def value_of(counted: FirstCall, field: str) -> int:
    """The value of a metric of `COUNTED`."""
    return len(counted.constants) if field == "constants" else getattr(counted, field)


def metrics(counted: FirstCall, name: str) -> dict[str, Metric]:
    """The counts and sizes, by the field of `Budget` that limits each."""
    made = {}
    for field, (suffix, unit, kind) in COUNTED.items():
        parts = parts_of(counted, field)
        kept = dict(list(parts.amounts.items())[:PARTS_KEPT])
        places = {part: place for part, place in parts.places.items() if part in kept}
        value = value_of(counted, field)
        made[field] = Metric(name + suffix, value, unit, kind, detail=kept or None, places=places or None)
    return made


def seconds(counted: FirstCall, name: str) -> list[Metric]:
    """The seconds of each stage, which nothing gates."""
    each = {suffix: getattr(counted, field) for field, suffix in _SECONDS.items()}
    if counted.compile_seconds is not None:
        each[_COMPILE_SECONDS] = counted.compile_seconds
    return [Metric(name + suffix, value, "s", "info", samples=1) for suffix, value in each.items()]


def parts_of(counted: FirstCall, field: str) -> Parts:
    """What a metric of `COUNTED` is made of; nothing is known of what lowering calls, and of the bytes of a program."""
    if field == "trace_calls":
        return _by_function({line: {"": calls} for line, calls in counted.calls_by_line.items()})
    if field == "equations":
        primitives: dict[UserLine | None, dict[str, int]] = {}
        for (line, primitive), count in counted.equations_by_line.items():
            primitives.setdefault(line, {})[primitive] = count
        return _by_function(primitives)
    if field == "traces":
        return _of_traces(counted)
    if field in ("constants", "constant_bytes"):
        return _of_constants(counted, in_bytes=field == "constant_bytes")
    return Parts({}, {})


def _by_function(lines: Mapping[UserLine | None, Mapping[str, int]]) -> Parts:
    """Lines move with every edit, so the amounts are those of functions; their places are the lines."""
    amounts: Counter[str] = Counter()
    of_lines: dict[str, Counter[UserLine]] = {}
    for line, kinds in lines.items():
        name = NOT_USERS if line is None else line.name
        amounts[name] += sum(kinds.values())
        if line is not None:
            of_lines.setdefault(name, Counter())[line] += sum(kinds.values())
    return Parts(_largest(amounts), {name: _place_of(found, lines) for name, found in of_lines.items()})


def _place_of(lines: Counter[UserLine], kinds: Mapping[UserLine | None, Mapping[str, int]]) -> str:
    """`model.py:12 (dot_general, add) and 2 more lines`: the line with most."""
    line = min(lines, key=lambda each: (-lines[each], each))
    named = list(_largest(Counter(kinds[line])))[:PRIMITIVES_NAMED]
    said = f"{line.place} ({', '.join(named)})" if any(named) else line.place
    return said if len(lines) == 1 else f"{said} and {plural(len(lines) - 1, 'more line')}"


def _of_traces(counted: FirstCall) -> Parts:
    amounts: Counter[str] = Counter()
    places: dict[str, str] = {}
    for (function, file, line), traces in sorted(counted.traces_by_function.items()):
        amounts[function] += traces
        if file and is_users(file):
            places.setdefault(function, UserLine(file, function, line).place)
    return Parts(_largest(amounts), places)


def _of_constants(counted: FirstCall, *, in_bytes: bool) -> Parts:
    amounts: Counter[str] = Counter()
    places: dict[str, list[str]] = {}
    for constant in counted.constants:
        amounts[constant.array] += constant.bytes if in_bytes else 1
        if constant.line is not None:
            places.setdefault(constant.array, []).append(constant.line.place)
    return Parts(_largest(amounts), {array: ", ".join(dict.fromkeys(each)) for array, each in places.items()})


def _largest(amounts: Counter[str]) -> dict[str, int]:
    return dict(sorted(amounts.items(), key=lambda item: (-item[1], item[0])))
