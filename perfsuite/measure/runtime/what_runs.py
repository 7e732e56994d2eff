"""What calls run, as far as it is exact: the texts of their programs, and their host calls by name.

Calls that run the same by both may still take another time: for a longer sleep, or other numbers in Python.
"""

import hashlib
from collections.abc import Callable, Hashable, Sequence

import jax

from perfsuite.measure.call import Call
from perfsuite.measure.compiles import compiles
from perfsuite.measure.compiles.settle import borrowed, settle
from perfsuite.measure.private.capabilities import PROGRAM_RUNS
from perfsuite.measure.private.execution import ProgramRun, TextUnknown, observing_programs
from perfsuite.measure.runtime.host_calls import host_calls

_DIGITS = 12


def programs_hash(calls: Sequence[Call]) -> str | None:
    """A short hash of the programs that the calls run, in their order; None where one of them has no text."""
    return None if PROGRAM_RUNS.lost() else _hash_of(calls, _programs)


def host_calls_hash(calls: Sequence[Call]) -> str | None:
    """A short hash of the host calls that each call makes, by name; None where two runs of one do not agree."""
    return _hash_of(calls, lambda call: str(sorted(host_calls(call).by_function.items())))


def _hash_of(calls: Sequence[Call], text_of: Callable[[Call], str]) -> str | None:
    try:
        texts = [text_of(call) for call in calls]
    except Exception:  # of a call that cannot be timed, its timing says so
        return None
    return _hash("\n".join(texts))[:_DIGITS]


def _programs(call: Call) -> str:
    """The hashes of the programs of one run. Raises `TextUnknown`."""
    hashes: list[str] = []
    unknown: list[str] = []
    of_keys: dict[Hashable, str] = {}

    def add(run: ProgramRun) -> None:
        """Add a program at once: what surrounds its run, such as a precision or a mesh, is part of it."""
        if unknown:
            return
        try:
            with compiles.Compiles().building_inputs():
                key = run.key()
                if key is None or key not in of_keys:
                    of_keys[key] = _hash(run.text())
                hashes.append(of_keys[key])
        except Exception as error:  # JAX's own, or `TextUnknown`: raised here it would be the call's
            unknown.append(f"{run.name}: {error}")

    with borrowed(call) as subject:
        settle(subject)
        with compiles.steady_state(), observing_programs(add):
            jax.block_until_ready(subject.run())
    if unknown:
        raise TextUnknown(unknown[0])
    return " ".join(hashes)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()
