"""The programs that a call runs, by their texts."""

import hashlib
from collections.abc import Hashable

import jax

from perfsuite.measure.call import Call
from perfsuite.measure.compiles.tally import BUILDING_INPUTS
from perfsuite.measure.fingerprint.values import Unknown
from perfsuite.measure.private.program_runs import ProgramRun, TextUnknown, observing_programs


def programs_of(call: Call) -> list[str]:
    """Run a warm call once, and return a hash of each program that it runs, in their order. Raises `Unknown`."""
    seen = _Texts()
    with observing_programs(seen.add):
        jax.block_until_ready(call.run())
    if seen.unknown:
        raise Unknown(seen.unknown)
    return seen.hashes


class _Texts:
    def __init__(self) -> None:
        self.hashes: list[str] = []
        self.unknown = ""
        self._known: dict[Hashable, str] = {}
        self._busy = False

    def add(self, run: ProgramRun) -> None:
        """Add a program at once: what surrounds its run, such as a precision or a mesh, is part of it."""
        if self._busy or self.unknown:  # lowering may run programs of its own
            return
        self._busy = True
        token = BUILDING_INPUTS.set(True)
        try:
            self.hashes.append(self._hash(run))
        except TextUnknown as why:
            self.unknown = f"{run.name}: {why}"
        except Exception as error:  # JAX's own: raised here it would be the call's
            self.unknown = f"{run.name} has no text ({type(error).__name__}: {error})"
        finally:
            BUILDING_INPUTS.reset(token)
            self._busy = False

    def _hash(self, run: ProgramRun) -> str:
        key = run.key()
        try:
            if key in self._known:
                return self._known[key]
        except TypeError:  # an argument that cannot be hashed
            key = None
        made = hashlib.sha256(run.text().encode()).hexdigest()
        if key is not None:
            self._known[key] = made
        return made
