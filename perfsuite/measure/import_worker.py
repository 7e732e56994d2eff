"""Run as a script, in a process of its own: imports a module, and writes down what that imports.

It imports nothing outside the standard library, so that nothing is taken for imported that is not.
"""

import json
import os
import sys
from types import FrameType
from typing import Any


class Watch:
    """The first of the finders: it finds nothing, and keeps the place of each import and of each start of a backend."""

    def __init__(self, starting_module: str, starting_function: str):
        self.places: dict[str, tuple[str, str]] = {}
        self.backends: list[dict[str, str]] = []
        self._starting = starting_module, starting_function

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        # JAX imports more modules after the one that starts its backends, and only then starts one.
        self._see_starts()
        self.places.setdefault(name, place_outside(sys._getframe(1)))

    def _see_starts(self) -> None:
        """Wrap the function that starts a backend, as soon as there is one."""
        module, function = sys.modules.get(self._starting[0]), self._starting[1]
        start = getattr(module, function, None)
        if start is None or hasattr(start, "of_perfsuite"):
            return

        def starting(platform: str, *args: Any, **kwargs: Any) -> Any:
            _, place = place_outside(sys._getframe(1), self._starting[0].partition(".")[0], "contextlib", "functools")
            self.backends.append({"platform": platform, "place": place})
            return start(platform, *args, **kwargs)

        starting.of_perfsuite = True  # type: ignore[attr-defined]
        setattr(module, function, starting)


def place_outside(frame: FrameType | None, *packages: str) -> tuple[str, str]:
    """The module and the line (`file:line`) that led to a frame, outside of these packages and of importing itself."""
    while frame is not None and (
        str(frame.f_globals.get("__name__")).partition(".")[0] in ("importlib", *packages)
        or frame.f_code.co_filename.startswith("<frozen")
    ):
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename == __file__:
        return "", ""
    file = frame.f_code.co_filename.rpartition("-packages/")[2].removeprefix(os.getcwd() + os.sep)
    return str(frame.f_globals.get("__name__")), f"{file}:{frame.f_lineno}"


def main(module: str, after: str, output: str, starting_module: str, starting_function: str, *path: str) -> None:
    """Import `module` from `path`, after other modules (`a,b`), and write what it imported to `output`."""
    sys.path[:] = path
    sys.argv[1:] = []
    watch = Watch(starting_module, starting_function)
    sys.meta_path.insert(0, watch)
    for each in filter(None, after.split(",")):
        __import__(each)
    before = set(sys.modules)
    watch.backends.clear()
    __import__(module)
    modules = []
    # In the order in which their imports began; those that nothing looked for, such as aliases, come last.
    for name in dict.fromkeys([*watch.places, *sys.modules]):
        if name in sys.modules and name not in before and name.partition(".")[0] not in sys.stdlib_module_names:
            importer, place = watch.places.get(name, ("", ""))
            modules.append({"name": name, "importer": importer, "place": place})
    with open(output, "w", encoding="utf-8") as file:
        json.dump({"name": module, "modules": modules, "backends": watch.backends}, file)
    os._exit(0)  # whatever threads it has started


if __name__ == "__main__":
    main(*sys.argv[1:])
