"""Run as a script, in a process of its own: imports a module, and writes down what that imports.

It imports nothing itself before it is done, so that nothing is taken for imported that is not.
"""

import os
import sys
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # see above
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec

Place = list[str]
"""The module of a line of code, its file, and the line's number."""


class Watch:
    """The first of the finders: it finds nothing, and keeps the place of each import.

    The module in which JAX starts its backends is changed when it is imported, so that it says which line starts one.
    """

    def __init__(self, starting_module: str, starting_function: str):
        self.places: dict[str, Place] = {}
        self.backends: list[list[str]] = []
        self.moved = ""
        self._module = starting_module
        self._function = starting_function

    def find_spec(self, name: str, path: "Sequence[str] | None" = None, target: Any = None) -> "ModuleSpec | None":
        self.places.setdefault(name, place_of_import(sys._getframe(1)))
        if name != self._module:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                self._watch(spec.loader)
                return spec
        return None

    def _watch(self, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            start = getattr(module, self._function, None)
            if start is None:
                self.moved = f"{self._module}.{self._function}"
                return

            def starting(platform: str, *args: Any, **kwargs: Any) -> Any:
                self.backends.append([platform, *place_outside(sys._getframe(1), self._module.partition(".")[0])])
                return start(platform, *args, **kwargs)

            setattr(module, self._function, starting)

        loader.exec_module = exec_module


def place_of_import(frame: FrameType | None) -> Place:
    """Of the statement that imports, or of the call of `importlib.import_module`."""
    while frame is not None and (
        frame.f_code.co_filename.startswith("<frozen importlib")
        or frame.f_globals.get("__name__") in ("importlib", "importlib.util")
    ):
        frame = frame.f_back
    return place(frame)


def place_outside(frame: FrameType | None, package: str) -> Place:
    """Of the innermost line outside of a package, and of the machinery of imports."""
    while frame is not None and (
        str(frame.f_globals.get("__name__")).partition(".")[0] in (package, "importlib", "contextlib", "functools")
        or frame.f_code.co_filename.startswith("<frozen")
    ):
        frame = frame.f_back
    return place(frame)


def place(frame: FrameType | None) -> Place:
    """Empty texts for this file."""
    if frame is None or frame.f_code.co_filename == __file__:
        return ["", "", ""]
    return [str(frame.f_globals.get("__name__")), frame.f_code.co_filename, str(frame.f_lineno)]


def imported(names: list[str], places: dict[str, Place]) -> list[list[Any]]:
    """Name, file, bytes and the place of the import of each module; one without a file has no bytes."""
    found: list[list[Any]] = []
    for name in names:
        # Some modules make what they are asked for, and import for that.
        held = getattr(sys.modules.get(name), "__dict__", {})
        file = held.get("__file__")
        try:
            size = os.stat(file).st_size if isinstance(file, str) else 0
        except OSError:  # in an archive
            file, size = None, 0
        found.append([name, file or "", size, *places.get(name, ["", "", ""])])
    return found


def main(module: str, after: str, output: str, starting_module: str, starting_function: str, *path: str) -> None:
    """Import `module` from `path`, after other modules (`a,b`), and write what it imported to `output`."""
    sys.path[:] = path
    sys.argv[1:] = []
    watch = Watch(starting_module, starting_function)
    sys.meta_path.insert(0, watch)
    before, error = set(sys.modules), ""
    try:
        for each in filter(None, after.split(",")):
            __import__(each)
        before = set(sys.modules)
        watch.backends.clear()
        __import__(module)
    except BaseException as raised:
        error = f"{type(raised).__name__}: {raised}"
    order = {
        name: number for number, name in enumerate(watch.places)
    }  # as they began; `sys.modules` has it as they ended
    names = sorted((name for name in sys.modules if name not in before), key=lambda name: order.get(name, len(order)))

    import json  # not before: see the top

    seen = {
        "modules": imported(names, watch.places),
        "backends": watch.backends,
        "moved": watch.moved,
        "error": error,
    }
    with open(output, "w", encoding="utf-8") as file:
        json.dump(seen, file)
    sys.stderr.flush()
    os._exit(0)  # whatever threads it has started


if __name__ == "__main__":
    main(*sys.argv[1:])
