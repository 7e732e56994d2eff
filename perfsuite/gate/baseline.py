"""The model of a baseline file: its entries.

`merging` has the rules by which new metrics replace them, `baseline_format` turns the model into text and back,
`baseline_file` reads and writes the file.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

from perfsuite.gate.environment import Environment
from perfsuite.measure.metric import KINDS, Better, Interval, Kind, Metric

Provenance = Literal["measured", "compiled", "reported"]
PROVENANCES: tuple[Provenance, ...] = ("measured", "compiled", "reported")

_SIGNIFICANT_DIGITS = 6


@dataclasses.dataclass(frozen=True)
class Entry:
    """One recorded metric.

    `value` and `interval` are in `unit`. `provenance` is "measured" on the device, in `environment`; "compiled" by the
    device's compiler on a machine without the device; or "reported" by the document that `source` names: that never
    gates. `detail` splits a count or a size into its parts. `label` is what people call the metric, where its id is
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
    detail: Mapping[str, int] | None = None
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
            detail = {_typed("a name in detail", name, str): _typed("detail", self.detail[name], int)
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
    def noise(self) -> float | None:
        """Half the interval's width over the value, without unit; None without interval or where the value is 0."""
        if self.interval is None or not self.value:
            return None
        noise = (self.interval.high / 2 - self.interval.low / 2) / abs(self.value)
        # Two digits tell a quiet metric from a noisy one; more would only lengthen a diff.
        return float(f"{noise:.2g}") if math.isfinite(noise) else None

    @property
    def processor(self) -> str:
        """The host's processor, where the metric depends on it and may be recorded for several; else empty.

        Times do, and ratios of sampled times. Other ratios (a share of tokens, an accuracy) are what they are anywhere.
        """
        timed = self.kind == "time" or (self.kind == "ratio" and self.samples is not None)
        measured = self.environment if self.provenance == "measured" and timed else None
        return measured.processor if measured is not None else ""

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

    `revisions` has the revision at which a save last changed a metric of the test, where that is known. Of a metric
    that is recorded for several processors, `metrics` has the first, and
    `other_processors[processor][test id][metric id]` the others: each is of the processor that it stands under, and of
    another one than the first. Where git merged two files otherwise, an entry that stands alone becomes the first, and
    one beside another of its own processor goes.
    """

    device: str
    metrics: Mapping[str, Mapping[str, Entry]] = dataclasses.field(default_factory=dict)
    revisions: Mapping[str, Revision] = dataclasses.field(default_factory=dict)
    other_processors: Mapping[str, Mapping[str, Mapping[str, Entry]]] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        metrics = {test: dict(entries) for test, entries in self.metrics.items()}
        others: dict[str, dict[str, dict[str, Entry]]] = {}
        for processor, table in sorted(self.other_processors.items()):
            for test, entries in table.items():
                for id, entry in entries.items():
                    first = metrics.setdefault(test, {}).setdefault(id, entry)
                    if entry.processor == processor and first.processor not in ("", processor):
                        others.setdefault(processor, {}).setdefault(test, {})[id] = entry
        object.__setattr__(self, "metrics", metrics)
        object.__setattr__(self, "other_processors", others)

    def get(self, test: str, id: str) -> Entry | None:
        """The metric that `test` recorded under an id, or None."""
        return self.metrics.get(test, {}).get(id)

    def of_each_processor(self, test: str, id: str) -> dict[str, Entry]:
        """The entries of a metric by their processor, the first one first; "" where it does not depend on one."""
        first = self.get(test, id)
        if first is None:
            return {}
        others = ((processor, table.get(test, {}).get(id)) for processor, table in self.other_processors.items())
        return {first.processor: first} | {processor: entry for processor, entry in others if entry is not None}

    def on(self, processor: str) -> "Baselines":
        """The same, and of metrics that are recorded for this processor too, those."""
        metrics = dict(self.metrics)
        for test, entries in self.other_processors.get(processor, {}).items():
            metrics[test] = {**metrics[test], **entries}
        return dataclasses.replace(self, metrics=metrics, other_processors={})

    @property
    def by_name(self) -> dict[str, dict[str, Entry]]:
        """All metrics by the test's id, those of other processors as "step ratio to ready on AMD EPYC"."""
        return {
            test: {
                beside(id, processor) if place else id: labelled(entry, processor) if place else entry
                for id in entries
                for place, (processor, entry) in enumerate(self.of_each_processor(test, id).items())
            }
            for test, entries in self.metrics.items()
        }

    @property
    def entries(self) -> list[Entry]:
        """Every entry, those of other processors last."""
        tables = (self.metrics, *self.other_processors.values())
        return [entry for table in tables for entries in table.values() for entry in entries.values()]

    @property
    def environments(self) -> dict[str, Environment]:
        """The environments that an entry refers to, by id."""
        found = {entry.environment for entry in self.entries}
        return {environment.id: environment for environment in found if environment is not None}


def name_of(id: str, entry: Entry) -> str:
    """What people call a recorded metric: its label where it has one."""
    return entry.label or id


def beside(name: str, processor: str) -> str:
    """The name of a metric of another processor than the first: "step ratio to ready on AMD EPYC"."""
    return f"{name} on {processor}"


def labelled(entry: Entry, processor: str) -> Entry:
    """The entry with such a name for a label, where it has one."""
    return entry if entry.label is None else dataclasses.replace(entry, label=beside(entry.label, processor))


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
        detail=metric.detail,
        label=None if metric.name == metric.id else metric.name,
    )


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
