"""`timelines.json`: the timelines of a report's programs as Chrome's trace events, which Perfetto opens."""

import json
from collections.abc import Iterator
from typing import Any

from perfsuite.report.model import Report
from perfsuite.session.records import Timeline

TIMELINES = "timelines.json"

_THREADS = {"loops": 1, "device": 1, "collectives": 2, "copies": 3}


def trace_events(report: Report) -> str:
    """The text of the file: a process for each timeline, a thread for each lane; empty without a timeline.

    Source of the format: "Trace Event Format", which https://perfetto.dev/docs names for traces in JSON.
    """
    events = []
    timelines = [
        (f"{test.test} {program.label} {program.target or program.device_kind}{suffix}", timeline)
        for test in report.tests
        for program in test.programs
        for suffix, timeline in (("", program.timeline), (" (baseline)", program.timeline_before))
        if timeline is not None
    ]
    for process, (name, timeline) in enumerate(timelines, 1):
        events.append({"ph": "M", "pid": process, "name": "process_name", "args": {"name": name}})
        for lane in ("device", "collectives", "copies"):
            thread = {"pid": process, "tid": _THREADS[lane]}
            events.append({"ph": "M", **thread, "name": "thread_name", "args": {"name": lane}})
        events += [{"ph": "X", "pid": process, **each} for each in _slices(timeline)]
    return json.dumps({"traceEvents": events}, separators=(",", ":")) + "\n" if events else ""


def _slices(timeline: Timeline) -> Iterator[dict[str, Any]]:
    for block in timeline.blocks:
        if block.end_us is None:
            continue
        details = {"where": block.where, "runs": block.runs, "limit": block.limit, "waiting us": block.waiting_us}
        times = _times(block.start_us, block.end_us)
        yield {"tid": _THREADS[block.lane], "name": block.part, "args": details, **times}
        if block.waiting_us:
            times = _times(block.end_us - block.waiting_us, block.end_us)
            yield {"tid": _THREADS["device"], "name": f"waiting for {block.part}", **times}


def _times(start_us: float, end_us: float) -> dict[str, float]:
    # To whole nanoseconds, Perfetto's unit: what it rounds by itself it may take for an overlap.
    start, end = round(start_us, 3), round(end_us, 3)
    return {"ts": start, "dur": round(end - start, 3)}
