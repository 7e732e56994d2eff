"""The first gate, and the script that follows it and the tutorial, which CI runs."""

import sys
from pathlib import Path

import pytest
from support.markdown_blocks import ROOT, blocks

from docs import follow_tutorial


def test_ci_follows_the_tutorial_with_the_wheel():
    (line,) = (line for line in (ROOT / ".ci" / "run").read_text().splitlines() if "follow_tutorial.py" in line)
    assert "perfsuite-*.whl" in line


def test_the_first_gate_catches_its_recompilation_word_for_word(tmp_path):
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/bin").symlink_to(Path(sys.executable).parent)
    follow_tutorial.follow(follow_tutorial.FIRST_GATE, tmp_path, perfsuite=None)
    commands = "".join(block.text for block in page_of(follow_tutorial.FIRST_GATE) if block.language == "sh")
    assert len(commands.splitlines()) == 5


def page_of(page):
    return blocks(page.read_text(encoding="utf-8"))


def test_a_step_that_strays_from_the_page_is_seen(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    monkeypatch.setattr(follow_tutorial, "ROOT", tmp_path)
    said = "`note`:\n\n```ini\nseven\n```\n\n```sh\ncat note\nexit {status}\n```\n\n```text\n{text}\n```\n"
    for status, text, why in (
        (0, "seven", None),
        (1, "seven", "ended with 1"),
        (0, "eight", "was not printed there: eight"),
        (0, "1 failed", "ended with 0"),
    ):
        page.write_text(said.format(status=status, text=text), encoding="utf-8")
        if why is None:
            follow_tutorial.follow(page, tmp_path, perfsuite="")
        else:
            with pytest.raises(follow_tutorial.StrayedError, match=why):
                follow_tutorial.follow(page, tmp_path, perfsuite="")
