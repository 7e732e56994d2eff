"""JAX's private names that tell of its persistent compilation cache: a program's key, and what became of the program.

`jax_compilation_cache_dir` and the options beside it are public, but they tell nothing of a key's parts, and of no key
without a compile. So `compiler.compile_or_get_cached`, through which every compile goes, is replaced for a while; the
parts of a key and the fate of a program are in what JAX logs.
"""

import contextlib
import dataclasses
import inspect
import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax

from perfsuite.measure.errors import MeasurementError
from perfsuite.measure.private.capabilities import PERSISTENT_CACHE, probing
from perfsuite.measure.private.names import Moved, Name, Text

_COMPILE = PERSISTENT_CACHE.needs(Name("jax._src.compiler", "compile_or_get_cached"))
_MAKE_KEY = PERSISTENT_CACHE.needs(Name("jax._src.compiler", "_get_cache_key"))
_IN_USE = PERSISTENT_CACHE.needs(Name("jax._src.compilation_cache", "is_cache_used"))
_OF_KEYS = PERSISTENT_CACHE.needs(Name("jax._src.cache_key", "logger"))
_OF_PROGRAMS = PERSISTENT_CACHE.needs(
    (Name("jax._src.compiler", "logger"), Name("jax._src.compilation_cache", "logger"))
)

_PART = PERSISTENT_CACHE.needs(Text("jax._src.cache_key", "get_cache_key hash of serialized %s: %s"))
_HIT = PERSISTENT_CACHE.needs(Text("jax._src.compiler", "Persistent compilation cache hit"))
_NOT_KEPT = PERSISTENT_CACHE.needs(Text("jax._src.compiler", "Not writing persistent cache entry"))
_NOT_WRITTEN = PERSISTENT_CACHE.needs(Text("jax._src.compiler", "Error writing persistent compilation cache entry"))

_COMPILED = "backend", "computation", "devices", "compile_options"
_KEYED = "options", "backend", "computation", "devices"
"""The first arguments of both functions, by their names."""

COMPUTATION = "computation"
"""The part of a key that is the program's text."""


@dataclasses.dataclass(frozen=True)
class ProgramKey:
    """The key of one program. `parts` are the hashes of the key's parts, by JAX's names for them.

    `text` is the program's StableHLO with its source locations, which are no part of the key by default. `questions`
    are what was asked about the process while it was lowered, with file, line and function.
    """

    name: str
    key: str
    parts: dict[str, str]
    text: str
    questions: tuple[tuple[str, str, int, str], ...] = ()


@dataclasses.dataclass(frozen=True)
class CachedProgram:
    """What became of one program. `key` is None where JAX does not use its cache for it.

    `found` says that its entry was in the cache; `not_kept` is why it was not put there, as JAX says it.
    """

    key: ProgramKey | None
    name: str
    found: bool
    not_kept: str


class _KeyTaken(Exception):  # noqa: N818  (it ends a compile that is not wanted)
    def __init__(self, key: ProgramKey | None):
        super().__init__("perfsuite took the program's key in place of compiling it")
        self.key = key


def key_of(lowered: jax.stages.Lowered) -> ProgramKey:
    """The key under which JAX would keep the program, without compiling it.

    Raises `MeasurementError` for a program that was compiled before.
    """

    def taking(compile_it: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        raise _KeyTaken(_key(*args[:4]))

    # JAX makes keys without a cache, too.
    with _compiling_through(taking), _IN_USE.replaced(lambda original: lambda backend: True):
        try:
            lowered.compile()
        except _KeyTaken as taken:
            if taken.key is None:
                raise MeasurementError("JAX can make no key of the program: what it logs says why") from None
            return taken.key
    raise MeasurementError("the program was compiled before, so that JAX does not make its key again")


@contextlib.contextmanager
def watching_cache() -> Iterator[list[CachedProgram]]:
    """Every program that this thread compiles inside, or that JAX takes from its cache, in their order."""
    programs: list[CachedProgram] = []

    def watching(compile_it: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        # Before it compiles: that changes the module.
        key = _key(*args[:4])
        name = _name(args[1])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with _logged(*_OF_PROGRAMS) as records:
                compiled = compile_it(*args, **kwargs)
        messages = [record.getMessage() for record in records]
        is_hit = any(each.startswith(_HIT.text) for each in messages)
        messages += [str(each.message) for each in caught]
        for each in caught:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
        reasons = [each for each in messages if each.startswith((_NOT_KEPT.text, _NOT_WRITTEN.text))]
        programs.append(CachedProgram(key, name, is_hit, "; ".join(reasons)))
        return compiled

    with _compiling_through(watching):
        yield programs


@contextlib.contextmanager
def _compiling_through(replacement: Callable[..., Any]) -> Iterator[None]:
    """Call `replacement(original, *arguments)` for each compile of this thread."""
    thread = threading.get_ident()

    def replacing(original: Callable[..., Any]) -> Callable[..., Any]:
        def compile_or_get_cached(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != thread or probing():
                return original(*args, **kwargs)
            return replacement(original, *args, **kwargs)

        return compile_or_get_cached

    with _COMPILE.replaced(replacing):
        yield


def _key(backend: Any, module: Any, devices: Any, options: Any) -> ProgramKey | None:
    """None where JAX makes none, because it does not use its cache."""
    with _logged(_OF_KEYS) as records:
        key = _MAKE_KEY.get()(options, backend, module, devices)
    if key is None:
        return None
    lines = [(record.msg, tuple(map(str, record.args))) for record in records if isinstance(record.args, tuple)]
    parts = {values[0]: values[1] for message, values in lines if message == _PART.text}
    return ProgramKey(_name(module), key, parts, module.operation.get_asm(enable_debug_info=True))


def _name(module: Any) -> str:
    """`step` for the module jit_step."""
    name = str(module.operation.attributes["sym_name"]).strip('"')
    return name.removeprefix("jit_")


@contextlib.contextmanager
def _logged(*loggers: Name) -> Iterator[list[logging.LogRecord]]:
    """What this thread logs, which is not shown anywhere unless it was before."""
    records: list[logging.LogRecord] = []
    thread = threading.get_ident()
    with contextlib.ExitStack() as stack:
        for logger in (each.get() for each in loggers):
            shown = logger.getEffectiveLevel()

            def keep(record: logging.LogRecord, shown: int = shown) -> bool:
                if record.thread == thread:
                    records.append(record)
                return record.levelno >= shown

            before = logger.level
            logger.addFilter(keep)
            logger.setLevel(logging.DEBUG)
            stack.callback(logger.setLevel, before)
            stack.callback(logger.removeFilter, keep)
        yield records


@PERSISTENT_CACHE.probed_by
def _probe() -> None:
    """Raises `Moved` where JAX's functions take other arguments than those that are read here. Nothing compiles."""
    for name, wanted in ((_COMPILE, _COMPILED), (_MAKE_KEY, _KEYED)):
        parameters = tuple(inspect.signature(name.get()).parameters)[: len(wanted)]
        if parameters != wanted:
            raise Moved(f"{name} takes {parameters}, not {wanted}")
