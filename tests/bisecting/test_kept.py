"""Steps in a file: an interrupted search goes on, another question has another file."""

import pytest

from perfsuite.bisecting.found import BisectFailed, Step
from perfsuite.bisecting.kept import Kept, digest
from perfsuite.gate.baseline import Baselines
from perfsuite.gate.baseline_format import render
from perfsuite.measure.metric import Interval

STEP = Step(
    "abc",
    "bad",
    3.0,
    "us",
    "why",
    2.5,
    Interval(1.0, float("inf")),
    "cpu",
    {"jax": "1"},
    {},
    {"cpu": render(Baselines("cpu"))},
)


def test_a_step_is_there_again(tmp_path):
    Kept(tmp_path / "new", {"good": "a"}).add(STEP)
    again = Kept(tmp_path / "new", {"good": "a"})
    assert again.steps == {"abc": STEP}
    assert not again.made
    assert [path.name for path in (tmp_path / "new").iterdir()] == [again.path.name]


def test_a_file_that_changes_makes_another_digest(tmp_path):
    (tmp_path / "a.py").write_text("1")
    files = [tmp_path / "a.py", tmp_path / "none.py"]
    before = digest(files)
    assert digest(files[::-1]) == before
    (tmp_path / "a.py").write_text("2")
    assert digest(files) != before


def test_another_question_has_other_steps(tmp_path):
    Kept(tmp_path, {"good": "a"}).add(STEP)
    assert not Kept(tmp_path, {"good": "b"}).steps
    assert not Kept(tmp_path, {"good": "a"}, again=True).steps


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 1, "steps": [{"id": 1, "odd": 2}]}', '{"schema": 9}'])
def test_a_file_that_cannot_be_read_is_begun_anew(tmp_path, text):
    kept = Kept(tmp_path, {})
    kept.path.write_text(text)
    assert Kept(tmp_path, {}).steps == {}


def test_a_folder_that_is_a_file_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BisectFailed, match=r"cannot be used .*--keep DIR"):
        Kept(tmp_path / "file", {})
