"""What perfsuite can do only with private names of other libraries: one table, and a probe for each entry.

A capability is one module of this package with the names that it needs. It works where none of them has moved and, for
those whose loss would count nothing in place of failing, where the module's own `probe()` sees the real thing happen.
A probe runs when its capability is first asked for.
"""

import dataclasses
import importlib
import importlib.metadata
import threading
from types import ModuleType

from perfsuite import tested
from perfsuite.measure.private.names import Declared, Moved, declared_in

_here = threading.local()
_fallbacks: dict[str, str] = {}
"""What goes on in another way in this process, by module."""


def probing() -> bool:
    """Whether this thread runs a probe: what that traces and runs is nobody's."""
    return getattr(_here, "probing", False)


class CapabilityLost(BaseException):
    """What was asked for needs a private name that has moved. `details` are the probe's words."""

    def __init__(self, sentence: str, details: str):
        super().__init__(sentence)
        self.details = details


_answers: dict[str, str] = {}
"""What probes answered in this process, by module."""
_tries: dict[str, int] = {}
_lock = threading.RLock()

_SHOWN = 3
_MOST_TRIES = 3
_MOST_SECONDS = 60


@dataclasses.dataclass(frozen=True)
class Capability:
    """`purpose` is what perfsuite does with it, a verb first. `module` has the names, which are those of `library`.

    `without` says what its loss costs. `seen` are the oldest and the newest version of the library in which it was seen
    to work. `also` are other capabilities that it builds on.
    """

    purpose: str
    module: str
    without: str
    library: str = "jax"
    seen: tuple[str, str] = tested
    also: tuple["Capability", ...] = ()

    @property
    def name(self) -> str:
        """What people call it: the name of its module, in words."""
        return self.module.replace("_", " ")

    def names(self) -> list[Declared]:
        """The private names that it needs itself."""
        return declared_in(self._imported())

    def lost(self) -> str:
        """Why it does not work with what is installed, in the probe's words; "" where it works."""
        return next(filter(None, map(_probed, (self, *self.also))), "")

    def check(self, what: str) -> None:
        """Raise `CapabilityLost` where it does not work. `what` needs it."""
        if self.lost():
            raise CapabilityLost(self.sentence(what), self.lost())

    def falls_back(self, how: str) -> None:
        """Note, once, what goes on in another way where it does not work."""
        here = importlib.metadata.version(self.library)
        _fallbacks.setdefault(self.module, f"with {self.library} {here} {how}: perfsuite cannot {self.purpose} there")

    def sentence(self, what: str) -> str:
        """That `what` does not work here: "perf.transfers does not work with jax 0.14.0 (perfsuite 0.1.0 knows ..."."""
        here, own = (importlib.metadata.version(each) for each in (self.library, "perfsuite"))
        known = " to ".join(dict.fromkeys(self.seen))
        return (
            f"{what} does not work with {self.library} {here} (perfsuite {own} knows {known}): "
            f"it has to {self.purpose}. "
            "A newer perfsuite may know it; docs/upgrading_jax.md says how to port it"
        )

    def _imported(self) -> ModuleType:
        return importlib.import_module(f"{__package__}.{self.module}")


def _probed(capability: Capability) -> str:
    """The probe's answer. One at a time: a probe replaces functions of the library, and puts them back."""
    with _lock:
        if capability.module not in _answers:
            answer, for_good = _elsewhere(capability)
            tries = _tries[capability.module] = _tries.get(capability.module, 0) + 1
            if not for_good and tries < _MOST_TRIES:
                return answer
            _answers[capability.module] = answer
        return _answers[capability.module]


def _elsewhere(capability: Capability) -> tuple[str, bool]:
    """`_ask` in a thread of its own: the asking one may be inside a trace, or a context such as `jax.disable_jit()`."""
    answers: list[tuple[str, bool]] = []

    def ask() -> None:
        _here.probing = True
        answers.append(_ask(capability))

    thread = threading.Thread(target=ask, name=f"perfsuite probe of {capability.name}", daemon=True)
    thread.start()
    thread.join(_MOST_SECONDS)
    return answers[0] if answers else (f"the probe took more than {_MOST_SECONDS} s", False)


