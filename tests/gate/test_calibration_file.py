"""`gate.calibration_file`: what a calibration found, on the disk and back."""

import dataclasses
import json

import pytest

from perfsuite.gate.baseline import Entry
from perfsuite.gate.baseline_file import BaselineError, save
from perfsuite.gate.calibration_file import (
    BUILDS_DIFFER,
    BUILDS_DIFFER_AT_LEAST,
    Calibrated,
    builds_differ,
    calibration_path,
    load_calibration,
    save_calibration,
)
from perfsuite.gate.environment import Environment
from perfsuite.measure.timing.calibrating import LADDER, Builds, GateCounts, builds_within

HERE = Environment("cpu", 2, "Xeon", "3.11.7", "0.10.2", "0.10.2")
STEP = "tests/test_steps.py::test_flat[tiny]"
NAME = "flat, list: a/b to ready"
CAUGHT = {size: (place, place + 3) for place, size in enumerate(LADDER)}
FOUND = [
    Calibrated(STEP, NAME, False, GateCounts(12, 0, CAUGHT, 0.0123), HERE, Builds(4, 0.0125)),
    Calibrated(STEP, NAME, True, GateCounts(11, 2, {0.03: (2, 4)}, None), HERE),
    Calibrated("tests/test_steps.py::test_other", "step to return", True, GateCounts(0, 0, {0.1: (1, 1)}, None), HERE),
]


@pytest.fixture
def path(tmp_path):
    return calibration_path(tmp_path, "tpu-v5e")


def test_it_lies_beside_the_baselines_of_its_device(path, tmp_path):
    assert path == tmp_path / "calibration-tpu-v5e.json"


def test_what_was_saved_is_loaded(path):
    assert load_calibration(path) == []
    save_calibration(path, FOUND)
    assert load_calibration(path) == FOUND


def test_every_metric_is_on_a_line_of_its_own_with_its_numbers_and_provenance(path):
    save_calibration(path, FOUND)
    (line,) = [line for line in path.read_text().splitlines() if f"{NAME}, busy: false alarms" in line]
    metric = json.loads("{" + line.rstrip(",") + "}")[f"{NAME}, busy: false alarms"]
    assert (metric["value"], metric["detail"], metric["provenance"]) == (2, {"of": 11}, "measured")
    metrics = json.loads(path.read_text())["metrics"][STEP]
    assert metrics[f"{NAME}, quiet: caught 99 in 100"]["value"] == 1.23
    assert metrics[f"{NAME}, quiet: +0.5 % caught"]["detail"] == {"of": 3}
    assert (metrics[f"{NAME}, quiet: builds scatter"]["value"], len(metrics)) == (1.25, 1 + len(LADDER) + 2 + 2)


def test_a_new_calibration_of_a_test_takes_the_place_of_the_old_one_whole_and_others_stay(path):
    save_calibration(path, FOUND)
    # Metrics that differ by little, too: those of two runs must not stand side by side.
    again = dataclasses.replace(FOUND[0], found=GateCounts(13, 0, {0.03: (3, 4)}, 0.0124))
    save_calibration(path, [again])
    assert load_calibration(path) == [again, FOUND[-1]]


def test_a_calibration_of_another_processor_takes_the_place_of_the_old_one_too(path, tmp_path):
    save_calibration(path, FOUND)
    there = dataclasses.replace(HERE, processor="EPYC")
    found = GateCounts(13, 0, {0.03: (3, 4)}, 0.2)
    again = dataclasses.replace(FOUND[0], found=found, environment=there, builds=Builds(30, 0.03))
    save_calibration(path, [again])
    assert load_calibration(path) == [again, FOUND[-1]]
    assert builds_differ(tmp_path, "tpu-v5e") == builds_within([again.builds])


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"schema": 2', '"schema": 2,,', ":2: expecting"),
        ('"schema": 2', '"schema": 3', "newer perfsuite"),
        ("false alarms", "false alrams", "is no metric of a calibration: delete the file and run pytest --perf-calibrate"),
        (", busy:", ", lazy:", "is no metric of a calibration"),
        (', "detail": {"of": 11}', "", "is no metric of a calibration"),
        ('{"of": 11}', '{"of": 1}', "2 of 1 gates cannot be"),
        ('{"builds": 4}', '{"builds": 1}', "1.25 % of 1 builds cannot be"),
        ('{"builds": 4}', '{"of": 4}', "is no metric of a calibration"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_refused_and_says_what_to_do(path, old, new, words):
    save_calibration(path, FOUND)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(BaselineError) as caught:
        load_calibration(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


def with_builds(*builds):
    return [
        Calibrated(STEP, f"a/b #{place}", False, GateCounts(1, 0, {}, None), HERE, each)
        for place, each in enumerate(builds)
    ]


@pytest.mark.parametrize(
    ("builds", "expected"),
    [
        ([], BUILDS_DIFFER),
        ([Builds(9, 0.04)], BUILDS_DIFFER),
        ([None, Builds(5, 0.04), Builds(5, 0.01)], builds_within([Builds(5, 0.04), Builds(5, 0.01)])),
        ([Builds(40, 0.0001)], BUILDS_DIFFER_AT_LEAST),
    ],
)
def test_what_builds_differ_by_is_that_of_all_workloads_where_enough_were_seen(path, builds, expected):
    save_calibration(path, with_builds(*builds))
    assert builds_differ(path.parent, "tpu-v5e") == pytest.approx(expected)
    assert builds_differ(path.parent, "tpu-v4") == BUILDS_DIFFER, "of another device nothing is known"


def test_what_builds_differ_by_is_not_guessed_from_a_damaged_file(path):
    path.write_text("{half")
    with pytest.raises(BaselineError, match=r"calibration-tpu-v5e\.json:1: "):
        builds_differ(path.parent, "tpu-v5e")


def test_a_file_of_baselines_is_none_of_a_calibration(path):
    save(path, {STEP: {"compiles": Entry(3, "compiles", "count", "measured", HERE)}})
    with pytest.raises(BaselineError, match=r"'compiles' of .* is no metric of a calibration"):
        load_calibration(path)
