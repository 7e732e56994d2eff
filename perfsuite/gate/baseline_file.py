"""Baseline files: read whole or refused, and written so that no reader or killed writer ever sees half a file.

The text has one metric a line, sorted, the same bytes for the same metrics: a diff to be read. A save holds a lock of
the folder, reads the file again inside it, merges, writes a temporary file in the same folder and renames it over the
old one. The lock is the operating system's, so it ends with a killed process. Such a process leaves a temporary file at
most, which the next save removes.
"""

import contextlib
import dataclasses
import json
import json.decoder
import json.scanner
import math
import os
import re
import stat
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from packaging.version import Version

from perfsuite.gate.baseline import Baselines, Entry, Provenance, Revision
from perfsuite.gate.environment import Environment, environment_from_dict, installed
from perfsuite.gate.merging import Action, Change, Direction, merge
from perfsuite.measure import progress
from perfsuite.measure.io import TEMPORARY, LockedTooLong, folder_locked, temporary_prefix, write_atomically
from perfsuite.measure.metric import Interval
from perfsuite.measure.words import printable

SCHEMA = 3

_TOP_KEYS = ("schema", "device", "environments", "metrics")
_REVISIONS = "revisions"
_NEEDED = ("value", "unit", "kind", "provenance")
_OPTIONAL = ("environment", "low", "high", "samples", "better", "source", "detail", "label")

# No line of JSON starts like this: a line break inside a text is written as an escape.
_CONFLICT = re.compile(r"^(?:<{7}|\|{7}|={7}|>{7})(?:[ \r]|$)", re.MULTILINE)

_REPAIR = "repair it, or `git checkout` the file"
_DAMAGED = f"cut short or half merged? {_REPAIR}"

Metrics = Mapping[str, Mapping[str, Entry]]
"""Entries by the test's id and the metric's."""

# What the standard library's reader in Python reads an object with. It gets the position in the text.
_READ_OBJECT = json.decoder.JSONObject  # type: ignore[attr-defined]


def render(baselines: Baselines) -> str:
    """The file's text. Environments that no metric refers to are left out."""
    environments = baselines.environments
    revisions = [(test, _line(_revision_fields(each))) for test, each in sorted(baselines.revisions.items())]
    top = (
        ("schema", str(SCHEMA)),
        ("device", _line(baselines.device)),
        ("environments", _object(" ", ((id, _line(environments[id].as_dict())) for id in sorted(environments)))),
        *([(_REVISIONS, _object(" ", revisions))] if revisions else []),
        ("metrics", _object(" ", _rendered(baselines.metrics, "  "))),
    )
    return _object("", top) + "\n"


def encode(baselines: Baselines) -> bytes:
    """`render`, in UTF-8. Half a surrogate pair, which UTF-8 does not know, becomes the escape that JSON has for it."""
    return render(baselines).encode("utf-8", errors="backslashreplace")


def parse(text: str, device: str | None = None) -> Baselines:
    """The inverse of `render`. `device` is the one that the metrics have to be of.

    Names and texts are made printable: a pull request can bring any file, and messages show what is in it.

    Raises `LocatedError` naming the line and what to do, for a text that is not exactly such a file.
    """
    if marker := _CONFLICT.search(text):
        problem = "unresolved merge conflict: resolve it, or `git checkout` the file"
        raise LocatedError(problem, _line_at(text, marker.start()))
    if not text.strip():
        raise LocatedError("the file is empty: `git checkout` it, or delete it and run pytest --perf-save", 1)
    top = _Reader(text).read()
    _check_schema(top)
    _check_keys(top, "the file", needed=_TOP_KEYS, optional=(_REVISIONS,))
    recorded = top["device"]
    if not isinstance(recorded, str) or not recorded:
        problem = f"`device` must be the name of a device, got {recorded!r:.40}: {_REPAIR}"
        raise LocatedError(problem, top.line_of("device"))
    if device is not None and recorded != device:
        # Gating one device by another's metrics would pass and fail at random.
        raise LocatedError(f"these are the metrics of {recorded!r}: rename the file to that", top.line_of("device"))
    described = top.member("environments", "environments")
    environments = {id: _environment(id, described.member(id, f"environment {id!r}")) for id in described}
    metrics = _metrics(top.member("metrics", "metrics"), environments)
    revisions = dict(_revisions(top.member(_REVISIONS, _REVISIONS))) if _REVISIONS in top else {}
    return Baselines(recorded, metrics, revisions)


