"""`fingerprint`: what one warm call runs, in named parts, each a short hash.

Two calls with equal fingerprints run the same programs, and the same Python around them, on alike arguments. So where
the fingerprint of a call is the recorded one, a new timing of it would be one of the same thing.
"""

import hashlib
import platform
from collections.abc import Iterable, Mapping

import jax
import jaxlib
import numpy as np

from perfsuite.measure.call import Call
from perfsuite.measure.compiles import causes, compiles
from perfsuite.measure.compiles.warmup import borrowed, warm
from perfsuite.measure.fingerprint.parts import AROUND, PARTS
from perfsuite.measure.fingerprint.programs import programs_of
from perfsuite.measure.fingerprint.python import profiled, text_of
from perfsuite.measure.fingerprint.values import Describer, Unknown

Fingerprint = Mapping[str, str]
"""A short hash of each of `PARTS`."""

RUNS = 4
"""A call has a fingerprint where two runs in a row are the same; so many are looked at."""

_DIGITS = 12
_RULES = 1
"""Counted up where the texts behind the hashes are made in another way."""


def fingerprint(call: Call) -> Fingerprint:
    """The fingerprint of a call. Warms it, and runs it a few times more.

    Raises `Unknown` for a call that does something else each time, and for one that does what cannot be told.
    """
    __tracebackhide__ = True
    with borrowed(call) as subject:
        warm(subject.fn, over=[subject])
        inputs = _inputs(subject)
        with compiles.steady_state():
            programs = programs_of(subject)
        texts = (_around(), inputs, "\n".join(programs), *_on_the_host(subject))
    return {part: _hash(text) for part, text in zip(PARTS, texts, strict=True)}


def together(fingerprints: Iterable[Fingerprint], how: str = "") -> Fingerprint:
    """One fingerprint of several calls, in their order. `how` says in what way they are measured."""
    each = list(fingerprints)
    joined = {part: _hash(" ".join(one[part] for one in each)) for part in PARTS}
    return joined | {AROUND: _hash(f"{how} {joined[AROUND]}")}


def differing(recorded: Fingerprint, now: Fingerprint) -> tuple[str, ...]:
    """The parts that differ, in the words of a message; those that another perfsuite recorded too."""
    return tuple(said for part, said in PARTS.items() if recorded.get(part) != now[part])


def _on_the_host(subject: Call) -> tuple[str, str]:
    """The host calls and the Python code, as texts, once two runs in a row are the same."""
    before = None
    for _ in range(RUNS):
        with compiles.steady_state():
            profile = profiled(subject)
        seen = str(sorted(profile.calls.items())), text_of(profile, subject)
        if seen == before:
            return seen
        before = seen
    raise Unknown("it does something else in each run")


def _around() -> str:
    device = jax.devices()[0]
    versions = jax.__version__, jaxlib.__version__, np.__version__, platform.python_version()
    return f"{_RULES} {versions} {device.platform} {device.device_kind} {jax.device_count()} {causes.config_now()}"


def _inputs(call: Call) -> str:
    """The arguments. Of those that are carried the numbers change from run to run, and do not count."""
    carried, fixed = Describer(contents=False), Describer()
    args = [(carried if place < call.carry else fixed)(arg) for place, arg in enumerate(call.args)]
    return f"{args} {fixed(call.kwargs)} carry {call.carry}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:_DIGITS]
