"""What the compiler's passes took in one first call, in plain values."""

import dataclasses

LONGEST = 10
"""How many passes are named."""


@dataclasses.dataclass(frozen=True)
class CompilerPass:
    """A pass, or another step of the compiler, over all its runs.

    `seconds` excludes the passes that ran inside it.
    """

    name: str
    seconds: float
    runs: int


@dataclasses.dataclass(frozen=True)
class CompilerPasses:
    """The passes of one first call, which is called `call`: the longest ones, and how many there are.

    `seconds` are those of all passes in all threads of the compiler together. `note` says why none is known.
    """

    call: str
    longest: tuple[CompilerPass, ...] = ()
    number: int = 0
    seconds: float = 0.0
    note: str = ""