def _ask(capability: Capability) -> tuple[str, bool]:
    """The probe's answer, and whether it holds whenever it is asked.

    An error that is none of ours may come from what surrounds the test that asks, such as a user's listener that
    forbids compiles: the next test asks again.
    """
    try:
        module = capability._imported()
        if missing := [words for name in declared_in(module) if (words := name.missing())]:
            more = f" and {len(missing) - _SHOWN} more" if missing[_SHOWN:] else ""
            return "; ".join(missing[:_SHOWN]) + more, True
        getattr(module, "probe", lambda: None)()
    except Moved as moved:
        return str(moved), True
    except Exception as error:
        return f"{type(error).__name__}: {error}", False
    return "", True


def fallbacks() -> tuple[str, ...]:
    """What goes on in another way in this process, because a capability is lost: a line each."""
    return tuple(_fallbacks.values())


def forget() -> None:
    """Probe again when a capability is asked for next: for tests."""
    for each in (_answers, _tries, _fallbacks):
        each.clear()


COMPILE_EVENTS = Capability(
    "hear of each stage of a compile",
    "compile_events",
    "perf.warm, perf.no_compiles and perf.count_compiles are skipped, and a timed call that compiles is not refused",
)
TRACES = Capability(
    "hear each trace of JAX's",
    "jax_traces",
    "traces are counted as jax.monitoring sends them, cached ones too; lowerings and compiles are refused, traces not",
)
STACK = Capability(
    "read from the stack what JAX compiles, and why",
    "jax_stack",
    'the message of a recompilation says "cause unknown with this jax"; perf.covers and only= are skipped',
)
REPAIRS = Capability(
    "remove the mark that a refused compile leaves in JAX's cache of calls",
    "error_repairs",
    "a function whose compile was refused takes JAX's slow path in every later call",
)
SLOW_PATH = Capability(
    "see the calls that JAX's fast path does not take",
    "slow_path",
    "perf.fast_path is skipped",
)
PROGRAM_RUNS = Capability(
    "see each program that runs",
    "program_runs",
    "perf.dispatches is skipped, perf.host_calls counts no programs, perf.memory names no lines, times include waiting "
    "for every output, and perfsuite against times every test",
)
CALLBACKS = Capability(
    "tell the callbacks of programs from the work of a call",
    "callback_frames",
    "perf.host_calls counts what callbacks do, where they happen to run in the thread of the call",
)
TRANSFERS = Capability(
    "see what moves between host and device",
    "transfer_internals",
    "perf.transfers, perf.no_transfers and perf.count_transfers are skipped",
    also=(PROGRAM_RUNS,),
)
PERSISTENT_CACHE = Capability(
    "see the keys of JAX's persistent cache, and what is found in it",
    "persistent_cache",
    "perf.cache_key and perf.cache_hits are skipped",
)
FIRST_CALLS = Capability(
    "see where a first call traces and lowers", "first_calls", "perf.first_call is skipped", also=(TRACES,)
)
LOWERING = Capability(
    "lower a call as its wrapper does, for any platform",
    "lowering",
    "perf.program for a target is skipped; that of the present device does not name donated arguments and kernels",
)
ABSENT_COMPILERS = Capability(
    "compile a lowered program for a device that is absent",
    "compiler_internals",
    "perf.program for a target is skipped",
)
COORDINATION = Capability(
    "reach the key-value store of jax.distributed",
    "coordination",
    "a session of several processes ends before its first test",
)
BACKEND_START = Capability("see an import start JAX's backend", "backend_start", "perf.imports is skipped")
EQUINOX = Capability(
    "know Equinox's functions on the stack",
    "equinox_functions",
    "messages about filter_jit say less",
    "equinox",
    ("0.13.8", "0.13.8"),
)
FLAX = Capability(
    "know the parts of NNX's objects", "flax_objects", "messages about NNX say less", "flax", ("0.12.8", "0.12.12")
)
LIBRARY_FUNCTIONS = Capability(
    "know functions of libraries by name", "library_functions", "messages about host calls have less advice"
)
XDIST = Capability(
    "take a worker's report back",
    "xdist_reports",
    "under pytest-xdist a test that times something is skipped",
    "pytest-xdist",
    ("3.8.0", "3.8.0"),
)
BENCHMARK = Capability(
    "add to its table",
    "benchmark_table",
    "perf.time is not in pytest-benchmark's table",
    "pytest-benchmark",
    ("5.3.1", "5.3.1"),
)

CAPABILITIES = tuple(each for each in list(vars().values()) if isinstance(each, Capability))
