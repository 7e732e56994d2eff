"""The Markdown of `perfsuite against`."""

from support.against import change, check

from perfsuite.against.changes import TestChange
from perfsuite.gate.verdict import Part
from perfsuite.measure.metric import Interval
from perfsuite.report.against import markdown

SLOWER = change("worse", interval=Interval(1.08, 1.17), processes=10, line="test_a.py:7", grown=(Part("a", 4),))
FASTER = change("better", metric="g", ratio=0.9, head=90.0)
SAME = change("no change seen", metric="<h|i>", ratio=1.0, head=100.0)


def test_the_comment_has_regressions_first_and_folds_what_did_not_change():
    lost = TestChange("test_b.py::test_c", "passed", "failed", "head: TypeError: <no>")
    text = markdown(check(SAME, FASTER, SLOWER, tests=(lost,)))
    assert text.startswith("## perfsuite: worse: 1 metric and 1 test no longer passes\n")
    assert "| benchmark | base | head | change |" in text
    assert "| `test_a.py::test_step`<br>`f` | 100 us | 112 us | +12 % \\[+8 %, +17 %\\] |" in text
    order = ["### 1 worse", "### 1 better", "### 1 test did not pass", "<summary>1 no change seen</summary>"]
    assert sorted(order, key=text.index) == order
    assert "measured at test_a.py:7" in text
    assert "`<h\\|i>`" in text
    assert "TypeError: \\<no\\>" in text
