"""The files of `--perf-report=DIR`: check before the tests that they can be written, and write them afterwards."""

import importlib.util
import tempfile
import warnings
from pathlib import Path

from perfsuite.measure.installed import install
from perfsuite.measure.io import write_atomically
from perfsuite.report.markdown import markdown
from perfsuite.report.model import Report
from perfsuite.report.perfetto import TIMELINES, trace_events

HTML, JSON, MARKDOWN = "report.html", "report.json", "report.md"


class ReportError(Exception):
    """No report can be written. The message names the folder or what is not installed, and says what to do."""


def check_folder(folder: Path) -> None:
    """Make sure that a report can be written into `folder`; creates the folder. Raises `ReportError`."""
    if importlib.util.find_spec("jinja2") is None:
        raise ReportError(f"jinja2 is not installed: {install('report')}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise _cannot_write(folder, error) from None
    for name in (HTML, JSON, MARKDOWN, TIMELINES):
        if (folder / name).is_dir():
            raise ReportError(f"{folder / name} is a folder: move it away, or choose another folder")


def write_report(report: Report, folder: Path) -> Path:
    """Write the files, each atomically; returns the path of the page. Raises `ReportError`."""
    from perfsuite.report.html import html  # needs jinja2, of the extra `report`

    with warnings.catch_warnings():
        # A session that turns warnings into errors must not lose its report to a warning of a library.
        warnings.simplefilter("ignore")
        texts = {
            JSON: report.to_json(),
            MARKDOWN: markdown(report),
            TIMELINES: trace_events(report),
            HTML: html(report),
        }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            if text:
                write_atomically(folder / name, text)
            else:  # that of the report before must not stay
                (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise _cannot_write(folder, error) from None
    return folder / HTML


def _cannot_write(folder: Path, error: OSError) -> ReportError:
    reason = error.strerror or str(error)
    return ReportError(
        f"{folder}: no report can be written here ({reason}): make it writable, or choose another folder"
    )
