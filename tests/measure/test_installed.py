"""A command that installs an extra works where the user stands: it names the place perfsuite came from."""

import re

import pytest
from support.markdown_blocks import ROOT, pages

from perfsuite.measure import installed

REPOSITORY = {"url": "https://example.org/p.git", "vcs_info": {"vcs": "git", "commit_id": "1a2b"}}
OF_REPOSITORY = "perfsuite[tpu] @ git+https://example.org/p.git@1a2b"


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        ({}, 'pip install "perfsuite[tpu]"'),
        (REPOSITORY, f'pip install "{OF_REPOSITORY}"'),
        ({"url": "file:///a/p.whl", "archive_info": {}}, 'pip install "perfsuite[tpu] @ file:///a/p.whl"'),
        ({"url": "file:///a%20b/p", "dir_info": {}}, 'pip install "perfsuite[tpu] @ file:///a%20b/p"'),
        ({"url": "file:///a%20b/p", "dir_info": {"editable": True}}, 'pip install -e "/a b/p[tpu]"'),
    ],
    ids=["an index", "a repository", "a wheel", "a folder", "an editable folder"],
)
def test_the_command_names_the_place(monkeypatch, origin, command):
    monkeypatch.setattr(installed, "_origin", lambda: origin)
    assert installed.install("tpu") == command


def test_nobody_is_told_a_command_that_finds_nothing():
    """The name is not on PyPI: `installed.py` knows the place, and pages name the extra and lead to the README."""
    told = re.compile(r"""pip install [^\n#;&]*?(?<=[\s"'])perfsuite(\[[\w,]+\])?\\?["'`)]""")
    workflows = [path for name in (".github", ".gitlab") for path in sorted((ROOT / name).rglob("*.yml"))]
    files = [*pages(), *workflows, *(ROOT / "perfsuite").rglob("*.py"), *(ROOT / "perfsuite").rglob("*.yml")]
    assert len(files) > len(workflows) > 5
    assert not [path for path in files if told.search(path.read_text(encoding="utf-8"))]
    assert told.search('pip install \\"perfsuite[tpu]\\"')
    assert told.search('pip install -e . "perfsuite[report,tpu]" # from anywhere')
