"""`measure.profiler.trace_growth`: which operations take longer than before."""

from perfsuite.measure.profiler.trace_growth import grew, growth_us, profile_of, where_time_went


def test_growth_is_per_run_and_the_most_grown_comes_first(steps):
    before = steps(dot_1=100, tanh_2=50, exp_3=10, add_4=20)
    after = steps(dot_7=60, dot_8=60, tanh_2=90, exp_3=10, sort_5=30)
    assert grew(profile_of(before), profile_of(after)) == [
        "jit_step: tanh: 50 -> 90 us a run (+40), 1 time",
        "jit_step: sort: 0 -> 30 us a run (+30), 0 -> 1 time",
        "jit_step: dot: 100 -> 120 us a run (+20), 1 -> 2 times",
    ]
    assert growth_us(profile_of(before), profile_of(after)) == 90
    assert growth_us(profile_of(after), profile_of(after)) == 0


def test_operations_that_are_only_numbered_anew_or_hardly_slower_did_not_grow(steps):
    assert grew(profile_of(steps(dot_1=100, tanh=50)), profile_of(steps(dot_9=101, tanh_3=51))) == []


def test_functions_of_two_names_are_compared_by_their_operations(steps):
    before, after = steps(module="jit_plain", dot=100, tanh=50), steps(module="jit_slow", dot=100, tanh=90)
    assert grew(profile_of(before), profile_of(after)) == ["jit_slow: tanh: 50 -> 90 us a run (+40), 1 time"]


def test_what_is_longer_in_one_trace_alone_did_not_grow_unless_it_runs_more_often(steps):
    before = profile_of(*(steps(dot=us, exp=20) for us in (100, 130, 105)))
    assert grew(before, profile_of(*(steps(dot=us, exp=20) for us in (140, 120, 135)))) == []
    assert grew(before, profile_of(*(steps(dot=us, exp=20) for us in (140, 131, 135)))) == [
        "jit_step: dot: 105 -> 135 us a run (+30), 1 time"
    ]
    twice = profile_of(*(steps(dot_1=us / 2, dot_2=us / 2, exp=20) for us in (140, 120, 135)))
    assert grew(before, twice) == ["jit_step: dot: 105 -> 135 us a run (+30), 1 -> 2 times"]


def test_the_message_has_the_sums_the_ten_most_grown_and_what_takes_less(steps):
    before = profile_of(steps(dot=100, **{f"exp{n}": 10 + n for n in range(12)}))
    after = profile_of(steps(dot=40, **{f"exp{n}": 20 + 2 * n for n in range(12)}))
    lines = where_time_went(before, after, "old -> new").splitlines()
    assert lines[0] == ("traced, a run (old -> new): host 0 -> 0 us, device 286 -> 412 us, idle share 0.000 -> 0.000")
    assert lines[1] == "  grew: jit_step: exp11: 21 -> 42 us a run (+21), 1 time"
    assert len(lines) == 1 + 10 + 1
    assert lines[-1] == "  less: jit_step: dot (-60)"
    assert where_time_went(after, after).splitlines()[1:] == ["  no operation on the device grew"]


def test_a_single_profile_has_its_ten_longest_operations(steps):
    lines = where_time_went(None, profile_of(steps(**{f"exp{n}": 10 + n for n in range(12)}))).splitlines()
    assert lines[0] == "traced, a run: host 0 us, device 186 us, idle share 0.000; the longest operations:"
    assert lines[1] == "  jit_step: exp11: 21 us, 1 time"
    assert len(lines) == 1 + 10
