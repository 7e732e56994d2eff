"""The Python that a call runs on the host: the code of its functions, and the values that they look up."""

import contextlib
import gc
import sys
import threading
import types
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

import jax

from perfsuite.measure.call import Call
from perfsuite.measure.fingerprint import code
from perfsuite.measure.fingerprint.owners import extension_of, library_of
from perfsuite.measure.fingerprint.values import Describer, Unknown

_PLAIN = (bool, int, float, complex, str, bytes, type(None), tuple)


class HostProfile:
    """A function for `sys.setprofile` that keeps which functions ran, and what their closures hold.

    `calls` counts the calls of this thread by name. Threads that are started meanwhile call `of_another_thread`.
    """

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.libraries: set[str] = set()
        self.ran: dict[CodeType, dict[str, Any]] = {}
        """The project's own code, with the globals that it ran in."""
        self.held: dict[CodeType, list[tuple[str, Any]]] = {}
        """The values in its closures, in the order in which they were first seen."""
        self._seen: set[tuple[CodeType, str, int]] = set()
        self._extensions: set[str] = set()

    def __call__(self, frame: FrameType, event: str, callee: Any) -> None:
        if event == "call":
            self._ran(frame, f"{frame.f_globals.get('__name__', '?')}:{frame.f_code.co_qualname}")
        elif event == "c_call":
            module = _module_of(callee)
            self.calls[f"{module}:{getattr(callee, '__qualname__', '?')}"] += 1
            self._extensions.add(module)

    def of_another_thread(self, frame: FrameType, event: str, callee: Any) -> None:
        """What ran there counts, but not how often: threads take turns as they like."""
        if event == "call":
            self._ran(frame, "")
        elif event == "c_call":
            self._extensions.add(_module_of(callee))

    def forget_last(self, name: str) -> None:
        """Take out a call that the harness made."""
        self.calls[name] -= 1

    @property
    def owners(self) -> set[str]:
        """The distributions of all that ran and is not the project's own, with their versions."""
        return self.libraries | {extension_of(module) for module in self._extensions}

    def _ran(self, frame: FrameType, name: str) -> None:
        if name:
            self.calls[name] += 1
        ran = frame.f_code
        if ran not in self.ran:
            library = library_of(ran.co_filename, frame.f_globals.get("__name__", ""))
            if library is not None:
                self.libraries.add(library)
                return
            self.ran[ran] = frame.f_globals
        if ran.co_freevars:
            held = frame.f_locals
            for each in ran.co_freevars:
                if each in held and (key := (ran, each, id(held[each]))) not in self._seen:
                    self._seen.add(key)
                    self.held.setdefault(ran, []).append((each, held[each]))


def profiled(call: Call) -> HostProfile:
    """Run a warm call once, wait for it, and return what it ran.

    Raises `Unknown` where a Python thread worked that was there before: what it ran was not seen.
    """
    profile = HostProfile()
    fn, args, kwargs = call.fn, call.args, call.kwargs
    with _collector_off(), _only_new_threads():
        before, before_threads = sys.getprofile(), threading.getprofile()
        threading.setprofile(profile.of_another_thread)
        try:
            sys.setprofile(profile)
            outputs = fn(*args, **kwargs)
        finally:
            sys.setprofile(before)
            threading.setprofile(before_threads)
        call.carry_on(outputs)
        jax.block_until_ready(outputs)
    profile.forget_last("sys:setprofile")
    return profile


def text_of(profile: HostProfile, call: Call) -> str:
    """All of it as text: the code, what it was made with, and what it looks up. Raises `Unknown`."""
    describe = Describer()
    # A closure that is made in the call holds data of the call: the numbers of its arrays are others in each run.
    describe_held = Describer(contents=False)
    lines = [f"call {describe(call.fn)}"]
    for ran, names in sorted(profile.ran.items(), key=lambda item: _order(item[0])):
        lines.append(f"{ran.co_qualname} {code.read(ran).digest}")
        lines += _looked_up(ran, names, describe)
        lines += [f"{name} holds {describe_held(value)}" for name, value in profile.held.get(ran, ())]
    describe.functions = describe_held.functions | describe.functions
    describe.cached += describe_held.cached
    lines += _behind_caches(describe)
    # Once each: how many functions of the same code are alive is the history of the process.
    lines += sorted({*_made_with(profile, describe)})
    return "\n".join([*lines, *sorted(profile.owners)])


