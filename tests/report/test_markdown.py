"""`report.markdown`: what it says first, and that nothing of a user's is Markdown or HTML; read by a Markdown parser."""

import dataclasses
import html.parser
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from support.git_project import count, with_versions
from support.report_samples import metric as sample
from support.report_samples import perf_test

from perfsuite.gate.baseline_file import SaveResult
from perfsuite.gate.environment import Environment
from perfsuite.gate.merging import Change
from perfsuite.gate.verdict import Verdict
from perfsuite.measure.metric import Interval
from perfsuite.report.markdown import LONG_LINES, block, changes_table, code, escaped, markdown
from perfsuite.report.model import Header, Report

HEADER = Header(
    project="project",
    date="2026-01-01T00:00:00+00:00",
    seconds=1.0,
    exit_status=1,
    device="cpu",
    environment=Environment("cpu", 1, "Xeon", "3.11.7", "0.10.2", "0.10.2"),
    perfsuite="0.1",
    size="small",
    baselines="baselines",
)
HOSTILE = [
    "a | b",
    "`tick`",
    "``two`` ticks",
    "`",
    "<script>alert(1)</script>",
    "</details>",
    "&lt; &amp;",
    "*bold* _it_ ~~no~~",
    "[link](http://a.example) ![i](x)",
    "back\\slash \\| pipe",
    "# heading",
    "- item",
    "1. item",
    "@someone #12 $x$",
    "weights é \N{GRINNING FACE}",
]


def metric(name="step ratio", verdict=Verdict.PASS, value=1.5, **fields):
    return sample(name, value, verdict, **{"unit": "x", "kind": "ratio", **fields})


def a_test(id="tests/test_a.py::test_step", outcome="passed", message="", metrics=(), line=7):
    record = perf_test("::", *metrics, file="tests/test_a.py", line=line, outcome=outcome, message=message)
    results = tuple(dataclasses.replace(each, test=id) for each in record.results)
    return dataclasses.replace(record, test=id, results=results)


def report(*tests, **fields):
    return Report(HEADER, tests, **fields)


class Reader(html.parser.HTMLParser):
    """What a reader sees: headings, list items, code, summaries of foldings and the cells of the table."""

    def __init__(self, text):
        super().__init__()
        self.open = []
        self.seen = [["", ""]]
        self.feed(MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(text))
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.seen.append([tag, ""])
        if tag not in ("br", "img", "hr"):
            self.open.append(len(self.seen) - 1)

    def handle_endtag(self, tag):
        assert self.seen[self.open.pop()][0] == tag

    def handle_data(self, text):
        self.seen[self.open[-1] if self.open else 0][1] += text

    def all(self, tag):
        return [text for name, text in self.seen if name == tag]


def read(*tests, **fields):
    return Reader(markdown(report(*tests, **fields)))


# What is said, and in which order.


def test_the_first_line_counts_the_tests_that_failed():
    assert markdown(report(a_test(), a_test("b", "failed"))).startswith("## perfsuite: 1 of 2 tests failed\n")
    assert markdown(report(a_test(outcome="failed"))).startswith("## perfsuite: 1 of 1 test failed\n")
    assert markdown(report(a_test())).startswith("## perfsuite: 1 test, none failed\n")
    assert markdown(report()).startswith("## perfsuite: 0 tests, none failed\n")


def test_what_changed_and_failed_comes_first_and_the_rest_is_folded():
    metrics = (
        metric("e", Verdict.NEW),
        metric("d", Verdict.IMPROVED, 1.0, baseline=1.5),
        metric("c", Verdict.NOT_COMPARABLE, note="c: other device"),
        metric("b", Verdict.INCONCLUSIVE, note="b is 1.5\nto settle it: about 3 more seconds of sampling"),
    )
    seen = read(
        a_test("t::ok", metrics=metrics),
        a_test("t::bad", "failed", "a is 2 x"),
    )
    assert [heading.split(":")[0] for heading in map(str.strip, seen.all("h3"))] == ["0 fail, 1 improved", "Failed"]
    assert [title.split(":")[0] for title in seen.all("summary")] == [
        "1 inconclusive",
        "1 not comparable with the baseline",
        "1 new",
        "all 4 metrics",
    ]
    assert "a is 2 x\n" in seen.all("code")
    assert "to settle it: about 3 more seconds of sampling" in " ".join(text for _, text in seen.seen)


def test_what_changed_is_a_table_with_regressions_first():
    metrics = (
        metric("better", Verdict.IMPROVED, 1.0, baseline=1.25),
        metric("slower", Verdict.FAIL, 3.0, source="baseline", baseline=2.0, limit=2.1),
        metric("over", Verdict.FAIL, 3.0, source="budget", limit=1.5, interval=Interval(2.9, 3.1)),
        metric("from nothing", Verdict.FAIL, 3, source="baseline", baseline=0, unit="calls"),
        metric("same"),
    )
    text = markdown(report(a_test("t::a", "failed", "m", metrics)))
    assert text.split("\n\n")[2:4] == [
        "### 3 fail, 1 improved: `pytest --perf-save` records what improved",
        "| test | metric | base | head | change |\n"
        "| --- | --- | --- | --- | --- |\n"
        "| `t::a` | `from nothing` | 0 | 3 calls | **from 0** |\n"
        "| `t::a` | `slower` | 2 | 3 x | **+50 %** |\n"
        "| `t::a` | `over` | 1.5 (budget) | 3 \\[2.9, 3.1\\] x | **+100 %** |\n"
        "| `t::a` | `better` | 1.25 | 1 x | -20 % |",
    ]


