"""The steps that were tried, in a file: a search that was interrupted goes on where it was."""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from perfsuite.bisecting.found import BisectFailed, Step
from perfsuite.gate.baseline_format import parse
from perfsuite.measure.io import write_atomically
from perfsuite.measure.serialise import from_json, plain

_SCHEMA = 1


@dataclasses.dataclass(frozen=True)
class _File:
    """What the file holds. `question` is there for people: the file's name stands for it."""

    schema: int
    question: dict[str, Any]
    steps: list[Step]


def digest(files: Iterable[Path]) -> str:
    """What changes where a file does, or where there is another one."""
    found = hashlib.sha256()
    for path in sorted(set(files)):
        if path.is_file():
            found.update(f"{path} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode(errors="replace"))
    return found.hexdigest()


class Kept:
    """The steps of one search, by id, in `folder`. `question` is all that they depend on: another one, another file."""

    def __init__(self, folder: Path, question: Mapping[str, Any], *, again: bool = False):
        key = hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:12]
        self.path = folder / f"bisect-{key}.json"
        self.question = question
        self.steps: dict[str, Step] = {}
        self.made: set[str] = set()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not again:
                self._read()
        except OSError as error:
            raise BisectFailed(
                f"{folder}: cannot be used ({error.strerror or error}): choose another, --keep DIR"
            ) from None

    def add(self, step: Step) -> Step:
        """Keep a step, so that not even a power cut loses it."""
        self.steps[step.id] = step
        self.made.add(step.id)
        content = _File(_SCHEMA, dict(self.question), list(self.steps.values()))
        try:
            write_atomically(self.path, json.dumps(plain(content), indent=1), durable=True)
        except OSError as error:
            raise BisectFailed(f"{self.path}: cannot be written ({error.strerror or error}): --keep DIR") from None
        return step

    def _read(self) -> None:
        """What is there and can be read. What cannot is of another version, and is made again."""
        try:
            content = from_json(_File, self.path.read_bytes())
        except (FileNotFoundError, ValueError):
            return
        if content.schema == _SCHEMA:
            self.steps = {step.id: step for step in content.steps if _has_baselines(step)}


def _has_baselines(step: Step) -> bool:
    """Whether the texts of its baselines can be read."""
    try:
        for text in step.baselines.values():
            parse(text)
    except ValueError:
        return False
    return True
