"""The tutorial's workflow, and the script that follows the tutorial, which CI runs."""

import pytest
from support.markdown_blocks import ROOT, blocks

from docs import follow_tutorial


def test_ci_follows_the_tutorial_with_the_wheel():
    (line,) = (line for line in (ROOT / ".ci" / "run").read_text().splitlines() if "follow_tutorial.py" in line)
    assert "perfsuite-*.whl" in line


def test_the_workflow_runs_what_the_reader_runs():
    found = blocks(follow_tutorial.TUTORIAL.read_text(encoding="utf-8"))
    (workflow,) = (block.text for block in found if block.language == "yaml")
    commands = "".join(block.text for block in found if block.language == "sh")
    runs = [line.partition("- run: ")[2] for line in workflow.splitlines() if "- run: " in line]
    assert len(runs) == 3
    for run in runs:
        assert run.replace("perfsuite[report,tpu] @ $PERFSUITE", "$PERFSUITE[report,tpu]") in commands.splitlines()


def test_a_step_that_strays_from_the_page_is_seen(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    monkeypatch.setattr(follow_tutorial, "TUTORIAL", page)
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
            follow_tutorial.follow(tmp_path, perfsuite="")
        else:
            with pytest.raises(follow_tutorial.StrayedError, match=why):
                follow_tutorial.follow(tmp_path, perfsuite="")
