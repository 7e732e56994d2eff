"""`report.html`: one page with everything in a report.

The page is complete in itself. Its content security policy lets a browser load nothing, and run only the script whose
hash it names.
"""

import base64
import hashlib
import importlib.resources
import math
import re
from collections.abc import Iterable
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from perfsuite.gate import messages
from perfsuite.gate.verdict import Verdict
from perfsuite.measure.metric import span
from perfsuite.measure.words import number, percent, plural
from perfsuite.report.model import Report, verdict_counts_of, why
from perfsuite.report.perfetto import TIMELINES
from perfsuite.session.records import Block, ProgramRecord

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
        "time": lambda blocks, name: "unknown" if math.isinf(us := _total(blocks, name)) else number(us),
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
        anchors={test.test: f"t{place}" for place, test in enumerate(report.tests, 1)},
        results=[each for verdict in reversed(Verdict) for each in report.of_verdict(verdict)],
        explained={
            verdict: [each for each in report.of_verdict(verdict) if messages.reason(each)] for verdict in _EXPLAINED
        },
        counts_of=verdict_counts_of,
        parts_of=parts_of,
        trace_file=TIMELINES,
        span=span,
        messages=messages,
        why=why,
    )


def breakable(name: str) -> Markup:
    """A test's id that may be broken between its words."""
    return Markup("<wbr>").join(re.split(r"(?<=[/_:])(?![/_:])", name))  # it escapes the parts


def _source(name: str) -> str:
    # With the line ends that the hash of the script was taken with, whatever the checkout made of them.
    return "\n".join(_TEMPLATES.joinpath(name).read_text(encoding="utf-8").splitlines()) + "\n"


def parts_of(program: ProgramRecord) -> list[tuple[list[Block], list[Block]]]:
    """The operations of a program and of its baseline, by part: those first that add most, and the longest of each."""
    parts: dict[str, tuple[list[Block], list[Block]]] = {}
    for place, timeline in enumerate((program.timeline, program.timeline_before)):
        for block in sorted(timeline.blocks if timeline else (), key=lambda block: -(block.own_us or 0.0)):
            if block.lane != "loops":
                parts.setdefault(block.part, ([], []))[place].append(block)
    return sorted(parts.values(), key=lambda part: -_total(part[0], "added_us"))


def _total(blocks: Iterable[Block], name: str) -> float:
    """Microseconds of several blocks; infinite where that of one is not known."""
    amounts = [getattr(block, name) for block in blocks]
    return math.inf if None in amounts else math.fsum(amounts)
