"""The script that counts false alarms and slowdowns caught on a real call. Real gates, at its smallest size."""

import pytest

from perfsuite.measure.metric import Interval
from promise import real_gates
from promise.trials import Trial


def trial(planted, low, high, seconds=2.0):
    return Trial(planted, Interval(low, high), 100, seconds)


def test_gates_run_on_a_busy_machine(capsys):
    ((row, trials),) = real_gates.main(["--gates", "1", "--rows", "+3 %"]).items()
    assert (row.planted, row.busy, len(trials)) == (0.03, True, 1)
    assert trials[0].pairs > 0
    assert "+3 %, busy, 5 s" in capsys.readouterr().out


def test_the_table_counts_alarms_and_what_was_caught():
    none, busy, planted = real_gates.ROWS[:3]
    done = {
        none: [trial(0.0, 0.99, 1.01), trial(0.0, 1.001, 1.02)],
        busy: [trial(0.0, 0.98, 0.99)],
        planted: [trial(0.01, 0.99, 1.01, 5.0), trial(0.01, 1.001, 1.02, 1.0), trial(0.01, 0.9, 0.99, 3.0)],
    }
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in real_gates.table(done).splitlines()[2:]]
    assert [row[:4] for row in rows] == [
        ["A/A, quiet, 5 s", "1 of 2", "0", "2.0"],
        ["A/A, busy, 5 s", "0 of 1", "1", "2.0"],
        ["+1 %, quiet, 5 s", "1 of 3", "1", "3.0"],
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gates", "-1"], "--gates: must be a whole number, got '-1'"),
        (["--rows", "B/B"], "--rows: no row begins with 'B/B'"),
    ],
)
def test_a_bad_argument_is_named(arguments, message, capsys):
    with pytest.raises(SystemExit):
        real_gates.main(arguments)
    assert message in capsys.readouterr().err
