"""The folder through which a session and a process that it started exchange a request, metrics and reasons.

Every file is written atomically: a process that is killed leaves none half-written.
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from perfsuite.measure.io import write_atomically
from perfsuite.measure.metric import Metric
from perfsuite.measure.serialise import from_json, plain

T = TypeVar("T")

_REQUEST = "request.json"
_REASON = "reason.json"
_METRICS = "metrics.json"
_VALUES = "values.json"


@dataclasses.dataclass(frozen=True)
class Request:
    """What a fresh process is to measure again.

    `test` is the id of the test, and `argument` what names it on pytest's command line. `metric` is the name of one
    comparison's ratio, which is sampled until the limits of `budget` are settled (`gate.limits.Limits`); None asks for
    all metrics of the test, of which those with the titles `doubtful` are over their limit. `cache` is the folder where
    the facts of programs are kept, None keeps none.

    With `process`, `metric` is that of another instrument, which hands over values of its own in place of metrics:
    `given` is for it, and `process` is the number of the process (`processes.elsewhere`).
    """

    test: str
    argument: str
    metric: str | None = None
    budget: dict[str, float] = dataclasses.field(default_factory=dict)
    doubtful: list[str] = dataclasses.field(default_factory=list)
    cache: str | None = None
    process: int | None = None
    given: dict[str, str] = dataclasses.field(default_factory=dict)


def write_request(folder: Path, request: Request) -> None:
    """Leave the request in `folder`."""
    write_atomically(folder / _REQUEST, json.dumps(plain(request)))


def read_request(folder: Path) -> Request:
    """The request in `folder`. Raises `OSError` or `ValueError` without one."""
    return from_json(Request, (folder / _REQUEST).read_bytes())


def write_reason(folder: Path, reason: str) -> None:
    """Say in a sentence why there are no metrics."""
    write_atomically(folder / _REASON, json.dumps(reason))


def read_reason(folder: Path) -> str:
    """Why there are no metrics; empty where nothing was said that can be read."""
    try:
        return from_json(str, (folder / _REASON).read_bytes())
    except (OSError, ValueError):
        return ""


def write_metrics(folder: Path, metrics: Sequence[Metric]) -> None:
    """Hand over the metrics."""
    write_atomically(folder / _METRICS, json.dumps(plain(metrics)))


def read_metrics(folder: Path) -> list[Metric] | None:
    """The metrics that were handed over, or None. Raises `ValueError` for a file that has none."""
    return _read(list[Metric], folder / _METRICS)


def write_values(folder: Path, values: Any) -> None:
    """Hand the values of an instrument over."""
    write_atomically(folder / _VALUES, json.dumps(plain(values)))


def read_values(folder: Path) -> Any | None:
    """The values that were handed over, plain; or None. Raises `ValueError` for a file that has none."""
    return _read(object, folder / _VALUES)


def _read(kind: type[T], path: Path) -> T | None:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    return from_json(kind, content)
