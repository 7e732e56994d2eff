"""The size of a shape."""

import pytest

from perfsuite.measure.hlo.hlo_module import Shape


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        (Shape("f32", ()), 4),
        (Shape("bf16", (3, 5)), 30),
        (Shape("pred", (7,)), 7),
        (Shape("s4", (3,)), 2),
        (Shape("u4", (4,)), 2),
        (Shape("s2", (5,)), 2),
        (Shape("f8e4m3fn", (9,)), 9),
        (Shape("f4e2m1fn", (9,)), 5),
        (Shape("c128", (2,)), 32),
        (Shape("s64", (2, 0)), 0),
        (Shape("token", ()), 0),
        (Shape("opaque", ()), 0),
    ],
)
def test_bytes_of_a_shape(shape, size):
    assert shape.bytes == size
