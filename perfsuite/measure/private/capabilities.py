"""What perfsuite can do only with private names of other libraries: one table, and a probe for some entries.

A capability works where none of its names has moved and, for those whose loss would count nothing in place of failing,
where its probe sees the real thing happen. A probe runs when its capability is first asked for.
"""

import dataclasses
import importlib
import importlib.metadata
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from perfsuite import tested
from perfsuite.measure.private.names import Declared, Moved

Names = TypeVar("Names")

_SHOWN = 3
_MOST_TRIES = 3
_MOST_SECONDS = 60

_here = threading.local()
_lock = threading.RLock()


def probing() -> bool:
    """Whether this thread runs a probe: what that traces and runs is nobody's."""
    return getattr(_here, "probing", False)


class CapabilityLost(BaseException):
    """What was asked for needs a private name that has moved. `details` are the probe's words."""

    def __init__(self, sentence: str, details: str):
        super().__init__(sentence)
        self.details = details


@dataclasses.dataclass(eq=False)
class Capability:
    """`purpose` is what perfsuite does with it, a verb first, and `without` what its loss costs.

    `module` of this package declares its names, which are those of `library`. It worked with the versions `knows` of
    the library, the oldest and the newest. `also` are other capabilities that it builds on.
    """

    name: str
    purpose: str
    module: str
    without: str
    library: str = "jax"
    knows: tuple[str, str] = tested
    also: tuple["Capability", ...] = ()
    _names: list[Declared] = dataclasses.field(default_factory=list, init=False)
    _probe: Callable[[], None] | None = dataclasses.field(default=None, init=False)
    _answer: str | None = dataclasses.field(default=None, init=False)
    _tries: int = dataclasses.field(default=0, init=False)
    _fallback: str = dataclasses.field(default="", init=False)

    def needs(self, names: Names) -> Names:
        """Declare that it works only with a name, or with several in a tuple. Returns them."""
        declared: Any = names if isinstance(names, tuple) else (names,)
        self._names += declared
        return names

    def probed_by(self, probe: Callable[[], None]) -> Callable[[], None]:
        """Decorate what sees the real thing happen, or raises `Moved`."""
        self._probe = probe
        return probe

    def names(self) -> list[Declared]:
        """The private names that it needs itself."""
        importlib.import_module(f"{__package__}.{self.module}")
        return self._names

    def lost(self) -> str:
        """Why it does not work with what is installed, in the probe's words; "" where it works."""
        return next(filter(None, (each._lost_itself() for each in (self, *self.also))), "")

    def check(self, what: str) -> None:
        """Raise `CapabilityLost` where it does not work. `what` needs it."""
        if self.lost():
            raise CapabilityLost(self.sentence(what), self.lost())

    def falls_back(self, how: str) -> None:
        """Note, once, what goes on in another way where it does not work."""
        here = importlib.metadata.version(self.library)
        line = f"with {self.library} {here} {how}: perfsuite cannot {self.purpose} there"
        self._fallback = self._fallback or line

    def sentence(self, what: str) -> str:
        """That `what` does not work here: "perf.transfers does not work with jax 0.14.0 (perfsuite 0.1.0 knows ..."."""
        here, own = (importlib.metadata.version(each) for each in (self.library, "perfsuite"))
        return (
            f"{what} does not work with {self.library} {here} (perfsuite {own} knows "
            f"{' to '.join(dict.fromkeys(self.knows))}): it has to {self.purpose}. "
            "A newer perfsuite may know it; docs/upgrading_jax.md says how to port it"
        )

    def _lost_itself(self) -> str:
        """The answer of names and probe. One at a time: a probe replaces functions of the library for a while."""
        with _lock:
            if self._answer is not None:
                return self._answer
            answer, for_good = self._asked_elsewhere()
            self._tries += 1
            if for_good or self._tries == _MOST_TRIES:
                self._answer = answer
            return answer

    def _asked_elsewhere(self) -> tuple[str, bool]:
        """`_ask` in a thread of its own: this one may be inside a trace, or a context such as `jax.disable_jit()`."""
        answers: list[tuple[str, bool]] = []

        def ask() -> None:
            _here.probing = True
            answers.append(self._ask())

        thread = threading.Thread(target=ask, name=f"perfsuite probe of {self.name}", daemon=True)
        thread.start()
        thread.join(_MOST_SECONDS)
        return answers[0] if answers else (f"the probe took more than {_MOST_SECONDS} s", False)

    def _ask(self) -> tuple[str, bool]:
        """The answer, and whether it holds whenever it is asked.

        An error that is none of ours may come from what surrounds the test that asks, such as a user's listener that
        forbids compiles: the next test asks again.
        """
        try:
            if missing := [words for name in self.names() if (words := name.missing())]:
                more = f" and {len(missing) - _SHOWN} more" if missing[_SHOWN:] else ""
                return "; ".join(missing[:_SHOWN]) + more, True
            if self._probe is not None:
                self._probe()
        except Moved as moved:
            return str(moved), True
        except Exception as error:
            return f"{type(error).__name__}: {error}", False
        return "", True


