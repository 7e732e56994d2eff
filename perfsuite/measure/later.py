"""Results that are measured when somebody reads them."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def when_read(kind: type[T], measure: Callable[[], T], **known: Any) -> T:
    """A `kind`, a frozen dataclass, of which only the fields `known` are known.

    `measure()` gives the others, at once, when the first of them is read.
    """
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    unknown = [name for name in names if name not in known]

    class Later(kind):  # type: ignore[misc, valid-type]
        def __getattribute__(self, name: str) -> Any:
            if name in unknown and name not in (held := object.__getattribute__(self, "__dict__")):
                measured = measure()
                held.update({each: getattr(measured, each) for each in unknown})
            return object.__getattribute__(self, name)

    Later.__name__, Later.__qualname__ = kind.__name__, kind.__qualname__
    made = object.__new__(Later)
    made.__dict__.update(known)
    return made
