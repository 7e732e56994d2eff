"""The model of a baseline file: its entries.

`merging` has the rules by which new metrics replace them, `baseline_file` reads and writes the file.
"""

import dataclasses
import hashlib
import math
from collections.abc import Mapping
from typing import Any, Literal

from perfsuite.gate.environment import Environment
from perfsuite.measure.metric import KINDS, Better, Interval, Kind, Metric

Provenance = Literal["measured", "compiled", "reported"]
PROVENANCES: tuple[Provenance, ...] = ("measured", "compiled", "reported")

_SIGNIFICANT_DIGITS = 6

PARTS_READABLE = 12
"""So many parts of a metric have their names in a file, the largest; the others have short hashes of them."""

DIGEST_MARK = "#"
"""Begins such a hash."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """One recorded metric.

    `value` and `interval` are in `unit`. `provenance` is "measured" on the device, in `environment`; "compiled" by the
    device's compiler on a machine without the device; or "reported" by the document that `source` names: that never
    gates. `detail` splits a count or a size into all its parts. `label` is what people call the metric, where its id is
    another; nothing compares it.

    Numbers are held as the file writes them: whole counts and sizes exactly, other floats with 6 significant digits. So
    an entry is equal to itself after saving and loading.

    Raises `TypeError` or `ValueError` naming the field that does not fit.
    """

    value: float
    unit: str
    kind: Kind
    provenance: Provenance
    environment: Environment | None = None
    interval: Interval | None = None
    samples: int | None = None
    better: Better = "lower"
    source: str | None = None
    detail: Mapping[str, float] | None = None
    label: str | None = None

    def __post_init__(self):
        _one_of("kind", self.kind, KINDS)
        _one_of("provenance", self.provenance, PROVENANCES)
        _one_of("better", self.better, ("lower", "higher"))
        _typed("unit", self.unit, str)
        if self.label is not None:
            _typed("label", self.label, str)
        exact = self.kind in ("count", "size")
        object.__setattr__(self, "value", _number("value", self.value, exact=exact))
        if self.kind == "count" and self.value != int(self.value):
            raise ValueError(f"a count must be whole, got {self.value}")
        if self.interval is not None:
            _typed("interval", self.interval, Interval)
            low = _number("low", self.interval.low, exact=exact)
            object.__setattr__(self, "interval", Interval(low, _number("high", self.interval.high, exact=exact)))
        if self.samples is not None and _typed("samples", self.samples, int) < 1:
            raise ValueError(f"samples must be at least 1, got {self.samples}")
        if self.detail is not None:
            _typed("detail", self.detail, Mapping)
            detail = {_typed("a name in detail", name, str): _number("detail", self.detail[name], exact=True)
                      for name in sorted(self.detail)}  # fmt: skip
            object.__setattr__(self, "detail", detail or None)
        self._check_origin()

    def _check_origin(self):
        if self.environment is not None:
            _typed("environment", self.environment, Environment)
        if self.provenance == "reported":
            if not isinstance(self.source, str) or not self.source.strip():
                raise ValueError("a reported metric must name its document in `source`")
            if self.environment is not None:
                raise ValueError("a reported metric was not made here: it has no environment")
            return
        if self.source is not None:
            raise ValueError(f"only a reported metric has a `source`, this one is {self.provenance}")
        if self.provenance == "measured" and self.environment is None:
            raise ValueError("a measured metric must have the environment that it was measured in")

    @property
    def gates(self) -> bool:
        """Whether the metric may pass or fail anything. One from a document never does, nor one of kind info."""
        return self.provenance != "reported" and self.kind != "info"


@dataclasses.dataclass(frozen=True)
class Revision:
    """The commit that was checked out when metrics were recorded, and whether files differed from it (`dirty`)."""

    commit: str
    dirty: bool = False

    def __post_init__(self):
        _typed("commit", self.commit, str)
        if not isinstance(self.dirty, bool):
            raise TypeError(f"dirty must be true or false, got {self.dirty!r}")

    def __str__(self) -> str:
        return f"{self.commit[:12]}{' with changes' if self.dirty else ''}"


@dataclasses.dataclass(frozen=True)
class Baselines:
    """The recorded metrics of one device: `metrics[test id][metric id]`. `device` is the file's name, a slug.

    `revisions` has the revision at which a save last changed a metric of the test, where that is known.
    """

    device: str
    metrics: Mapping[str, Mapping[str, Entry]] = dataclasses.field(default_factory=dict)
    revisions: Mapping[str, Revision] = dataclasses.field(default_factory=dict)

    def get(self, test: str, id: str) -> Entry | None:
        """The metric that `test` recorded under an id, or None."""
        return self.metrics.get(test, {}).get(id)

    @property
    def entries(self) -> list[Entry]:
        """Every entry."""
        return [entry for entries in self.metrics.values() for entry in entries.values()]

    @property
    def environments(self) -> dict[str, Environment]:
        """The environments that an entry refers to, by id."""
        environments = {entry.environment for entry in self.entries}
        return {environment.id: environment for environment in environments if environment is not None}


def name_of(id: str, entry: Entry) -> str:
    """What people call a recorded metric: its label where it has one."""
    return entry.label or id


def entry_of(metric: Metric, environment: Environment | None, provenance: Provenance = "measured") -> Entry:
    """The entry that records `metric`.

    `environment` may be None for a compiled metric only. An interval that is not bounded on both sides (too few
    samples) tells nothing about later runs and is left out.
    """
    interval = metric.interval
    if interval is not None and not (math.isfinite(interval.low) and math.isfinite(interval.high)):
        interval = None
    return Entry(
        value=metric.value,
        unit=metric.unit,
        kind=metric.kind,
        provenance=provenance,
        environment=environment,
        interval=interval,
        samples=metric.samples,
        better=metric.better,
        detail=_compact(metric.detail or {}),
        label=None if metric.name == metric.id else metric.name,
    )


def digest(name: str) -> str:
    """The short hash of a part's name."""
    return DIGEST_MARK + hashlib.blake2s(name.encode(errors="backslashreplace"), digest_size=4).hexdigest()


