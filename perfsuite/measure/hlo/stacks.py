"""The Python stacks in an HLO text: tables of files, functions, places and frames, by number."""

import re
from typing import Final

from perfsuite.measure.hlo.hlo_module import Frame, Stack
from perfsuite.measure.hlo.scanner import unescaped

_PAIR: Final = re.compile(r"(\w+)=([0-9]{1,9})(?![0-9])")


class StackTables:
    """The tables of an HLO text, and the stacks read from them. Each stack is built once."""

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

        XLA of jaxlib 0.10 prints the parent's number plus 1: a frame without a parent has 1, and the first frame is its
        own parent. A text that prints the parent's number has 0 or nothing for a frame without a parent.
        """
        parents = {number: fields.get("parent_frame_id", 0) for number, fields in self.rows["StackFrames"].items()}
        return int(any(number == parent for number, parent in parents.items()) and all(parents.values()))

    def stack(self, frame: int) -> Stack:
        """The frame and those around it, innermost first, without frames that the tables lack."""
        if self.shift is None:
            self.shift = self.parent_shift()
        chain: list[int] = []
        rows = self.rows["StackFrames"]
        while frame in rows and frame not in self.stacks and frame not in chain:
            chain.append(frame)
            frame = rows[frame].get("parent_frame_id", 0) - self.shift
        stack = self.stacks.get(frame, ())
        for number in reversed(chain):
            # Frames that differ only in their columns give equal stacks, which are kept once.
            stack = (*self.source(rows[number]), *stack)
            stack = self.stacks[number] = self.shared.setdefault(stack, stack)
        return stack

    def source(self, row: dict[str, int]) -> Stack:
        place = self.rows["FileLocations"].get(row.get("file_location_id", 0))
        if place is None:
            return ()
        file = self.texts["FileNames"].get(place.get("file_name_id", 0), "")
        function = self.texts["FunctionNames"].get(place.get("function_name_id", 0), "")
        return (Frame(file, place.get("line", 0), function),)
