"""The tutorial, followed word for word in a folder of its own.

    python tests/docs/test_tutorial.py --fresh dist/perfsuite-0.1.0-py3-none-any.whl

follows it in a fresh environment, with the wheel installed from scratch. The test has no such time: it makes an
environment that sees the packages of this one, and leaves out the block that installs them.
"""

import argparse
import os
import re
import site
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script, it finds its helpers beside its folder
from support.libtpu_needed import needs_libtpu
from support.markdown_blocks import DOCS, ROOT, Block, blocks, difference

TUTORIAL = DOCS / "tutorial.md"
SECONDS = 300


class StrayedError(AssertionError):
    """What a reader of the tutorial would see is not what it says."""


def follow(folder: Path, *, perfsuite: str | None) -> None:
    """Follow the tutorial in `folder`, which is empty, with perfsuite installed from the path that is given.

    None stands for an environment that has it already. Blocks that a file's name heads are written to that file; blocks
    of `sh` are run by bash, and what they print, on both streams, is held against the block of `text` below. A command
    fails where that block says how many tests failed, and nowhere else.
    """
    found = blocks(TUTORIAL.read_text(encoding="utf-8"))
    for block, below in zip(found, [*found[1:], None], strict=True):
        if block.file is not None:
            (folder / block.file).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.file).write_text(block.text, encoding="utf-8")
        elif block.language == "sh" and (perfsuite or "pip install" not in block.text):
            _run(block, below if below is not None and below.language == "text" else None, folder, perfsuite)


def _run(block: Block, expected: Block | None, folder: Path, perfsuite: str | None) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PERFSUITE"))}
    environment |= {"JAX_PLATFORMS": "cpu", "COLUMNS": "80", "PERFSUITE": perfsuite or ""}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.text],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
    )
    where = f"{TUTORIAL.relative_to(ROOT)}:{block.line}: {block.text.strip()}"
    may_fail = expected is not None and re.search(r"\d failed", expected.text) is not None
    if bool(done.returncode) != may_fail:
        raise StrayedError(f"{where}\nended with {done.returncode}:\n{done.stdout}")
    if expected is not None and (missing := difference(expected.text, done.stdout)):
        raise StrayedError(f"{where}\n{missing}\nIt printed:\n{done.stdout}")


def environment_like_this_one(folder: Path) -> None:
    """An environment in `folder/.venv` with the commands of the tutorial, that sees the packages of this one."""
    made = folder / ".venv"
    venv.create(made, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(made), "platbase": str(made)}))
    # As a site folder, not as a path: an editable install is in a `.pth` file of its own.
    lines = "".join(f"import site; site.addsitedir({path!r})\n" for path in site.getsitepackages())
    (packages / "seen.pth").write_text(lines, encoding="utf-8")
    for command, module in (("pytest", "pytest"), ("perfsuite", "perfsuite")):
        script = made / "bin" / command
        script.write_text(f'#!/bin/sh\nexec "{made}/bin/python" -m {module} "$@"\n', encoding="utf-8")
        script.chmod(0o755)


@needs_libtpu
@pytest.mark.alone
def test_the_tutorial_is_what_a_reader_sees(tmp_path):
    environment_like_this_one(tmp_path)
    follow(tmp_path, perfsuite=None)


def test_the_workflow_runs_what_the_reader_runs():
    found = blocks(TUTORIAL.read_text(encoding="utf-8"))
    (workflow,) = (block.text for block in found if block.language == "yaml")
    commands = "".join(block.text for block in found if block.language == "sh")
    runs = [line.partition("- run: ")[2] for line in workflow.splitlines() if "- run: " in line]
    assert len(runs) == 3
    for run in runs:
        assert run.replace("perfsuite[report,tpu] @ $PERFSUITE", "$PERFSUITE[report,tpu]") in commands.splitlines()


def test_a_step_that_strays_from_the_page_is_seen(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    monkeypatch.setattr(sys.modules[__name__], "TUTORIAL", page)
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    said = "`note`:\n\n```ini\nseven\n```\n\n```sh\ncat note\nexit {status}\n```\n\n```text\n{text}\n```\n"
    for status, text, why in (
        (0, "seven", None),
        (1, "seven", "ended with 1"),
        (0, "eight", "was not printed there: eight"),
        (0, "1 failed", "ended with 0"),
    ):
        page.write_text(said.format(status=status, text=text), encoding="utf-8")
        if why is None:
            follow(tmp_path, perfsuite=None)
        else:
            with pytest.raises(StrayedError, match=why):
                follow(tmp_path, perfsuite=None)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Follow the tutorial in a fresh environment.")
    parser.add_argument("--fresh", metavar="WHEEL", required=True, help="what `PERFSUITE` stands for")
    with tempfile.TemporaryDirectory() as empty:
        follow(Path(empty), perfsuite=str(Path(parser.parse_args().fresh).resolve()))
    print("the tutorial is what a reader sees")
