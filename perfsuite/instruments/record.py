"""`perf.record`: any other metric."""

import numbers
from typing import Any

from perfsuite.instruments.base import Instrument, declare
from perfsuite.measure.metric import Better, Interval, Kind, Metric

RECORD = declare("perf.record")


class RecordInstrument(Instrument):
    def record(
        self,
        name: str,
        value: float,
        *,
        unit: str,
        kind: Kind,
        better: Better = "lower",
        interval: tuple[float, float] | None = None,
        tolerance: float | None = None,
        target: str | None = None,
    ) -> None:
        """Record any other metric, gated like the rest.

        `interval` is (low, high). A ratio or a time neither passes nor fails without one; where it is exact, both ends
        are its value. `target` names the device that it was compiled for; None means that it was measured on the
        present one.
        """
        self._begin(RECORD)
        value, ends = _number(value), _interval(name, interval)
        metric = Metric(name, value, unit, kind, better, ends, target=target)
        if kind == "count" and value < 0:
            raise ValueError(f"perf.record({name!r}): a count is 0 or more, got {value}")
        if ends is not None and not ends.low <= value <= ends.high:
            raise ValueError(f"perf.record({name!r}): the interval {interval} must hold the value, {value}")
        self._recorder.add(metric, tolerance, once=True)


def _number(value: Any) -> Any:
    """Python's number for any real scalar, such as NumPy's and JAX's; what is none, as it is."""
    if getattr(value, "shape", None) == ():
        value = value.item()
    return float(value) if isinstance(value, numbers.Real) and not isinstance(value, int) else value


def _interval(name: str, interval: Any) -> Interval | None:
    if interval is None:
        return None
    ends = list(map(_number, interval)) if isinstance(interval, tuple | list) else [interval]
    if len(ends) != 2 or any(isinstance(end, bool) or not isinstance(end, int | float) for end in ends):
        raise TypeError(f"perf.record({name!r}): interval must be (low, high), two numbers, got {interval!r}")
    if not ends[0] <= ends[1]:
        raise ValueError(f"perf.record({name!r}): interval must be (low, high), got {interval!r}")
    return Interval(*map(float, ends))
