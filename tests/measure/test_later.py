"""Results that are measured when they are read."""

import dataclasses

import pytest

from perfsuite.measure.later import when_read


@dataclasses.dataclass(frozen=True)
class Result:
    label: str
    value: float
    samples: tuple[float, ...]
    slowed: float = 1.0

    @property
    def number(self) -> int:
        return len(self.samples)


def test_what_is_known_is_read_without_measuring():
    result = when_read(Result, pytest.fail, label="step", value=2.0)
    assert isinstance(result, Result)
    assert (result.label, result.value) == ("step", 2.0)


@pytest.mark.parametrize("read", ["samples", "number", "slowed"])
def test_what_is_not_known_is_measured_once_and_together(read):
    measured = []

    def measure():
        measured.append(1)
        return Result("another", 3.0, (1.0, 2.0), 1.5)

    result = when_read(Result, measure, label="step", value=2.0)
    getattr(result, read)
    assert (result.samples, result.number, result.slowed) == ((1.0, 2.0), 2, 1.5)
    assert (result.label, result.value) == ("step", 2.0), "what is known stays"
    assert measured == [1]


def test_a_copy_and_a_text_have_all_of_it():
    made = Result("step", 2.0, (1.0,))
    assert dataclasses.replace(when_read(Result, lambda: made, label="step"), value=5.0).samples == (1.0,)
    assert repr(when_read(Result, lambda: made)) == repr(made)
