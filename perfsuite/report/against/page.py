"""The report of `perfsuite against` as a page. Needs the extra `report`."""

from perfsuite.against.found import Check
from perfsuite.report.against import text
from perfsuite.report.page import render


def page(check: Check) -> str:
    """The page, complete in itself."""
    groups = [(kind, [each for each in check.changes if each.called == kind]) for kind in ("worse", "better")]
    return render(
        "against.html",
        check=check,
        verdict=text.verdict(check),
        about=[*text.sides(check), *text.summary(check)],
        groups=groups,
        rest=[each for each in check.changes if each.called not in ("worse", "better")],
        why=text.why,
        value=text.value,
        relative=text.relative,
    )
