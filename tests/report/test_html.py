"""The page as text: what is on it, and that nothing in a name or a message is more than text."""

import dataclasses
import html.parser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.report_samples import HEADER, estimated_program, metric, perf_test, timeline

from perfsuite.gate.baseline import Entry
from perfsuite.gate.baseline_file import SaveResult
from perfsuite.gate.merging import Change
from perfsuite.gate.verdict import Verdict
from perfsuite.measure.metric import Interval, Metric
from perfsuite.report.html import breakable, parts_of
from perfsuite.report.html import html as page_of
from perfsuite.report.model import Report
from perfsuite.session.records import MOST_BLOCKS, Block, TraceRecord

HOSTILE = """</title></style><script>alert("1")</script><img src=x onerror='alert(2)'>&amp;{{ 7 * 7 }}$x_1$"""
"""The name of everything."""


class Parsed(html.parser.HTMLParser):
    """What a browser would make of a page: its tags with attributes, and its text, that of scripts apart."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = self.scripts = ""
        self._within: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._within.append(tag)
        if tag in ("td", "th", "br"):
            self.text += " "

    def handle_endtag(self, tag):
        while self._within and self._within.pop() != tag:
            pass

    def handle_data(self, data):
        if "script" in self._within:
            self.scripts += data
        elif "style" not in self._within:
            self.text += data

    def outline(self) -> list[str]:
        """The tags without breaks in long words."""
        return [tag for tag, _ in self.tags if tag != "wbr"]

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def everything(name: str) -> Report:
    """A report with something in every part, all called `name`."""
    failed = metric(
        name, 3, Verdict.FAIL, limit=2.0, baseline=2, source="baseline", note=name, cause=name, unit=name,
        detail={name: 3, "other": 1},
    )  # fmt: skip
    fact = metric(f"{name} flops", 2, Verdict.NOT_COMPARABLE, note=name)
    trace = TraceRecord(name, name, 2, (Metric(f"{name} trace host", 2, "us", "info"),), ((name, 1.0, 2.0),))
    program = estimated_program(name, titles=(fact.metric.title,), differences=(name,))
    ratio = metric(name, 1.05, Verdict.INCONCLUSIVE, kind="ratio", note=name, interval=Interval(1.0, 1.1), limit=1.02)
    tests = (
        perf_test(
            f"test_a[{name}]", failed, fact, ratio, outcome="failed", message=name,
            programs=(program,), traces=(trace, TraceRecord(name, name, note=name)),
        ),
        perf_test("test_b", outcome="skipped", message=name),
    )  # fmt: skip
    change = Change(
        name, name, "update", Entry(1, name, "size", "compiled"), Entry(2, name, "size", "compiled"), "worse"
    )
    return Report(
        HEADER,
        tests,
        (SaveResult(Path(name), (change,), untouched=3, written=True),),
        (name,),
    )


@pytest.fixture(scope="module")
def hostile() -> Parsed:
    return Parsed(page_of(everything(HOSTILE)))


def test_names_and_messages_are_text_wherever_they_stand(hostile):
    plain = Parsed(page_of(everything("plain")))
    assert hostile.outline() == plain.outline()
    assert hostile.scripts == plain.scripts
    assert not any(name.startswith("on") for _, attributes in hostile.tags for name in attributes)
    assert hostile.text.count(HOSTILE) >= 30


def test_no_part_of_the_page_comes_from_elsewhere(hostile):
    for tag, attributes in hostile.tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base")
        assert "src" not in attributes
        for name in ("href", "xlink:href"):
            target = attributes.get(name) or "#"
            # Traces lie beside the page; their path can be no address of another kind.
            assert target.startswith("#") or ":" not in target
    policy = next(each["content"] for each in hostile.all("meta") if each.get("http-equiv"))
    assert "default-src 'none'" in policy
    assert "unsafe-inline'; script" in policy
    assert "script-src 'sha256-" in policy


def test_every_id_is_used_once_and_every_link_leads_somewhere(hostile):
    ids = [attributes["id"] for _, attributes in hostile.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    anchors = [each["href"][1:] for each in hostile.all("a") if each["href"].startswith("#")]
    assert anchors
    for anchor in anchors:
        assert anchor in ids


def test_an_address_that_is_a_script_is_a_path():
    trace = TraceRecord("t", "javascript:alert(1)//")
    page = Parsed(page_of(Report(HEADER, (perf_test("test_a", traces=(trace,)),))))
    assert all((each["href"] or "").startswith(("#", "javascript%3A")) for each in page.all("a"))


def test_a_metric_has_value_interval_limit_baseline_change_and_verdict():
    made = metric(
        "ratio", 1.062, unit="x", kind="ratio", interval=Interval(1.055, 1.07), limit=1.06, baseline=1.01,
        source="baseline", verdict=Verdict.FAIL,
    )  # fmt: skip
    words = Parsed(page_of(Report(HEADER, (perf_test("test_a", made),)))).text.split()
    row = " ".join(words)
    assert "ratio test_it.py::test_a fail ratio 1.062 [1.055, 1.07] x 1.06 baseline 1.01 +5.15 %" in row


def page_with(*programs) -> Parsed:
    return Parsed(page_of(Report(HEADER, (perf_test("test_a", programs=programs),))))


def test_the_timelines_of_a_program_and_its_baseline_have_one_scale():
    page = page_with(estimated_program("p"))
    bars = [
        (each["class"].strip(), each["style"], each["title"].partition(": ")[0])
        for each in page.all("i")
        if "style" in each
    ]
    assert bars == [
        ("device", "left:0.000%;width:50.000%", "gone p at p"),
        ("loops", "left:0.000%;width:60.000%", "loop p at p"),
        ("device compute", "left:0.000%;width:20.000%", "p at p"),
        ("device memory", "left:60.000%;width:20.000%", "p at p"),
        ("device waiting", "left:80.000%;width:20.000%", "waiting for gather p"),
        ("collectives link", "left:70.000%;width:30.000%", "gather p at p"),
    ]
    longer = dataclasses.replace(estimated_program("p").timeline_before, us=200.0)
    page = page_with(estimated_program("p", timeline_before=longer))
    widths = [each["style"] for each in page.all("i") if "style" in each and each["class"].strip() == "device compute"]
    assert widths == ["left:0.000%;width:10.000%"], "the longer of the two is the whole"


def test_parts_stand_beside_those_of_the_baseline_and_what_is_unknown_leads():
    assert [(now and now[0].part, earlier and earlier[0].part) for now, earlier in parts_of(estimated_program("p"))] == [
        ("unknown p", []), ("p", []), ("gather p", []), ([], "gone p"),
    ]  # fmt: skip
    words = " ".join(page_with(estimated_program("p")).text.split())
    assert "unknown p p 1 unknown unknown 0 " in words
    assert "p p 4 80 80 0 80.0 % compute p" in words
    assert "gather p p 1 30 20 0 20.0 % link p" in words
    assert "gone p p 0 0 0 50 0.0 %" in words


def test_a_part_that_the_baseline_may_have_among_its_short_operations_is_not_new():
    before = timeline("q", others=1)
    words = " ".join(page_with(estimated_program("p", timeline_before=before)).text.split())
    assert "p p 4 80 80 80.0 % compute p" in words


@pytest.mark.parametrize(
    "blocks", [(), (Block("device", "p", "p", 0.0, 0.0),), (Block("device", "p", "p", 0.0, None),)]
)
def test_a_program_that_takes_no_time_has_a_timeline(blocks):
    empty = timeline(us=0.0, waiting_us=0.0, blocks=blocks)
    page = page_with(estimated_program(timeline=empty, timeline_before=None))
    assert "nan" not in str(page.tags)
    assert len(page.all("h4")) == 1
    assert page_with(estimated_program(timeline=None, timeline_before=None)).all("h4") == []


def test_the_largest_program_takes_little_of_a_page():
    place = "a_module/of_a_project/model.py:1234 in attention"
    blocks = tuple(
        Block("device", f"dynamic_slice fusion {at} in attention (model.py)", place, at, at + 1.0, limit="memory")
        for at in range(MOST_BLOCKS)
    )
    large = timeline(us=200.0, blocks=blocks)
    program = estimated_program(timeline=large, timeline_before=large)
    without = estimated_program(timeline=None, timeline_before=None)
    pages = [page_of(Report(HEADER, (perf_test("test_a", programs=(each,)),))) for each in (program, without)]
    assert len(pages[0]) - len(pages[1]) < 250_000


@given(st.text())
def test_a_name_that_may_be_broken_is_the_same_name(name):
    assert Parsed(f"<p>{breakable(name)}</p>").text == name


def test_a_large_session_is_a_page_of_moderate_size():
    names = [f"step {fact}" for fact in ("flops", "bytes accessed", "peak bytes", "fusions", "copies", "collectives")]
    tests = [
        perf_test(f"test_variant_of_the_step[variant-{number}]", *(metric(name, number, baseline=3) for name in names))
        for number in range(250)
    ]
    page = page_of(Report(HEADER, tuple(tests)))
    assert page.count("<tr data-verdict=") == 1500
    assert len(page) < 1_500_000
