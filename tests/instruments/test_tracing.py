"""`instruments.tracing`: whether operations on the device are why a call takes longer than its reference."""

import pytest

from perfsuite.instruments.tracing import _longer_on_devices
from perfsuite.measure.trace import Trace


def trace(device_us, wall_us):
    """Of two runs."""
    return Trace(None, 2, 2 * wall_us, 2 * device_us, 0.0, ())


@pytest.mark.parametrize(
    ("candidates", "longer_us"),
    [
        ([(300, 600), (310, 600), (290, 600)], 200),
        ([(130, 600), (130, 600), (130, 600)], 0),
        ([(300, 600), (300, 600), (90, 600)], 0),
    ],
    ids=["in each round", "less than half of the time", "not in every round"],
)
def test_devices_work_longer_where_that_is_most_of_the_time_in_every_round(candidates, longer_us):
    assert _longer_on_devices([(trace(*each), trace(100, 400)) for each in candidates]) == longer_us
