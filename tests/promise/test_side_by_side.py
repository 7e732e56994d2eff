"""The script that compares perfsuite's gate with pytest-benchmark's, at its smallest size, in real pytest processes."""

import pytest

from promise import side_by_side


def test_both_tools_judge_the_same_workload_and_the_table_shows_it(capsys, tmp_path):
    arguments = ["--repeats=1", "--seconds=0.5", "--workloads", "small", "--plants", "0.5"]
    verdicts = side_by_side.main(arguments)
    text = capsys.readouterr().out
    assert "1 repeat, 0.5 s a side, the machine as it is:" in text
    head, _, *rows = [line for line in text.splitlines() if line.startswith("|")]
    assert [column.strip() for column in head.strip("|").split("|")] == [
        "workload",
        "tool",
        "compares",
        "fails at",
        "false alarms, A/A",
        "+50 % caught",
        "seconds a verdict",
    ]
    assert len(rows) == 2 * (len(side_by_side.BENCHMARK_RULES) + len(side_by_side.RATIO_LIMITS))
    ours = [verdict for verdict in verdicts if verdict.tool == "perfsuite"]
    assert [verdict.rule for verdict in ours if not verdict.plant] == ["ratio=1.05", "ratio=1.01"]
    side_by_side.write_project(tmp_path)
    for seconds in (3, 15):  # beside other programs a gate takes longer to be sure; a quiet machine needs neither
        if not all(verdict.failed for verdict in ours if verdict.plant):
            ours += side_by_side.with_perfsuite(tmp_path, [0.5], ["small"], seconds)
            ours = [verdict for verdict in ours if not verdict.plant] + ours[-2:]
    assert {(verdict.rule, verdict.plant): verdict.failed for verdict in ours} == {
        ("ratio=1.05", 0.0): False,
        ("ratio=1.01", 0.0): False,
        ("ratio=1.05", 0.5): True,
        ("ratio=1.01", 0.5): True,
    }
    theirs = [verdict for verdict in verdicts if verdict.tool == "pytest-benchmark"]
    assert len(theirs) == 2 * len(side_by_side.BENCHMARK_RULES)
    # Whether they failed is what the script finds out. The test checks only that each rule has a verdict of its own.
    assert {verdict.rule for verdict in theirs} == {f"compare-fail={rule}" for rule in side_by_side.BENCHMARK_RULES}
    assert all(verdict.seconds > 0 for verdict in theirs)


def test_the_table_counts_what_failed_by_rule_and_plant():
    of = side_by_side.Verdict
    verdicts = [
        of("pytest-benchmark", "compare-fail=min:5%", "small", 0.0, True, 2.0),
        of("pytest-benchmark", "compare-fail=min:5%", "small", 0.0, False, 4.0),
        of("pytest-benchmark", "compare-fail=min:5%", "train", 0.03, True, 6.0),
        of("perfsuite", "ratio=1.01", "small", 0.03, True, 1.0),
    ]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in side_by_side.table(verdicts, [0.0, 0.03]).splitlines()[2:]]  # fmt: skip
    assert [[row[0], row[1], *row[3:]] for row in rows] == [
        ["all", "pytest-benchmark", "compare-fail=min:5%", "1 of 2", "1 of 1", "4.0"],
        ["all", "perfsuite", "ratio=1.01", "0 of 0", "1 of 1", "1.0"],
        ["small", "pytest-benchmark", "compare-fail=min:5%", "1 of 2", "0 of 0", "3.0"],
        ["train", "pytest-benchmark", "compare-fail=min:5%", "0 of 0", "1 of 1", "6.0"],
        ["small", "perfsuite", "ratio=1.01", "0 of 0", "1 of 1", "1.0"],
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--repeats", "0"], "--repeats: must be a whole number above zero, got '0'"),
        (["--seconds", "nan"], "--seconds: must be a number above zero, got 'nan'"),
        (["--plants", "-1"], "--plants"),
        (["--workloads", "huge"], "--workloads: invalid choice: 'huge'"),
    ],
)
def test_a_bad_argument_is_named(arguments, message, capsys):
    with pytest.raises(SystemExit):
        side_by_side.main(arguments)
    assert message in capsys.readouterr().err
