"""The folder through which a session and a process that it started exchange a request, samples and reasons.

Every file is written atomically: a process that is killed leaves none half-written.
"""

import dataclasses
import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfsuite.measure.io import write_atomically

if TYPE_CHECKING:
    from perfsuite.measure.timing.comparison import Comparison

_REQUEST = "request.json"
_REASON = "reason.json"
_SAMPLES = "samples.npz"
_FACTS = "facts"
"""Among the arrays, the text of everything that is none."""


@dataclasses.dataclass(frozen=True)
class Request:
    """The comparison that a fresh process is to make again.

    `test` is the id of its test, and `argument` what names that test on pytest's command line. `comparison` is the name
    of its ratio. `cache` is the folder where the facts of programs are kept, None keeps none.
    """

    test: str
    argument: str
    comparison: str
    cache: str | None = None


def write_request(folder: Path, request: Request) -> None:
    """Leave the request in `folder`."""
    write_atomically(folder / _REQUEST, json.dumps(dataclasses.asdict(request)))


def read_request(folder: Path) -> Request:
    """The request in `folder`. Raises `OSError`, `ValueError` or `TypeError` without one."""
    return Request(**json.loads((folder / _REQUEST).read_bytes()))


def write_reason(folder: Path, reason: str) -> None:
    """Say in a sentence why there are no samples."""
    write_atomically(folder / _REASON, json.dumps(reason))


def read_reason(folder: Path) -> str:
    """Why there are no samples; empty where nothing was said."""
    try:
        return str(json.loads((folder / _REASON).read_bytes()))
    except (OSError, ValueError):
        return ""


def write_samples(folder: Path, comparison: "Comparison") -> None:
    """Hand a comparison over: its samples and everything else that it says."""
    import numpy as np

    from perfsuite.measure.estimate import Estimate

    arrays: dict[str, Any] = {}
    facts: dict[str, Any] = {}
    for field in dataclasses.fields(comparison):
        value = getattr(comparison, field.name)
        if isinstance(value, np.ndarray):
            arrays[field.name] = value
        else:
            facts[field.name] = dataclasses.asdict(value) if isinstance(value, Estimate) else value
    arrays[_FACTS] = np.array(json.dumps(facts))
    content = io.BytesIO()
    np.savez(content, **arrays)
    write_atomically(folder / _SAMPLES, content.getvalue())


def read_samples(folder: Path) -> "Comparison | None":
    """The comparison that was handed over, or None. Raises `ValueError` for a file that has no comparison."""
    import numpy as np

    from perfsuite.measure.timing.comparison import Comparison

    try:
        content = (folder / _SAMPLES).read_bytes()
    except FileNotFoundError:
        return None
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (EOFError, OSError, zipfile.BadZipFile) as error:
        raise ValueError(str(error)) from None
    try:
        facts = json.loads(str(arrays.pop(_FACTS)))
        comparison = Comparison(**{name: _restored(value) for name, value in facts.items()}, **arrays)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    samples = comparison.candidate_us, comparison.reference_us
    if any(side.ndim != 2 or side.shape != (comparison.pairs, 2) or not len(side) for side in samples):
        raise ValueError(f"samples of shapes {' and '.join(str(side.shape) for side in samples)}, not (pairs, 2)")
    if not all((np.isfinite(side) & (side > 0)).all() for side in samples):
        raise ValueError("samples that are not above zero")
    return comparison


def _restored(value: Any) -> Any:
    from perfsuite.measure.estimate import Estimate
    from perfsuite.measure.measurement import Interval

    if isinstance(value, Mapping) and value.keys() == {"value", "interval"}:
        return Estimate(value["value"], Interval(**value["interval"]))
    return value
