"""The files of `--perf-report=DIR`: whether they can be written, before the tests run, and writing them afterwards."""

import contextlib
import importlib.util
import os
import secrets
import tempfile
import warnings
from pathlib import Path

from perfsuite.report.model import Report

HTML, JSON, MARKDOWN = "report.html", "report.json", "report.md"

_NEEDED = ("jinja2", "matplotlib")


class ReportError(Exception):
    """No report can be written. The message names the folder or what is not installed, and what to do."""


def check(folder: Path) -> None:
    """Make sure that a report can be made and written into `folder`, which is made where there is none.

    Raises `ReportError`.
    """
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        raise ReportError(f'{" and ".join(missing)} not installed: pip install "perfsuite[report]"')
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise _cannot_write(folder, error) from None
    for name in (HTML, JSON, MARKDOWN):
        if (folder / name).is_dir():
            raise ReportError(f"{folder / name} is a folder: move it away, or choose another folder")


def write(report: Report, folder: Path, history: str = "") -> Path:
    """Write all three, each whole or not at all; the path of the page. Raises `ReportError`.

    `history` is the name of a page of the baselines' history in the folder, which the page then has a link to.
    """
    from perfsuite.report.html import html
    from perfsuite.report.json_report import json_text
    from perfsuite.report.markdown import markdown

    with warnings.catch_warnings():
        # A session that makes errors of warnings must not lose its report to one of a library's.
        warnings.simplefilter("ignore")
        texts = {JSON: json_text(report), MARKDOWN: markdown(report), HTML: html(report, history)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            # A test's name may hold half of a surrogate pair, which UTF-8 has no bytes for.
            _replace(folder / name, text.encode(errors="replace"))
    except OSError as error:
        raise _cannot_write(folder, error) from None
    return folder / HTML


def _replace(path: Path, content: bytes) -> None:
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        beside.write_bytes(content)
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def _cannot_write(folder: Path, error: OSError) -> ReportError:
    reason = error.strerror or str(error)
    return ReportError(
        f"{folder}: no report can be written here ({reason}): make it writable, or choose another folder"
    )
