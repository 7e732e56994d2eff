"""The Python stacks in an HLO text: tables of files, functions, places and frames that metadata refers to by number."""

import re
from collections.abc import Iterator
from typing import Final

from perfsuite.measure.hlo.hlo_module import Source
from perfsuite.measure.hlo.hlo_text import unescaped

_PAIR: Final = re.compile(r"(\w+)=([0-9]{1,9})(?![0-9])")

Stack = tuple[Source, ...]


class Frames:
    """The tables of stack frames, by their numbers in the text, and the stacks read from them, each built once."""

    def __init__(self) -> None:
        self.texts: dict[str, dict[int, str]] = {"FileNames": {}, "FunctionNames": {}}
        self.rows: dict[str, dict[int, dict[str, int]]] = {"FileLocations": {}, "StackFrames": {}}
        self.stacks: dict[int, Stack] = {}
        self.shared: dict[Stack, Stack] = {}
        self.shift: int | None = None

    def add(self, table: str, number: int, text: str | None, fields: str | None) -> None:
        if table in self.texts:
            self.texts[table][number] = unescaped(text or "")
        else:
            self.rows[table][number] = {key: int(value) for key, value in _PAIR.findall(fields or "")}

    def parent_shift(self) -> int:
        """How much too high the text gives the parents of frames.

        XLA of jaxlib 0.10 prints the number after the parent's, so that a frame without a parent has 1, and the first
        frame is its own parent. A text with the parents' own numbers has 0 or none for a frame without one.
        """
        parents = [(number, fields.get("parent_frame_id", 0)) for number, fields in self.rows["StackFrames"].items()]
        itself = any(number == parent for number, parent in parents)
        return int(itself and all(parent for _, parent in parents))

    def stack(self, frame: int) -> Stack:
        """The frame and those around it, innermost first. What the tables do not have is left out."""
        if self.shift is None:
            self.shift = self.parent_shift()
        chain: list[int] = []
        rows = self.rows["StackFrames"]
        while frame in rows and frame not in self.stacks and frame not in chain:
            chain.append(frame)
            frame = rows[frame].get("parent_frame_id", 0) - self.shift
        stack = self.stacks.get(frame, ())
        for number in reversed(chain):
            # Frames that differ in their columns alone are one.
            stack = (*self.source(rows[number]), *stack)
            stack = self.stacks[number] = self.shared.setdefault(stack, stack)
        return stack

    def source(self, row: dict[str, int]) -> Iterator[Source]:
        place = self.rows["FileLocations"].get(row.get("file_location_id", 0))
        if place is not None:
            file = self.texts["FileNames"].get(place.get("file_name_id", 0), "")
            function = self.texts["FunctionNames"].get(place.get("function_name_id", 0), "")
            yield Source(file, place.get("line", 0), function)
