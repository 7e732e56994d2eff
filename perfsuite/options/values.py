"""What the text of an option may be, and the value that it stands for."""

import argparse
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

SAVE_KINDS = ("new", "better", "worse", "missing")
"""The kinds of changes that --perf-save can be limited to: the `kinds` of `gate.merging.merge`."""

STRICTNESS = ("new", "inconclusive")
"""The verdicts that --perf-strict can fail, by the words of `gate.verdict.Verdict`."""


def folder(text: str) -> str:
    """The name of a folder."""
    if not text.strip():
        raise argparse.ArgumentTypeError("must be a folder, got an empty name")
    return text


def above_zero(unit: str) -> Callable[[str], float]:
    """What reads a number of `unit` above zero."""

    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value > 0):
            raise argparse.ArgumentTypeError(f"must be a number of {unit} above zero, got {text!r}")
        return value

    return number


class Strict(argparse.Action):
    """--perf-strict, alone or with its words behind an equals sign.

    Every spelling is an option of its own, without an argument: an optional argument would swallow the path that
    follows in `pytest --perf --perf-strict tests/perf`.
    """

    spellings = tuple(
        f"--perf-strict={','.join(words)}"
        for count in range(1, len(STRICTNESS) + 1)
        for words in itertools.permutations(STRICTNESS, count)
    )

    def __init__(self, option_strings: Sequence[str], dest: str, **arguments: Any):
        super().__init__([*option_strings, *self.spellings], dest, nargs=0, **arguments)

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        given = (option_string or "").partition("=")[2] or "new"
        setattr(namespace, self.dest, _strictness([*getattr(namespace, self.dest), *given.split(",")]))


class Save(argparse.Action):
    """--perf-save, alone or with the kinds of changes that it saves behind an equals sign; see `Strict`."""

    spellings: tuple[str, ...] = (f"--perf-save={','.join(SAVE_KINDS)}",)

    def __init__(self, option_strings: Sequence[str], dest: str, **arguments: Any):
        super().__init__([*option_strings, *self.spellings], dest, nargs=0, **arguments)

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        given = (option_string or "").partition("=")[2]
        words = [*getattr(namespace, self.dest), *(given.split(",") if given else SAVE_KINDS)]
        setattr(namespace, self.dest, tuple(word for word in SAVE_KINDS if word in words))


class SaveSome(Save):
    """The other spellings of --perf-save: an option apart, because --help would list them all."""

    first, *others = (
        f"--perf-save={','.join(words)}"
        for count in range(1, len(SAVE_KINDS) + 1)
        for words in itertools.permutations(SAVE_KINDS, count)
        if words != SAVE_KINDS
    )
    spellings = tuple(others)


def _strictness(words: Iterable[str]) -> tuple[str, ...]:
    """The words in their own order, each once."""
    return tuple(word for word in STRICTNESS if word in words)


def strictness_of_ini(words: Sequence[str]) -> tuple[str, ...]:
    """What the ini option perf_strict says: words, or whether it is on."""
    words = [word.lower() for text in words for word in str(text).split(",") if word]
    if words in (["true"], ["1"], ["yes"], ["on"]):
        return ("new",)
    if words in ([], ["false"], ["0"], ["no"], ["off"]):
        return ()
    if wrong := [word for word in words if word not in STRICTNESS]:
        known = ", ".join(STRICTNESS)
        raise pytest.UsageError(f"the ini option perf_strict: must be true, false or of {known}, got {wrong[0]!r}")
    return _strictness(words)


def tolerance_of_ini(text: str | None) -> float | None:
    """What the ini option perf_tolerance says; None where it says nothing."""
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise pytest.UsageError(
            f"the ini option perf_tolerance: must be a number above zero, such as 0.25, got {text!r}"
        )
    return value
