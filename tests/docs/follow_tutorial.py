"""Follow the first gate and the tutorial word for word, in a fresh environment with the wheel installed from scratch.

    python tests/docs/follow_tutorial.py dist/perfsuite-0.1.0-py3-none-any.whl

`.ci/run` does that. The tutorial takes two minutes, so `pytest` does not do it once more.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script, it finds its helpers beside its folder
from support.markdown_blocks import DOCS, ROOT, Block, blocks, difference

FIRST_GATE = DOCS / "first_gate.md"
TUTORIAL = DOCS / "tutorial.md"
SECONDS = 300


class StrayedError(AssertionError):
    """What a reader of the page would see is not what it says."""


def follow(page: Path, folder: Path, *, perfsuite: str | None) -> None:
    """Follow a page in `folder`, which is empty, with perfsuite installed from the path that is given.

    Where the path is None, `folder` has its `.venv`, and the commands that make it are left out: those of the first
    block of `sh`.

    Blocks that a file's name heads are written to that file. Blocks of `sh` are run by bash, and what they print, on
    both streams, is held against the block of `text` below. A command fails where that block says how many tests
    failed, and nowhere else.
    """
    found = blocks(page.read_text(encoding="utf-8"))
    if perfsuite is None:
        found.remove(next(block for block in found if block.language == "sh"))
    for block, below in zip(found, [*found[1:], None], strict=True):
        if block.file is not None:
            (folder / block.file).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.file).write_text(block.text, encoding="utf-8")
        elif block.language == "sh":
            expected = below if below is not None and below.language == "text" else None
            _run(block, expected, folder, f"{page.relative_to(ROOT)}:{block.line}", perfsuite)


def _run(block: Block, expected: Block | None, folder: Path, place: str, perfsuite: str | None) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PERFSUITE"))}
    environment |= {"JAX_PLATFORMS": "cpu", "COLUMNS": "80"}
    if perfsuite is not None:
        environment["PERFSUITE"] = perfsuite
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
    where = f"{place}: {block.text.strip()}"
    may_fail = expected is not None and re.search(r"\d failed", expected.text) is not None
    if bool(done.returncode) != may_fail:
        raise StrayedError(f"{where}\nended with {done.returncode}:\n{done.stdout}")
    if expected is not None and (missing := difference(expected.text, done.stdout)):
        raise StrayedError(f"{where}\n{missing}\nIt printed:\n{done.stdout}")


def remove_all_but(kept: str, folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir() and path.name != kept:
            shutil.rmtree(path)
        elif path.name != kept:
            path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description="Follow the first gate and the tutorial in a fresh environment.")
    parser.add_argument("wheel", metavar="WHEEL", type=Path, help="what `PERFSUITE` stands for")
    wheel = str(parser.parse_args().wheel.resolve())
    with tempfile.TemporaryDirectory() as empty:
        follow(FIRST_GATE, Path(empty), perfsuite=wheel)
        remove_all_but(".venv", Path(empty))  # jax is in it: the second install takes seconds
        follow(TUTORIAL, Path(empty), perfsuite=wheel)
    print("the first gate and the tutorial are what a reader sees")


if __name__ == "__main__":
    main()