def test_a_long_message_is_folded_after_its_first_line():
    lines = [f"line {number}" for number in range(LONG_LINES + 1)]
    text = markdown(report(a_test(outcome="failed", message="\n".join(lines))))
    assert "```text\nline 0\n```" in text
    assert f"<summary>all {len(lines)} lines</summary>" in text
    assert "line 8\n```" in text
    assert "<summary>" not in markdown(report(a_test(outcome="failed", message="\n".join(lines[:-1]))))


def test_where_the_table_has_what_failed_the_messages_are_folded_and_complete():
    gates = (
        metric("a", Verdict.FAIL, note="a is 2"),
        metric("b", Verdict.FAIL, note="b is 3; grew: dot at x.py:4"),
    )
    text = markdown(report(a_test(outcome="failed", message="a is 2\nalso worse: b", metrics=gates)))
    why = text.partition("<summary>why</summary>")[2].partition("</details>")[0]
    assert "a is 2\nalso worse: b\n\nb is 3; grew: dot at x.py:4" in why
    assert text.count("a is 2") == 1


def test_a_saved_file_is_listed_with_its_changes():
    older = with_versions(jax="0.9")
    changes = (
        Change("t::a", "made", "create", None, count(1)),
        Change("t::a", "slower", "update", count(2, older), count(3, with_versions(jax="0.10")), "worse"),
        Change("t::b", "gone", "trim", count(1), None),
        Change("t::b", "kept", "keep", count(1), count(1)),
    )
    saved = SaveResult(Path("baselines/cpu.json"), changes, untouched=3, written=True)
    text = markdown(report(a_test(), saved=(saved,)))
    assert "### `baselines/cpu.json` 2 recorded (1 new, 1 worse), 1 removed, 4 kept" in text
    assert "| `t::a` | `slower` | 2 | 3 | compiles | worse | jax 0.9 -\\> 0.10 |" in text
    assert "| `t::b` | `gone` | 1 | removed | compiles |  |  |" in text
    assert "`made`" not in text


# What comes from users.


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_name_is_shown_as_it_is_and_leaves_the_page_as_it_was(text):
    def page(name):
        metrics = (
            metric(name, Verdict.INCONCLUSIVE, note=name, unit=name),
            metric(name, Verdict.IMPROVED, baseline=2.0, unit=name),
            metric(name, Verdict.NEW, unit=name),
            metric(name, Verdict.FAIL, note=f"{name}\n{name}", unit=name),
        )
        tests = (a_test(name, "failed", f"{name}\n{name}", metrics), a_test(f"{name}2", "skipped", name))
        return read(*tests, notes=(name,))

    hostile, tame = page(text), page("tame")
    assert [tag for tag, _ in hostile.seen] == [tag for tag, _ in tame.seen]
    shown = " ".join(text.split())
    assert [said.replace(shown, "tame") for _, said in hostile.seen] == [said for _, said in tame.seen]


TEXTS = st.text(st.characters(codec="utf-8"), max_size=40) | st.text("`|\\<>&*_[]()!$@# \n-~", max_size=20)


def visible(text):
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


@settings(max_examples=200)
@given(TEXTS)
@example("a\\|b")
@example("`")
def test_a_code_span_in_a_table_reads_as_its_text(text):
    table = f"| a | b |\n| --- | --- |\n| {code(text, in_table=True)} | end |"
    cells = Reader(table)
    assert len(cells.all("td")) == 2
    (shown,) = cells.all("code")
    assert shown == (visible(" ".join(text.split())) or " ")


@settings(max_examples=200)
@given(TEXTS)
@example("a\\|b")
@example("~~a~~")
def test_plain_text_in_a_table_reads_as_its_text(text):
    cells = Reader(f"| a | b |\n| --- | --- |\n| {escaped(text)} | end |")
    assert [said.strip() for said in cells.all("td")] == [visible(" ".join(text.split())), "end"]
    assert {tag for tag, _ in cells.seen} == {"", "table", "thead", "tbody", "tr", "th", "td"}


@settings(max_examples=200)
@given(st.lists(TEXTS, max_size=5).map("\n".join))
@example("before\n```\nafter\n`````")
def test_a_block_reads_as_its_text_and_ends_where_it_ends(text):
    seen = Reader(f"{block(text)}\n\nafter")
    assert seen.all("p") == ["after"]
    lines = [visible(line.expandtabs(4)) for line in text.splitlines()]
    assert seen.all("code") == ["".join(f"{line}\n" for line in lines)]


def test_it_is_made_without_the_extra_report(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert markdown(dataclasses.replace(report(a_test()), notes=("a note",)))


def test_a_metric_that_is_missing_has_no_value():
    (row,) = changes_table([metric("gone", Verdict.MISSING, 2.0, baseline=2.0)]).splitlines()[2:]
    assert row.endswith("| `gone` | 2 |  | missing |")
