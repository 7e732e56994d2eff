"""What the README shows works as it stands there. Its links are checked in `test_docs.py`."""

from support.markdown_blocks import ROOT, blocks

README = (ROOT / "README.md").read_text(encoding="utf-8")


def texts(language: str) -> list[str]:
    return [block.text for block in blocks(README) if block.language == language]


def test_the_example_is_green_when_saved_and_when_gated(project):
    example, *_ = texts("python")
    project.makepyfile(test_example=example)
    project.runpytest_inprocess("--perf-save", "--perf-seconds=2").assert_outcomes(passed=3)
    project.runpytest_inprocess("--perf", "--perf-seconds=2").assert_outcomes(passed=3)
    project.runpytest_inprocess().assert_outcomes(skipped=3)


def test_there_are_two_commands_and_each_makes_its_own_environment():
    commands = texts("sh")
    assert len(commands) == 2
    assert all(command.startswith("python3 -m venv .venv && ") for command in commands)
    assert "pytest --perf" in commands[0]