def _order(ran: CodeType) -> tuple[str, str]:
    return ran.co_qualname, code.read(ran).digest


def _looked_up(ran: CodeType, names: dict[str, Any], describe: Describer) -> Iterator[str]:
    """The globals that some code reads, and the attributes of modules."""
    found = code.read(ran)
    for name in found.globals:
        if name in names:
            value = names[name]
            yield f"{name} is {describe(value)}"
            if isinstance(value, ModuleType):
                yield from _attributes(value, found.attributes, describe, set())
    for name in found.imports:
        if isinstance(module := sys.modules.get(name), ModuleType):
            yield from _attributes(module, found.attributes, describe, set())


def _attributes(module: ModuleType, names: tuple[str, ...], describe: Describer, seen: set[int]) -> Iterator[str]:
    """Those attributes of a module that some code reads: of a library's module only plain data, and its modules'."""
    if id(module) in seen:
        return
    seen.add(id(module))
    library = library_of(getattr(module, "__file__", None) or "<frozen >", module.__name__) is not None
    for name in names:
        value = vars(module).get(name, describe)  # which no module has
        if isinstance(value, ModuleType):
            yield from _attributes(value, names, describe, seen)
        elif value is not describe and (not library or type(value) in _PLAIN):
            yield f"{module.__name__}.{name} is {describe(value)}"


def _behind_caches(describe: Describer) -> Iterator[str]:
    seen = set()
    for function in describe.cached:  # which grows meanwhile
        made = getattr(function, "__code__", None)
        if made is not None and made not in seen and library_of(made.co_filename, function.__module__ or "") is None:
            seen.add(made)
            yield f"cached {made.co_qualname} {code.read(made).digest}"
            yield from _looked_up(made, function.__globals__, describe)


def _made_with(profile: HostProfile, describe: Describer) -> Iterator[str]:
    """The default arguments of the functions that ran."""
    missing = []
    for ran, names in profile.ran.items():
        function = describe.functions.get(ran) or _by_name(ran, names)
        if function is None:
            missing.append(ran)
        else:
            yield f"{ran.co_qualname} {describe(function.__defaults__)} {describe(function.__kwdefaults__)}"
    # Functions that are only held by objects. One that was made inside the call is gone: what made it ran as well.
    for found in gc.get_referrers(*missing) if missing else ():
        if isinstance(found, types.FunctionType) and found.__code__ in profile.ran:
            name = found.__code__.co_qualname
            yield f"{name} {describe(found.__defaults__)} {describe(found.__kwdefaults__)}"


def _by_name(ran: CodeType, names: dict[str, Any]) -> types.FunctionType | None:
    """The function of some code, where its name leads to it: through classes, decorators and descriptors."""
    outermost, *inner = ran.co_qualname.split(".")
    value = names.get(outermost)
    for name in inner:
        value = vars(value).get(name) if isinstance(value, type) else None
    for _ in range(16):
        if isinstance(value, types.FunctionType) and value.__code__ is ran:
            return value
        inside = (getattr(value, name, None) for name in ("__wrapped__", "__func__", "fget", "func"))
        value = next((each for each in inside if each is not None), None)
    return None


def _module_of(callee: Any) -> str:
    of = getattr(callee, "__self__", None)
    if isinstance(of, ModuleType):
        return of.__name__
    return getattr(callee, "__module__", None) or type(of).__module__


@contextlib.contextmanager
def _collector_off() -> Iterator[None]:
    """Else a finalizer that happens to run would count."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


@contextlib.contextmanager
def _only_new_threads() -> Iterator[None]:
    """Raise `Unknown` where a Python thread that was there before used the processor inside."""
    here = threading.get_native_id()
    threads = [each for each in threading.enumerate() if each.native_id not in (None, here)]
    before = [_processor_ns(each) for each in threads]
    yield
    for thread, ns in zip(threads, before, strict=True):
        if _processor_ns(thread) != ns:
            raise Unknown(f"the thread {thread.name!r}, which was there before, ran meanwhile")


def _processor_ns(thread: threading.Thread) -> int | None:
    """Nanoseconds of the processor that a thread used; None where the system does not tell (it is no Linux)."""
    try:
        return int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_bytes().split()[0])
    except (OSError, ValueError, IndexError):
        return None
