"""One named metric, and an estimate. Instruments make them, gates judge them, and reports show them."""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Literal, get_args

from perfsuite.measure.words import number

Kind = Literal["count", "size", "ratio", "time", "info"]
"""It decides how a gate treats a metric."""

Better = Literal["lower", "higher"]
"""Which way a metric gets better."""

KINDS: tuple[Kind, ...] = get_args(Kind)

# The units of counts and sizes that gates and reports treat in a way of their own.

HOST_CALLS = "calls"
INSTRUCTIONS = "instructions"
OTHERS = "others"
"""The functions of a library that make too few instructions to be named: "libc.so.6:others in step.py:train"."""

MISSES = "misses"
"""Calls that missed `jax.jit`'s C++ fast path."""

CALLS_TO_TRACE = "calls to trace"
CALLS_TO_LOWER = "calls to lower"
EQUATIONS = "equations"

MODULES = "modules"
BACKENDS = "backends"

OF_PYTHON = (HOST_CALLS, INSTRUCTIONS, CALLS_TO_TRACE, CALLS_TO_LOWER, MODULES)
"""Counts that change with Python's minor version."""

ESTIMATED = "us, estimated"
"""Time by the models of compilers and of perfsuite. Another of perfsuite's has another unit, "us, estimated 2"."""

# It names a file, so it must not lead out of the folder.
_TARGET = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def is_finite(value: float) -> bool:
    """Whether a float can hold the number: `math.isfinite` raises for an int of 400 digits."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


@dataclasses.dataclass(frozen=True)
class Interval:
    """A confidence interval, in the unit of its metric."""

    low: float
    high: float

    def __post_init__(self):
        if not self.low <= self.high:
            raise ValueError(f"interval [{self.low}, {self.high}] is empty or not a number")

    @property
    def half_width(self) -> float:
        """Half the distance of its ends."""
        return (self.high - self.low) / 2

    def widened(self, by: float) -> "Interval":
        """The interval, `by` wider to either side."""
        return Interval(self.low - by, self.high + by)


def span(value: float, interval: Interval | None) -> str:
    """`1.062 [1.055, 1.07]`; the value alone where the interval is not bounded."""
    if interval is None or not (math.isfinite(interval.low) and math.isfinite(interval.high)):
        return number(value)
    return f"{number(value)} [{number(interval.low)}, {number(interval.high)}]"


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A value with its interval, which holds it with the probability that its maker states."""

    value: float
    interval: Interval

    def __str__(self) -> str:
        return span(self.value, self.interval)


@dataclasses.dataclass(frozen=True)
class Metric:
    """One metric with its unit and kind.

    `kind` decides how a gate treats the metric. A metric that was sampled has `interval` and `samples`. `detail`
    splits a count or a size into its parts (host calls by function), so that a failed gate can say which part grew.
    `places` says where in the source the parts are now ("model.py:42 in attention"); baseline files leave it out,
    for every edit moves lines. `target` names the device that the metric was compiled for ("tpu-v5e"); None is the
    present device. `quickest` is the value by the quickest blocks of what was sampled: other processes slow some
    blocks, and code slows most. `at_least` says which places of the source make the value a lower bound: loops
    counted once whose iterations depend on data. `at_most` says which make it an upper bound: conditionals of which
    the largest branch counts, and loops that may end sooner than their limit ("while at model.py:42 in solve"). A
    `symptom` costs nothing by itself, so a message names it after what costs.

    `name` is for people. `id` says which metric of its test it is, also when the function that it is named after has
    another name; by default it is the name.
    """

    name: str
    value: float
    unit: str
    kind: Kind
    better: Better = "lower"
    interval: Interval | None = None
    samples: int | None = None
    detail: Mapping[str, float] | None = None
    target: str | None = None
    places: dict[str, str] | None = None
    quickest: float | None = None
    at_least: tuple[str, ...] = ()
    at_most: tuple[str, ...] = ()
    id: str = ""
    symptom: bool = False

    def __post_init__(self):
        if not self.id:
            object.__setattr__(self, "id", self.name)
        if not isinstance(self.name, str) or not self.name.strip() or not self.name.isprintable():
            raise ValueError(f"a metric needs a name, of one line, got {self.name!r}")
        if not isinstance(self.unit, str) or not self.unit.isprintable():
            raise ValueError(f"{self.name}: unit must be a text of one line, got {self.unit!r}")
        if self.kind not in KINDS:
            raise ValueError(f"{self.name}: kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if self.better not in get_args(Better):
            raise ValueError(f"{self.name}: better must be 'lower' or 'higher', got {self.better!r}")
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise TypeError(f"{self.name}: value must be an int or a float, got {type(self.value).__name__}")
        if not is_finite(self.value):
            got = self.value if isinstance(self.value, float) else "a larger number"
            raise ValueError(f"{self.name}: value must be finite, got {got}")
        if self.kind == "count" and self.value != int(self.value):
            raise ValueError(f"{self.name}: a count must be whole, got {self.value}")
        if self.target is not None and not _TARGET.fullmatch(self.target):
            raise ValueError(f"{self.name}: target must be a name like 'tpu-v5e', got {self.target!r}")

    @property
    def title(self) -> str:
        """The name, with the target where there is one: unique in its test, and what tables and messages show."""
        return title(self.name, self.target)


def title(name: str, target: str | None) -> str:
    """`step flops @ tpu-v5e`; the name alone for a metric of the present device."""
    return name if target is None else f"{name} @ {target}"
