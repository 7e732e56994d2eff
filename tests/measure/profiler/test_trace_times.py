"""`measure.profiler.trace_times`: unions of spans."""

from perfsuite.measure.profiler.trace_times import idle_share, merged, without


def test_spans_are_joined_and_taken_off_each_other():
    assert merged([(5, 6), (0, 2), (1, 3), (3, 4), (1, 2)]) == [(0, 4), (5, 6)]
    assert without([(0, 10), (20, 30)], [(5, 22), (25, 26), (40, 50)]) == 5 + 8 - 1
    assert idle_share([(0, 1), (3, 4)]) == 0.5
    assert idle_share([(1, 1)]) == 0