def _compact(detail: Mapping[str, float]) -> dict[str, float]:
    ordered = sorted(detail, key=lambda name: (-detail[name], name))
    return {name if place < PARTS_READABLE else digest(name): detail[name] for place, name in enumerate(ordered)}


def metric_of(id: str, entry: Entry, target: str | None = None) -> Metric:
    """The metric that `entry` records under an id: the inverse of `entry_of`."""
    return Metric(
        name_of(id, entry),
        entry.value,
        entry.unit,
        entry.kind,
        entry.better,
        entry.interval,
        entry.samples,
        dict(entry.detail) if entry.detail else None,
        target,
        id=id,
    )


def is_guard(id: str) -> bool:
    """Whether the metric of this id gets better where there is less to lose, or more to keep: that is no improvement.

    No donation is lost where nothing is donated, and more are reused where the state is larger.
    """
    return id.startswith("program") and id.endswith(("conditionals", "lost donations", "reused donations"))


def _one_of(field: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{field} must be one of {', '.join(allowed)}, got {value!r}")


def _typed(field: str, value: Any, wanted: type) -> Any:
    if not isinstance(value, wanted) or isinstance(value, bool):
        raise TypeError(f"{field} must be of type {wanted.__name__}, got {value!r}")
    return value


def _number(field: str, value: Any, *, exact: bool) -> float:
    """The number as the file writes it: an int where it is whole, so that 133.0 and 133 are the same text."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{field} must be a number, got {value!r}")
    try:
        finite = math.isfinite(value)
    except OverflowError:
        finite = False
    if not finite:
        raise ValueError(f"{field} must be finite, got {value if isinstance(value, float) else 'a larger number'}")
    if isinstance(value, int):
        return int(value)
    whole = value if exact and value.is_integer() else float(f"{value:.{_SIGNIFICANT_DIGITS}g}")
    # Beyond these a float's own notation (2.4e+18) is the shorter, and says how many digits are known.
    return int(whole) if whole.is_integer() and abs(whole) < (2**63 if exact else 10**15) else float(whole)
