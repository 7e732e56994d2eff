"""What the README shows works as it stands there."""

import re
from pathlib import Path

import pytest

import perfsuite
from perfsuite.fixture import Perf

pytestmark = pytest.mark.alone

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def test_the_example_is_green_when_saved_and_when_gated(project):
    example, *_ = blocks("python")
    project.makepyfile(test_example=example)
    project.runpytest_inprocess("--perf-save", "--perf-seconds=2").assert_outcomes(passed=3)
    project.runpytest_inprocess("--perf", "--perf-seconds=2").assert_outcomes(passed=3)
    project.runpytest_inprocess().assert_outcomes(skipped=3)


EXAMPLES = dict(zip(("surgery", "generation", "extraction"), blocks("python")[1:], strict=True))


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_the_other_examples_print_what_they_say(example, capsys):
    exec(compile(example, "README.md", "exec"), {})
    said = re.findall(r"^print\(.*\)  # (.*?)(?: where .*)?$", example, re.MULTILINE)
    assert len(said) == example.count("print(")
    assert capsys.readouterr().out.splitlines() == said


def test_there_are_two_commands_and_each_makes_its_own_environment():
    commands = blocks("sh")
    assert len(commands) == 2
    assert all(command.startswith("python3 -m venv .venv && ") for command in commands)
    assert "pytest --perf" in commands[0]


def test_every_option_is_described(pytester: pytest.Pytester):
    shown = pytester.runpytest_inprocess("--help").stdout.str()
    options = set(re.findall(r"--perf[a-z-]*", shown))
    assert {"--perf", "--perf-save"} < options
    assert options == set(re.findall(r"--perf[a-z-]*", README))


def test_every_instrument_and_budget_is_described():
    own = [each for each in Perf.__mro__ if each.__module__.startswith("perfsuite.")]
    methods = {name for each in own for name, value in vars(each).items() if callable(value) and name[0] != "_"}
    assert {"time", "warm", "program"} <= methods
    for name in methods - {"judge_baselines"}:
        assert f"`{name}(" in README, name
    for field in perfsuite.Budget.__dataclass_fields__:
        assert f"{field}=" in README, field
