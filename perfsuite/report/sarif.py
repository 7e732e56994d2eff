"""A session as SARIF, which code scanning shows at the lines of a pull request: each failed test is a result.

The format: https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html. GitHub reads a part of it:
https://docs.github.com/en/code-security/reference/code-scanning/sarif-support-for-code-scanning.
"""

import importlib.metadata
import json
from typing import Any

from perfsuite.gate.verdict import Verdict
from perfsuite.report.model import Report, Test

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
        "results": [_result(test) for test in report.failures],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _result(test: Test) -> dict[str, Any]:
    file, line = test.blamed or (test.file, test.line)
    place: dict[str, Any] = {"artifactLocation": {"uri": file, "uriBaseId": "ROOT"}}
    if line:
        place["region"] = {"startLine": line}
    return {
        "ruleId": "worse" if any(metric.verdict == Verdict.FAIL for metric in test.metrics) else "failed",
        "level": "error",
        "message": {"text": f"{test.id}: {test.message}"},
        "locations": [{"physicalLocation": place}],
        # The same test stays the same finding when its numbers change.
        "partialFingerprints": {"test/v1": test.id},
    }
