"""Arithmetic of a trace's times, in nanoseconds: unions of spans, and each operation's own time."""

from collections import defaultdict
from collections.abc import Iterable

from perfsuite.measure.profiler.trace_events import Event, Ran

Span = tuple[float, float]


def merged(spans: Iterable[Span]) -> list[Span]:
    """The union of `spans`, as spans that do not touch, in order."""
    union: list[Span] = []
    for start, end in sorted(spans):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], end))
        else:
            union.append((start, end))
    return union


def length(spans: Iterable[Span]) -> float:
    """The sum of the lengths."""
    return sum(end - start for start, end in spans)


def without(spans: list[Span], others: list[Span]) -> float:
    """The length of what `spans` cover and `others` do not."""
    covered = merged(others)
    return length(merged([*spans, *covered])) - length(covered)


def idle_share(busy: list[Span]) -> float:
    """The part of the time from the first start to the last end that `busy`, merged spans, leave free."""
    whole = busy[-1][1] - busy[0][0]
    return 1 - length(busy) / whole if whole else 0.0


def own_spans(line: Iterable[Event]) -> list[tuple[Event, list[Span]]]:
    """Each event of one line with the spans in which nothing inside it runs."""
    found: list[tuple[Event, list[Span]]] = []
    around: list[int] = []  # places in `found` of the events that have not ended
    now = 0.0

    def go_on(until: float) -> None:
        """Give the time until then to the innermost event, and to those around it when it has ended."""
        nonlocal now
        while around and now < until:
            event, spans = found[around[-1]]
            if (stop := min(event.end, until)) > now:
                spans.append((now, stop))
                now = stop
            if event.end <= now:
                around.pop()
        now = max(now, until)

    for event in sorted(line, key=lambda event: (event.start, -event.end)):
        go_on(event.start)
        around.append(len(found))
        found.append((event, []))
    go_on(max((event.end for event, _ in found), default=0.0))
    return found


def own_times(operations: Iterable[Ran]) -> list[tuple[Ran, float]]:
    """Each run of an operation with its own time, which for a loop excludes the operations in its body.

    An operation's time in other threads, after its event, counts until the next operation of its program starts: XLA
    reports its end only after what followed it in that thread.
    """
    lines: dict[int, list[Ran]] = defaultdict(list)
    programs: dict[tuple[str, int], list[Ran]] = defaultdict(list)
    for ran in operations:
        lines[ran.line].append(ran)
        programs[ran.device, ran.run].append(ran)
    own: dict[int, float] = defaultdict(float)
    for line in lines.values():
        _add_nested(line, own)
    for program in programs.values():
        _add_in_other_threads(program, own)
    return [(ran, own[id(ran)]) for line in lines.values() for ran in line]


def _add_nested(line: list[Ran], own: dict[int, float]) -> None:
    around: list[Ran] = []
    for ran in sorted(line, key=lambda ran: (ran.start, -ran.end)):
        while around and around[-1].end <= ran.start:
            around.pop()
        if around:
            own[id(around[-1])] -= min(ran.end, around[-1].end) - ran.start
        own[id(ran)] += ran.end - ran.start
        around.append(ran)


def _add_in_other_threads(program: list[Ran], own: dict[int, float]) -> None:
    later: list[Span] = []  # spans of the operations that start later, apart from each other, the earliest last
    for ran in sorted(program, key=lambda ran: (ran.start, -ran.end), reverse=True):
        rest = ran.until - ran.end
        start, until = ran.start, ran.until
        while later and later[-1][0] <= ran.until:
            span = later.pop()
            rest -= max(0.0, min(span[1], ran.until) - max(span[0], ran.end))
            until = max(until, span[1])
        later.append((start, until))
        own[id(ran)] += rest
