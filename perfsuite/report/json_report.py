"""`report.json`: the same metrics for programs. `Report.from_dict` of what it holds is the report again."""

import json

from perfsuite.report.model import Report


def json_text(report: Report) -> str:
    """The report as JSON: strictly so, without `NaN` and `Infinity`, and in ASCII."""
    return json.dumps(report.to_dict(), allow_nan=False, separators=(",", ":")) + "\n"