def fallbacks() -> tuple[str, ...]:
    """What goes on in another way in this process, because a capability is lost: a line each."""
    return tuple(each._fallback for each in CAPABILITIES if each._fallback)


def forget() -> None:
    """Probe again when a capability is asked for next: for tests."""
    for each in CAPABILITIES:
        each._answer, each._tries, each._fallback = None, 0, ""


COMPILE_EVENTS = Capability(
    "compile events",
    "hear of each stage of a compile",
    "compile_events",
    "perf.warm, perf.no_compiles and perf.count_compiles are skipped, and a timed call that compiles is not refused",
)
TRACES = Capability(
    "traces",
    "hear each trace of JAX's",
    "compile_events",
    "traces are counted as jax.monitoring sends them, cached ones too; lowerings and compiles are refused, traces not",
)
FIRST_CALLS = Capability(
    "first calls",
    "see where a first call traces and lowers",
    "compile_events",
    "perf.first_call is skipped",
    also=(TRACES,),
)
STACK = Capability(
    "stack",
    "read from the stack what JAX compiles, and why",
    "jax_stack",
    'the message of a recompilation says "cause unknown with this jax"; perf.covers and only= are skipped',
)
SLOW_PATH = Capability(
    "slow path",
    "see the calls that JAX's fast path does not take",
    "jax_stack",
    "perf.fast_path is skipped",
)
CHANCE_CALLS = Capability(
    "chance calls",
    "leave out what JAX does in some runs of a call only",
    "jax_stack",
    "perf.host_calls depends on threads, on which arrays live and on earlier tests, and a function whose compile was "
    "refused takes JAX's slow path in every later call",
)
PROGRAM_RUNS = Capability(
    "program runs",
    "see each program that runs",
    "execution",
    "perf.dispatches is skipped, perf.host_calls counts no programs, perf.memory names no lines, times include waiting "
    "for every output, and perfsuite against times every test",
)
TRANSFERS = Capability(
    "transfers",
    "see what moves between host and device",
    "execution",
    "perf.transfers, perf.no_transfers and perf.count_transfers are skipped",
    also=(PROGRAM_RUNS,),
)
PERSISTENT_CACHE = Capability(
    "persistent cache",
    "see the keys of JAX's persistent cache, and what is found in it",
    "persistent_cache",
    "perf.cache_key and perf.cache_hits are skipped",
)
LOWERING = Capability(
    "lowering",
    "lower a call as its wrapper does, for any platform",
    "lowering",
    "perf.program for a target is skipped; that of the present device does not name donated arguments and kernels",
)
ABSENT_COMPILERS = Capability(
    "absent compilers",
    "compile a lowered program for a device that is absent",
    "lowering",
    "perf.program for a target is skipped",
)
KERNEL_SCHEDULES = Capability(
    "kernel schedules",
    "see how libtpu schedules a kernel",
    "libraries",
    "perf.program knows no bundles and spills of a TPU's kernels",
    "libtpu",
    ("0.0.42.1", "0.0.50"),
)
COORDINATION = Capability(
    "coordination",
    "reach the key-value store of jax.distributed",
    "coordination",
    "a session of several processes ends before its first test",
)
BACKEND_START = Capability("backend start", "see an import start JAX's backend", "libraries", "perf.imports is skipped")
FLAX = Capability(
    "Flax's objects",
    "know the parts of NNX's objects",
    "frameworks",
    "messages about NNX say less",
    "flax",
    ("0.12.8", "0.12.12"),
)
LIBRARY_FUNCTIONS = Capability(
    "library functions",
    "know functions of libraries by name",
    "libraries",
    "messages about filter_jit say less, and those about host calls have less advice",
)
XDIST = Capability(
    "xdist reports",
    "take a worker's report back",
    "libraries",
    "under pytest-xdist a test that times something is skipped",
    "pytest-xdist",
    ("3.8.0", "3.8.0"),
)
BENCHMARK = Capability(
    "benchmark table",
    "add to its table",
    "libraries",
    "perf.time is not in pytest-benchmark's table",
    "pytest-benchmark",
    ("5.3.1", "5.3.1"),
)

CAPABILITIES = tuple(each for each in list(vars().values()) if isinstance(each, Capability))
