"""What the README shows works as it stands there. Its links are checked in `test_docs.py`."""

import jax
import pytest
from support.libtpu_needed import needs_libtpu
from support.markdown_blocks import ROOT, blocks, difference

from docs.test_docs import Seen

README = (ROOT / "README.md").read_text(encoding="utf-8")

CHANGES = {
    "in batches * 3": "in jax.device_put(batches, jax.devices()[0]) * 3",
    '- batch["y"]) ** 2)': '- batch["y"]) ** 2) + 1e-4 * jnp.sum((params["w"] @ params["w"].T) ** 2)',
}
"""Of the changes that the README names, those whose messages no clock decides."""


def texts(language: str) -> list[str]:
    return [block.text for block in blocks(README) if block.language == language]


def test_the_example_is_green_when_saved_and_when_gated(project):
    example, *_ = texts("python")
    project.makepyfile(test_example=example)
    project.runpytest_inprocess("--perf-save", "--perf-seconds=2").assert_outcomes(passed=3)
    project.runpytest_inprocess("--perf", "--perf-seconds=2").assert_outcomes(passed=3)
    project.runpytest_inprocess().assert_outcomes(skipped=3)


@needs_libtpu
@pytest.mark.skipif(jax.__version_info__ >= (0, 12), reason="another compiler makes other programs")
def test_the_changed_example_fails_with_the_messages_at_the_top(pytester):
    changed, *_ = texts("python")
    options = "--perf-target=tpu-v5e", "-k", "recompiles or program"
    pytester.makepyfile(test_step=changed)
    pytester.runpytest_inprocess("--perf-save", *options).assert_outcomes(passed=2, deselected=1)
    for old, new in CHANGES.items():
        assert changed.count(old) == 1
        changed = changed.replace(old, new)
    pytester.makepyfile(test_step=changed)
    seen = Seen()
    pytester.inline_run("--perf", *options, plugins=[seen])
    messages = [message.removeprefix("GateFailed: ") for message in seen.failed.values()]
    recompilation, _, program = texts("")[0].split("\n\n")
    missing = [difference(*each) for each in zip((recompilation, program), messages, strict=True)]
    assert missing == [None, None], messages


def test_there_are_two_commands_and_each_makes_its_own_environment():
    commands = texts("sh")
    assert len(commands) == 2
    assert all(command.startswith("python3 -m venv .venv && ") for command in commands)
    assert "pytest --perf" in commands[0]