def decode(content: bytes, device: str) -> Baselines:
    """`parse` of the content of a file, which has to be UTF-8. Raises `LocatedError`."""
    try:
        # Some editors put a byte order mark before UTF-8; it does no harm.
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise LocatedError("not UTF-8: save it as UTF-8, or `git checkout` the file", line) from None
    return parse(text, device)


class LocatedError(ValueError):
    """What is wrong with a text, and the line (from 1) on which it is wrong."""

    def __init__(self, problem: str, line: int):
        super().__init__(f"line {line}: {problem}")
        self.problem = problem
        self.line = line


class _Object(dict[str, Any]):
    """An object of the file, which starts at a position of its text."""

    def __init__(self, pairs: Sequence[tuple[str, Any]], text: str, start: int):
        super().__init__(pairs)
        self._text = text
        self._start = start
        self.line = _line_at(text, start)
        if len(self) < len(pairs):  # the last of two equal keys would win
            keys = [key for key, _ in pairs]
            key = next(key for key in keys if keys.count(key) > 1)
            first, second, *_ = self._lines_of(key)
            raise LocatedError(f"the key {key!r} is here a second time, after line {first}; {_DAMAGED}", second)

    def line_of(self, key: str) -> int:
        """The line of one of its keys."""
        return self._lines_of(key)[0]

    def member(self, key: str, label: str) -> "_Object":
        """The object under a key. Raises `LocatedError`, with `label`, where it is none."""
        value = self[key]
        if not isinstance(value, _Object):
            raise LocatedError(f"{label} must be an object, got {value!r:.40}: {_REPAIR}", self.line_of(key))
        return value

    def members(self) -> Iterable[tuple[str, "_Object"]]:
        return ((key, self.member(key, repr(key))) for key in self)

    def _lines_of(self, key: str) -> list[int]:
        written = "|".join(re.escape(json.dumps(key, ensure_ascii=ascii)) for ascii in (False, True))
        pattern = re.compile(rf"(?:{written})\s*:")
        return [_line_at(self._text, match.start()) for match in pattern.finditer(self._text, self._start)]


class _Reader(json.JSONDecoder):
    """The standard library's reader, in Python, which tells where each object starts and reads nothing twice."""

    def __init__(self, text: str):
        super().__init__(parse_constant=_no_constant)
        self._text = text
        self._at = 0
        self.parse_object = self._object
        self.scan_once = json.scanner.py_make_scanner(self)  # type: ignore[attr-defined]

    def read(self) -> _Object:
        """The object that the text is. Raises `LocatedError` where it is none."""
        try:
            value = self.decode(self._text)
        except json.JSONDecodeError as error:
            problem = error.msg[0].lower() + error.msg[1:].removesuffix(" at")
            if error.pos < len(self._text) and self._text[error.pos] in "\r\n" and "control" in problem:
                problem = "a text without its closing quote"
            raise LocatedError(f"{problem}; {_DAMAGED}", error.lineno) from None
        except LocatedError:
            raise
        except RecursionError:  # a baseline file nests six deep
            raise LocatedError(f"nested too deep; {_DAMAGED}", _line_at(self._text, self._at)) from None
        except ValueError as error:  # NaN and its like, or a whole number beyond Python's limit of digits
            raise LocatedError(f"{error}; {_DAMAGED}", _line_at(self._text, self._at)) from None
        if not isinstance(value, _Object):
            raise LocatedError(f"no `schema`, so this is not a whole baseline file: {_REPAIR}", 1)
        return value

    def _object(
        self, text_and_end: tuple[str, int], strict: bool, scan: Any, hook: Any, pairs_hook: Any, memo: dict
    ) -> tuple[Any, int]:
        start = text_and_end[1] - 1
        return _READ_OBJECT(
            text_and_end, strict, self._scan, None, lambda pairs: _Object(pairs, self._text, start), memo
        )

    def _scan(self, text: str, at: int) -> tuple[Any, int]:
        self._at = at
        return self.scan_once(text, at)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number that JSON knows")


