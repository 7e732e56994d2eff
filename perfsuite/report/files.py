"""The files of `--perf-report=DIR`: check before the tests that they can be written, and write them afterwards.

SARIF is what code scanning shows at the lines of a pull request: each failed test is a result. The format:
https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html. GitHub reads a part of it:
https://docs.github.com/en/code-security/reference/code-scanning/sarif-support-for-code-scanning.
"""

import importlib.metadata
import importlib.util
import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

from perfsuite.gate.verdict import Verdict
from perfsuite.measure.installed import install
from perfsuite.measure.io import write_atomically
from perfsuite.report.markdown import markdown
from perfsuite.report.model import Report
from perfsuite.session.records import TestRecord

HTML, JSON, MARKDOWN, SARIF = "report.html", "report.json", "report.md", "report.sarif"


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
    for name in (HTML, JSON, MARKDOWN, SARIF):
        if (folder / name).is_dir():
            raise ReportError(f"{folder / name} is a folder: move it away, or choose another folder")


def write_report(report: Report, folder: Path) -> Path:
    """Write the four files, each atomically; returns the path of the page. Raises `ReportError`."""
    from perfsuite.report.html import html  # needs jinja2, of the extra `report`

    with warnings.catch_warnings():
        # A session that turns warnings into errors must not lose its report to a warning of a library.
        warnings.simplefilter("ignore")
        texts = {JSON: report.to_json(), MARKDOWN: markdown(report), SARIF: sarif(report), HTML: html(report)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            write_atomically(folder / name, text)
    except OSError as error:
        raise _cannot_write(folder, error) from None
    return folder / HTML


def _cannot_write(folder: Path, error: OSError) -> ReportError:
    reason = error.strerror or str(error)
    return ReportError(
        f"{folder}: no report can be written here ({reason}): make it writable, or choose another folder"
    )


_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_RULES = {
    "worse": "A metric is worse than its baseline or its budget",
    "failed": "A perf test failed",
}


def sarif(report: Report) -> str:
    """The text of `report.sarif`. Files are seen from the project's root."""
    rules = [{"id": id, "shortDescription": {"text": text}} for id, text in _RULES.items()]
    driver = {"name": "perfsuite", "version": importlib.metadata.version("perfsuite"), "rules": rules}
    run = {
        "tool": {"driver": driver},
        "originalUriBaseIds": {"ROOT": {"description": {"text": "the root of the project"}}},
        "results": [_sarif_result(test) for test in report.failures],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _sarif_result(test: TestRecord) -> dict[str, Any]:
    file, line = test.blamed or (test.file, test.line)
    place: dict[str, Any] = {"artifactLocation": {"uri": file, "uriBaseId": "ROOT"}}
    if line:
        place["region"] = {"startLine": line}
    return {
        "ruleId": "worse" if any(result.verdict == Verdict.FAIL for result in test.results) else "failed",
        "level": "error",
        "message": {"text": f"{test.test}: {test.message}"},
        "locations": [{"physicalLocation": place}],
        # The same test stays the same finding when its numbers change.
        "partialFingerprints": {"test/v1": test.test},
    }
