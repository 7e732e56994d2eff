"""The Python stacks in an HLO text: tables of files, functions, places and frames, by number."""

import functools
import itertools
import re
from typing import Final

from perfsuite.measure.hlo.hlo_module import Frame, Stack
from perfsuite.measure.hlo.scanner import unescaped

_PAIR: Final = re.compile(r"(\w+)=([0-9]{1,9})(?![0-9])")


class StackTables:
    """The tables of an HLO text, and the stacks in them. Equal stacks are one object."""

    def __init__(self) -> None:
        self.texts: dict[str, dict[int, str]] = {"FileNames": {}, "FunctionNames": {}}
        self.rows: dict[str, dict[int, dict[str, int]]] = {"FileLocations": {}, "StackFrames": {}}
        self.shared: dict[Stack, Stack] = {}
        self.stack = functools.cache(self._stack)

    def add(self, table: str, number: int, text: str | None, fields: str | None) -> None:
        if table in self.texts:
            self.texts[table][number] = unescaped(text or "")
        else:
            self.rows[table][number] = {key: int(value) for key, value in _PAIR.findall(fields or "")}

    @functools.cached_property
    def parent_shift(self) -> int:
        """How much too high the text gives the parents of frames.

        XLA of jaxlib 0.10 prints the parent's number plus 1: a frame without a parent has 1, and the first frame is its
        own parent. A text that prints the parent's number has 0 or nothing for a frame without a parent.
        """
        parents = {number: fields.get("parent_frame_id", 0) for number, fields in self.rows["StackFrames"].items()}
        return int(any(number == parent for number, parent in parents.items()) and all(parents.values()))

    def _stack(self, frame: int) -> Stack:
        """The frame and those around it, innermost first, without frames that the tables lack."""
        chain: dict[int, Stack] = {}
        while (row := self.rows["StackFrames"].get(frame)) is not None and frame not in chain:
            chain[frame] = self._source(row)
            frame = row.get("parent_frame_id", 0) - self.parent_shift
        stack = tuple(itertools.chain.from_iterable(chain.values()))
        return self.shared.setdefault(stack, stack)

    def _source(self, row: dict[str, int]) -> Stack:
        place = self.rows["FileLocations"].get(row.get("file_location_id", 0))
        if place is None:
            return ()
        file = self.texts["FileNames"].get(place.get("file_name_id", 0), "")
        function = self.texts["FunctionNames"].get(place.get("function_name_id", 0), "")
        return (Frame(file, place.get("line", 0), function),)