def _line_at(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _line(value: Any, *, sort: bool = True) -> str:
    return json.dumps(value, sort_keys=sort, ensure_ascii=False, allow_nan=False)


def _object(indent: str, members: Iterable[tuple[str, str]]) -> str:
    lines = [f"{indent} {_line(key)}: {value}" for key, value in members]
    return "{\n" + ",\n".join(lines) + "\n" + indent + "}" if lines else "{}"


def _rendered(metrics: Metrics, indent: str) -> Iterator[tuple[str, str]]:
    for test, entries in sorted(metrics.items()):
        lines = ((name, _line(_entry_fields(entries[name]), sort=False)) for name in sorted(entries))
        yield test, _object(indent, lines)


def _entry_fields(entry: Entry) -> dict[str, Any]:
    """In the order in which people read a line: what it is, and the longest last."""
    fields = {
        "label": entry.label,
        "value": entry.value,
        "unit": entry.unit,
        "kind": entry.kind,
        "provenance": entry.provenance,
        "environment": entry.environment.id if entry.environment else None,
        "low": entry.interval.low if entry.interval else None,
        "high": entry.interval.high if entry.interval else None,
        "samples": entry.samples,
        "better": entry.better if entry.better != "lower" else None,
        "source": entry.source,
        "detail": dict(entry.detail) if entry.detail else None,
    }
    return {key: value for key, value in fields.items() if value is not None}


def _revision_fields(revision: Revision) -> dict[str, Any]:
    return {"commit": revision.commit, "dirty": True} if revision.dirty else {"commit": revision.commit}


def _revisions(revisions: _Object) -> Iterator[tuple[str, Revision]]:
    for test, fields in revisions.members():
        label = f"the revision of {test!r}"
        _check_keys(fields, label, needed=("commit",), optional=("dirty",))
        try:
            yield test, Revision(**fields)
        except TypeError as error:
            raise LocatedError(f"{label}: {error}: {_REPAIR}", fields.line) from None


def _metrics(tests: _Object, environments: Mapping[str, Environment]) -> dict[str, dict[str, Entry]]:
    metrics = {}
    for test, entries in tests.members():
        labels = ((name, f"{name!r} of {test!r}") for name in entries)
        metrics[printable(test)] = {
            printable(name): _entry(label, entries.member(name, label), environments) for name, label in labels
        }
    return metrics


def _check_schema(top: _Object) -> None:
    if "schema" not in top:
        raise LocatedError(f"no `schema`, so this is not a whole baseline file: {_REPAIR}", top.line)
    schema = top["schema"]
    if type(schema) is not int:
        problem = f"`schema` must be a whole number, got {schema!r}: {_REPAIR}"
    elif schema > SCHEMA:
        problem = f"written by a newer perfsuite (schema {schema}, this one reads {SCHEMA}): upgrade perfsuite"
    elif schema < SCHEMA:
        how = "delete the file and run pytest --perf-save"
        problem = f"written by an older perfsuite (schema {schema}, this one reads {SCHEMA}): {how}"
    else:
        return
    raise LocatedError(problem, top.line_of("schema"))


def _environment(id: str, fields: _Object) -> Environment:
    try:
        return environment_from_dict(_shown(fields))
    except (TypeError, ValueError) as error:
        raise LocatedError(f"environment {id!r}: {error}: {_REPAIR}", fields.line) from None


def _entry(label: str, recorded: _Object, environments: Mapping[str, Environment]) -> Entry:
    _check_keys(recorded, label, needed=_NEEDED, optional=_OPTIONAL)
    fields = _shown(recorded)
    if missing := [key for key, value in fields.items() if value is None]:
        raise LocatedError(f"{label}: {missing[0]} is null; leave the key out or give it a value", recorded.line)
    id = fields.pop("environment", None)
    if id is not None and (not isinstance(id, str) or id not in environments):
        problem = f"{label}: environment {id!r} is not among the file's environments: {_REPAIR}"
        raise LocatedError(problem, recorded.line)
    low, high = (fields.pop(key, None) for key in ("low", "high"))
    try:
        interval = _interval(low, high)
        return Entry(**fields, interval=interval, environment=None if id is None else environments[id])
    except (TypeError, ValueError) as error:
        raise LocatedError(f"{label}: {error}: {_REPAIR}", recorded.line) from None


def _shown(value: Any) -> Any:
    """The value with its texts and keys printable."""
    if isinstance(value, dict):
        return {printable(key): _shown(each) for key, each in value.items()}
    return printable(value) if isinstance(value, str) else value


def _interval(low: Any, high: Any) -> Interval | None:
    for key, number in (("low", low), ("high", high)):
        if number is not None and type(number) not in (int, float):
            raise TypeError(f"{key} must be a number, got {number!r}")
        if isinstance(number, float) and not math.isfinite(number):
            raise ValueError(f"{key} must be finite, got {number}")
    if (low is None) != (high is None):
        raise ValueError("low and high belong together, one of them is missing")
    return None if low is None else Interval(low, high)


def _check_keys(members: _Object, label: str, *, needed: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
    if missing := [key for key in needed if key not in members]:
        raise LocatedError(f"{label} lacks {', '.join(missing)}: {_REPAIR}", members.line)
    if unknown := [key for key in members if key not in needed + optional]:
        raise LocatedError(f"{label} has the unknown key {unknown[0]!r}: {_REPAIR}", members.line_of(unknown[0]))


LOCK_SECONDS = 30.0


class BaselineError(Exception):
    """A baseline file cannot be used or written; the message names file, line where there is one, and what to do.

    The file is unchanged.
    """

    def __init__(self, path: str | os.PathLike[str], problem: str, line: int | None = None):
        super().__init__(f"{os.fspath(path)}{'' if line is None else f':{line}'}: {problem}")
        self.path = Path(path)
        self.problem = problem
        self.line = line


@dataclasses.dataclass(frozen=True)
class SaveResult:
    """What a save did to the metrics of its run. `untouched` counts the others in the file.

    `written` is False when nothing changed: the file was then not rewritten.
    """

    path: Path
    changes: tuple[Change, ...]
    untouched: int
    written: bool

    def of(self, action: Action, direction: Direction | None = None) -> list[Change]:
        """The changes with one action, and with a direction where it is given.

        An update of the "same" value changes its interval, versions or parts only. A "not comparable" one changed its
        unit or kind, or was measured where the old metric cannot be compared.
        """
        return [each for each in self.changes if each.action == action and direction in (None, each.direction)]


def load(path: str | os.PathLike[str]) -> Baselines:
    """The baselines in `path`; empty ones, named after the file, when there is no such file.

    Raises `BaselineError` when the file cannot be read or is not exactly a baseline file of this schema.
    """
    path = Path(path)
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):  # reading a pipe would wait for who writes into it
            kind = "folder" if stat.S_ISDIR(mode) else "pipe, a socket or a device"
            raise BaselineError(path, f"this is a {kind}: move it away, or choose another --perf-baselines")
        content = path.read_bytes()
    except FileNotFoundError:
        return Baselines(path.stem)
    except OSError as error:
        raise BaselineError(path, f"cannot be read ({_reason(error)})") from error
    try:
        return decode(content, path.stem)
    except LocatedError as error:
        raise BaselineError(path, error.problem, error.line) from None


def save(
    path: str | os.PathLike[str],
    new: Mapping[str, Mapping[str, Entry]],
    *,
    trim: Collection[str] = (),
    gone: Collection[str] = (),
    provenances: tuple[Provenance, ...] = ("measured",),
    revision: Revision | None = None,
    lock_seconds: float = LOCK_SECONDS,
) -> SaveResult:
    """Record the metrics `new` (test id -> metric id -> entry), by the rules of `merge`. Returns what that changed.

    `trim` are the tests that ran completely and `gone` those that no longer exist, `provenances` those of the metrics
    that this run makes for the device. Waits `lock_seconds` for another process that
    is saving. The folder is made when it is missing; the file keeps its permissions.

    Raises `BaselineError` when the file is damaged, locked for too long or cannot be written, and leaves it unchanged.
    """
    path = Path(path)
    if not new and not os.path.exists(path):
        return SaveResult(path, (), 0, written=False)
    target = _led_to(path)
    _make_folder(target.parent)
    with _locked(target, lock_seconds):
        _remove_leftovers(target)
        old = load(path)
        merged, changes = merge(old, new, trim=trim, gone=gone, provenances=provenances, revision=revision)
        written = any(change.action != "keep" for change in changes)
        if written:
            try:
                write_atomically(target, encode(merged))
            except OSError as error:
                raise BaselineError(target, _cannot_write(error)) from error
    untouched = len(old.entries) - sum(change.old is not None for change in changes)
    return SaveResult(path, changes, untouched, written)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Make sure that the baseline file `path` can be written, by writing beside it: before a long run, not after it.

    Makes the folder when it is missing. Raises `BaselineError` when it cannot be made or written to.
    """
    folder = _led_to(path).parent
    _make_folder(folder)
    try:
        # Permission bits would say nothing of a read-only or full disk.
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"perfsuite")
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        raise BaselineError(folder, _cannot_write(error)) from error


def _led_to(path: str | os.PathLike[str]) -> Path:
    """The file that is written. A link stays a link: what it leads to is replaced."""
    return Path(os.path.realpath(path))


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BaselineError(
            folder, f"the folder cannot be made ({_reason(error)}): make it, or choose another --perf-baselines"
        ) from error


@contextlib.contextmanager
def _locked(target: Path, seconds: float) -> Iterator[None]:
    """Hold the lock of the file's folder. It leaves no file there that git would see."""
    held = contextlib.ExitStack()
    try:
        with progress.waiting(f"waiting for another process that saves into {target.parent}"):
            held.enter_context(folder_locked(target.parent, seconds))
    except LockedTooLong:
        problem = f"another process has held the lock of this folder for {seconds:g} s"
        raise BaselineError(target.parent, f"{problem}: wait for its --perf-save to end, or stop it") from None
    except OSError as error:
        raise BaselineError(target.parent, f"cannot be locked ({_reason(error)}): make it readable") from error
    with held:
        yield


def _remove_leftovers(target: Path) -> None:
    """Remove what killed processes left. Only the holder of the lock writes such files, so none is in use."""
    # One that cannot be removed does no harm.
    with contextlib.suppress(OSError):
        for path in target.parent.iterdir():
            if path.name.startswith(temporary_prefix(target)) and path.name.endswith(TEMPORARY):
                path.unlink()


def _cannot_write(error: OSError) -> str:
    advice = "make the folder writable, free some space, or choose another --perf-baselines"
    return f"cannot be written ({_reason(error)}), nothing was changed: {advice}"


def _reason(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


_NAME = re.compile(r"jax-([0-9]+(?:\.[0-9]+)*)", re.ASCII)
_PREFIX = "jax-"


def folder_here(folder: Path) -> Path:
    """The folder of the baselines for the jax that is installed.

    Raises `BaselineError` like `folder_for`, and where a file has the folder's name.
    """
    if folder.is_file():
        raise BaselineError(folder, "a file has the name of the folder of baselines: move it, or use --perf-baselines")
    return folder_for(folder, installed("jax") or "0")


def folder_for(folder: Path, jax: str) -> Path:
    """The folder of the baselines for a version of jax: `folder`, or that in it for the nearest version not newer.

    A development version counts as the release that it becomes. Raises `BaselineError` for a folder in `folder` whose
    name begins with `jax-` and goes on with no version.
    """
    release = Version(Version(jax).base_version)
    older = [(of, path) for of, path in _versions(folder) if of <= release]
    return max(older, default=(release, folder))[1]


def baseline_files(folder: Path) -> list[Path]:
    """The baseline files in a folder, sorted by name."""
    return sorted(path for path in folder.glob("*.json") if is_baselines(path.name))


def is_baselines(name: str) -> bool:
    """Whether a file of this name has baselines: no other file, and none that is being written."""
    return name.endswith(".json") and not name.startswith(".")


def _versions(folder: Path) -> list[tuple[Version, Path]]:
    versions = []
    for path in folder.glob(f"{_PREFIX}*"):
        if not path.is_dir():
            continue
        match = _NAME.fullmatch(path.name)
        if match is None:
            problem = "the name of a folder of baselines for one jax is jax- and a version, such as jax-0.12"
            raise BaselineError(path, f"{problem}: rename it, or move it elsewhere")
        versions.append((Version(match[1]), path))
    return versions
