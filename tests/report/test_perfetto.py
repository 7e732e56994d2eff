"""The trace file of a report's timelines, as a program that reads Chrome's trace events takes it."""

import collections
import json

from support.report_samples import HEADER, estimated_program, perf_test

from perfsuite.report.model import Report
from perfsuite.report.perfetto import trace_events


def test_each_timeline_is_a_process_with_a_thread_a_lane():
    report = Report(HEADER, (perf_test("test_a", programs=(estimated_program("</script>"),)), perf_test("test_b")))
    events = json.loads(trace_events(report))["traceEvents"]
    names = [each["args"]["name"] for each in events if each["name"] == "process_name"]
    assert names == ["test_it.py::test_a </script> </script>", "test_it.py::test_a </script> </script> (baseline)"]
    lanes = {each["tid"]: each["args"]["name"] for each in events if each["name"] == "thread_name"}
    now = [each for each in events if each["ph"] == "X" and each["pid"] == 1]
    assert [(lanes[each["tid"]], each["name"], each["ts"], each["dur"]) for each in now] == [
        ("device", "loop </script>", 0, 60),
        ("device", "</script>", 0, 20),
        ("device", "</script>", 60, 20),
        ("collectives", "gather </script>", 70, 30),
        ("device", "waiting for gather </script>", 80, 20),
    ]
    assert now[3]["args"] == {"where": "</script>", "runs": 1, "limit": "link", "waiting us": 20}


def test_slices_of_a_thread_hold_each_other_or_are_apart():
    report = Report(HEADER, (perf_test("test_a", programs=(estimated_program(),)),))
    events = json.loads(trace_events(report))["traceEvents"]
    threads = collections.defaultdict(list)
    for each in events:
        if each["ph"] == "X":
            threads[each["pid"], each["tid"]].append((each["ts"], each["ts"] + each["dur"]))
    for slices in threads.values():
        for start, end in slices:
            assert not any(start < other < end < last for other, last in slices)


def test_without_timelines_there_is_no_file():
    program = estimated_program(timeline=None, timeline_before=None)
    assert trace_events(Report(HEADER, (perf_test("test_a", programs=(program,)),))) == ""
