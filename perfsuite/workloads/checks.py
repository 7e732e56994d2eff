"""Checks that several workloads share. Each raises a `ValueError` that names what is wrong."""

from typing import Any

import jax
import numpy as np

DTYPES = ("float32", "bfloat16", "float16")
"""What models compute in, and stores hold."""


def check_at_least(least: int, config: Any, *fields: str) -> None:
    """Every one of the `fields` of `config` must be at least `least`."""
    for name in fields:
        if not (value := getattr(config, name)) >= least:
            raise ValueError(f"{type(config).__name__}.{name} must be at least {least}, got {value}")


def check_positive(config: Any, *fields: str) -> None:
    """Every one of the `fields` of `config` must be above 0, which not-a-number is not."""
    for name in fields:
        if not (value := getattr(config, name)) > 0:
            raise ValueError(f"{type(config).__name__}.{name} must be positive, got {value}")


def check_choice(choices: tuple[str, ...], config: Any, *fields: str) -> None:
    """Every one of the `fields` of `config` must be one of `choices`."""
    for name in fields:
        if (value := getattr(config, name)) not in choices:
            allowed = f"{', '.join(map(repr, choices[:-1]))} or {choices[-1]!r}"
            raise ValueError(f"{type(config).__name__}.{name} must be {allowed}, got {value!r}")


def check_multiple(config: Any, field: str, of: str, times: int = 1) -> None:
    """`field` of `config` must be a multiple of `times` the field `of`; `times` is 1 or 2."""
    value, part = getattr(config, field), getattr(config, of)
    if value % (times * part):
        what = f"{'twice ' * (times == 2)}{of} ({part})"
        raise ValueError(f"{type(config).__name__}.{field} ({value}) must be a multiple of {what}")


def check_ids(name: str, ids: Any, vocab_size: int) -> None:
    """The array `ids`, called `name`, must be integers from the vocabulary.

    The values of a tracer are not checked. An array on a device is waited for.
    """
    if ids.dtype.kind not in "iu":
        raise ValueError(f"{name} must be integers, got {ids.dtype}")
    if isinstance(ids, jax.core.Tracer):
        return
    ids = np.asarray(ids)
    wrong = ids[(ids < 0) | (ids >= vocab_size)]
    if wrong.size:
        raise ValueError(f"{name} must be from 0 to {vocab_size - 1}, got {wrong[0]}")
