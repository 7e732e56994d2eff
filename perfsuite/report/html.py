"""`report.html`: one page with everything in a report, and pictures of the comparisons and the lines.

The page is complete in itself. Its content security policy lets a browser load nothing, and run only the script whose
hash it names.
"""

import base64
import hashlib
import importlib.resources
import re
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from perfsuite.gate import messages
from perfsuite.gate.verdict import Verdict
from perfsuite.measure.metric import span
from perfsuite.measure.words import number, percent, plural
from perfsuite.report.model import Report
from perfsuite.report.pictures import pictures_of

_EXPLAINED = (Verdict.INCONCLUSIVE, Verdict.NOT_COMPARABLE, Verdict.IMPROVED)
"""The page lists the reasons of these verdicts."""

_TEMPLATES = importlib.resources.files("perfsuite.report").joinpath("templates")


def html(report: Report) -> str:
    """The page. Every text of the report is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_source),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "breakable": breakable,
        "css": lambda verdict: str(verdict).replace(" ", "-"),
        "number": lambda value: "" if value is None else number(value),
        "path": quote,
        "percent": percent,
        "plural": plural,
    }
    script = _source("page.js")
    return environment.get_template("report.html").render(
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=Markup(_source("style.css")),
        report=report,
        anchors={test.id: f"t{place}" for place, test in enumerate(report.tests, 1)},
        metrics=[pair for verdict in reversed(Verdict) for pair in report.of_verdict(verdict)],
        explained={verdict: [pair for pair in report.of_verdict(verdict) if pair[1].reason] for verdict in _EXPLAINED},
        pictures_of=pictures_of,
        span=span,
        bounds=messages.bounds,
        without_estimate=messages.without_estimate,
    )


def breakable(name: str) -> Markup:
    """A test's id that may be broken between its words."""
    return Markup("<wbr>").join(re.split(r"(?<=[/_:])(?![/_:])", name))  # it escapes the parts


def _source(name: str) -> str:
    # With the line ends that the hash of the script was taken with, whatever the checkout made of them.
    return "\n".join(_TEMPLATES.joinpath(name).read_text(encoding="utf-8").splitlines()) + "\n"
