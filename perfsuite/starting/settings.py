"""Settings and ignored files: lines that are added to a file, and nothing else of it changed."""

import configparser
import dataclasses
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perfsuite.starting.project import StartError

Value = str | list[str]


@dataclasses.dataclass(frozen=True)
class Edited:
    """A file's new text, what was added to it, and what was left for the user, with the reason."""

    text: str
    added: tuple[str, ...]
    left: tuple[str, ...] = ()


def with_settings(file: Path, text: str, wanted: Mapping[str, Value]) -> Edited:
    """Add pytest's settings to the text of its file. Those that are there stay as they are.

    Raises `StartError` for a file that cannot be read.
    """
    toml = file.suffix == ".toml"
    section, present = _section(file, text, toml)
    missing = {name: value for name, value in wanted.items() if name not in present}
    left = tuple(
        f"{name} is {present[name]!r} there; it needs {value[0]!r} too"
        for name, value in wanted.items()
        if name in present and isinstance(value, list) and value[0] not in _words(present[name])
    )
    if not missing:
        return Edited(text, (), left)
    edited = _inserted(text, section, [_line(name, value, toml) for name, value in missing.items()])
    expected = {**present, **{name: value if toml else " ".join(_words(value)) for name, value in missing.items()}}
    try:
        right = _section(file, edited, toml)[1] == expected
    except StartError:
        right = False
    if right:
        return Edited(edited, tuple(missing), left)
    by_hand = ", ".join(_line(name, value, toml) for name, value in missing.items())
    return Edited(text, (), (*left, f"it has pytest's settings in a way that takes no further lines: add {by_hand}"))


def with_ignored(text: str, lines: Sequence[str]) -> Edited:
    """Add lines to the text of a .gitignore, but for those that are there."""
    present = {line.strip().strip("/") for line in text.splitlines()}
    missing = tuple(line for line in lines if line.strip("/") not in present)
    if not missing:
        return Edited(text, ())
    end = _line_end(text)
    begun = text if not text or text.endswith("\n") else text + end
    return Edited(begun + "".join(f"{line}{end}" for line in missing), missing)


def _section(file: Path, text: str, toml: bool) -> tuple[str, dict[str, Any]]:
    """The name of the section that pytest reads, and what is in it."""
    try:
        if toml:
            return _of_toml(file, tomllib.loads(text))
        parsed = configparser.RawConfigParser(strict=True, allow_no_value=True)
        parsed.optionxform = str  # type: ignore[assignment,method-assign]
        parsed.read_string(text)
    except (tomllib.TOMLDecodeError, configparser.Error) as error:
        raise StartError(f"{file}: it cannot be read ({str(error).partition(chr(10))[0]}): mend it first") from None
    section = "tool:pytest" if file.name == "setup.cfg" else "pytest"
    return section, dict(parsed[section]) if parsed.has_section(section) else {}


def _of_toml(file: Path, parsed: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    if file.name != "pyproject.toml":
        return "pytest", parsed.get("pytest", {})
    table = parsed.get("tool", {}).get("pytest", {})
    if table and "ini_options" not in table:  # pytest 9's own
        return "tool.pytest", table
    return "tool.pytest.ini_options", table.get("ini_options", {})


def _inserted(text: str, section: str, lines: Sequence[str]) -> str:
    """The lines below the section's head; at the end, with a head, where there is none."""
    end = _line_end(text)
    added = "".join(f"{line}{end}" for line in lines)
    words = r"[ \t]*\.[ \t]*".join(map(re.escape, section.split(".")))
    if head := re.search(rf"^[ \t]*\[[ \t]*{words}[ \t]*\][^\n]*(\n|\Z)", text, re.MULTILINE):
        before = text[: head.end()]
        return before + ("" if before.endswith("\n") else end) + added + text[head.end() :]
    begun = text if not text or text.endswith("\n") else text + end
    return f"{begun}{end if begun else ''}[{section}]{end}{added}"


def _line(name: str, value: Value, toml: bool) -> str:
    if not toml:
        return f"{name} = {' '.join(_words(value))}"
    return f"{name} = {json.dumps(value)}"  # strings and lists of them are written alike in TOML


def _words(value: Any) -> list[str]:
    return value.split() if isinstance(value, str) else list(map(str, value)) if isinstance(value, list) else []


def _line_end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"
