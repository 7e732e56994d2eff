"""What contributors read: the table of packages, the templates of issues, and the citation."""

import re

import pytest
import yaml
from support.markdown_blocks import ROOT, links

CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `(\w+)` \|.*\| `([\w/.]+)`", CONTRIBUTING, re.MULTILINE))
TEMPLATES = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.md"))


def test_every_package_is_in_the_table_with_its_tests():
    packages = {path.parent.name for path in (ROOT / "perfsuite").glob("*/__init__.py")}
    assert ROWS.keys() == packages
    for tests in ROWS.values():
        assert (ROOT / tests.removesuffix("/PACKAGE")).exists(), tests


def test_the_command_for_one_package_names_folders_that_exist():
    (command,) = re.findall(r"^    \.venv/bin/pytest (.*)$", CONTRIBUTING, re.MULTILINE)
    assert all((ROOT / each).exists() for each in command.split())
    assert command.split()[0] in ROWS.values()


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_a_template_of_an_issue_is_one_that_github_takes(path):
    _, head, body = path.read_text(encoding="utf-8").split("---\n", 2)
    assert set(yaml.safe_load(head)) == {"name", "about", "labels"}
    assert body.count("```") % 2 == 0


def test_the_template_of_a_pull_request_links_to_what_is_there():
    template = ROOT / ".github/pull_request_template.md"
    found = list(links(template.read_text(encoding="utf-8")))
    assert found
    assert all((template.parent / link).exists() for link in found)


def test_the_citation_has_what_the_format_asks_for():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert "version" not in citation, "pyproject.toml alone has it"
