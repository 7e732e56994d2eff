"""What the documentation shows works as it stands there, and what there is to document is documented."""

import itertools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from support.libtpu_needed import UNAVAILABLE, needs_libtpu
from support.markdown_blocks import DOCS, ROOT, anchors, blocks, difference, links, pages
from support.valgrind_needed import UNAVAILABLE as NO_INSTRUCTIONS

import perfsuite
import perfsuite.plugin
from docs import gate_failed
from perfsuite.commands import COMMANDS, main
from perfsuite.instruments.base import METHODS

try:
    import chex  # noqa: F401  # before any nested session, which would drop what it is the first to import
except ImportError:
    WITHOUT_CHEX = {DOCS / "migrating.md"}
else:
    WITHOUT_CHEX = set()

ALL = sorted(DOCS.rglob("*.md"))
GATE_FAILED = DOCS / "a_gate_failed.md"
PALLAS = DOCS / "instruments" / "pallas.md"
WITHOUT_LIBTPU = {PALLAS, DOCS / "instruments" / "slices.md"} if UNAVAILABLE else set()
WITHOUT_VALGRIND = {DOCS / "instruments" / "instructions.md"} if NO_INSTRUCTIONS else set()
IN_A_TEST_OF_THEIR_OWN = {DOCS / "first_gate.md", DOCS / "tutorial.md", GATE_FAILED}


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def python_of(page: Path) -> str:
    """The Python blocks of a page, as one module, but for those that are files of their own."""
    return "\n\n".join(block.text for block in blocks(read(page)) if block.language == "python" and not block.file)


LEFT_OUT = IN_A_TEST_OF_THEIR_OWN | WITHOUT_CHEX | WITHOUT_LIBTPU | WITHOUT_VALGRIND
MODULES = {page: code for page in ALL if page not in LEFT_OUT and (code := python_of(page))}
PERF_TESTS = {page: code for page, code in MODULES.items() if "def test_" in code}
SCRIPTS = {page: code for page, code in MODULES.items() if page not in PERF_TESTS}


def failures(page: Path) -> dict[str, str]:
    """Of the tests of a page those that are to fail, and what they are to say.

    The last test of a Python block that has a block of text right below it fails with that.
    """
    found = blocks(read(page))
    return {
        re.findall(r"^def (test_\w+)", block.text, re.MULTILINE)[-1]: below.text
        for block, below in itertools.pairwise(found)
        if (block.language, below.language) == ("python", "text")
    }


class Seen:
    """A plugin of a nested session: the tests that passed, and the message of each that failed."""

    def __init__(self) -> None:
        self.failed: dict[tuple[str, str], str] = {}
        self.passed: set[tuple[str, str]] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo):
        report = yield
        key = item.path.stem.removeprefix("test_"), item.name.partition("[")[0]
        if report.failed and call.excinfo is not None:
            self.failed[key] = f"{call.excinfo.typename}: {call.excinfo.value}"
        elif report.passed and report.when == "call":
            self.passed.add(key)
        return report


SINCE_0_12 = {
    # The new compiler's gather has the name of the argument and no line.
    ("slices", "test_weights_travel_over_the_network"): "AssertionError: all-gather of 32,768 bytes at weights",
}
"""By page and test, what one says from jax 0.12 on that is more than other numbers. Pages have what jax 0.10.2 says."""


def said_by_this_jax(key: tuple[str, str], text: str) -> str:
    """What a test of a page is to say: word for word, but for the numbers of another compiler."""
    if jax.__version_info__ < (0, 12):
        return text
    return SINCE_0_12.get(key) or re.sub(r"\.?\d[\d.,]*", "...", text)


def test_perf_tests_pass_and_fail_as_their_pages_say(pytester, monkeypatch):
    modules = {f"test_{page.stem}": code for page, code in PERF_TESTS.items()}
    for name in modules:  # modules of these tests have some of the names, too
        monkeypatch.delitem(sys.modules, name, raising=False)
    pytester.makepyfile(**modules)
    seen = Seen()
    options = ["--perf-seconds=0.5", "--benchmark-max-time=0.05", "-p", "no:cacheprovider"]
    pytester.inline_run("--perf", *options, "-q", plugins=[seen])
    fails = {(page.stem, test): text for page in PERF_TESTS for test, text in failures(page).items()}
    fails = {key: said_by_this_jax(key, text) for key, text in fails.items()}
    wrong = [f"{page}: {test} failed:\n{seen.failed[page, test]}" for page, test in seen.failed.keys() - fails.keys()]
    for (page, test), text in fails.items():
        said = seen.failed.get((page, test), "nothing, for it passed")
        if missing := difference(text, said):
            wrong.append(f"{page}: {test}: {missing}\nIt said:\n{said}")
    assert not wrong, "\n\n".join(wrong)
    tests = {
        (page.stem, test) for page, code in PERF_TESTS.items() for test in re.findall(r"^def (test_\w+)", code, re.M)
    }
    assert seen.passed | seen.failed.keys() == tests


@pytest.mark.skipif(bool(WITHOUT_CHEX), reason="chex is not installed, which docs/migrating.md is run with")
def test_no_page_is_left_out_for_want_of_chex():
    assert DOCS / "migrating.md" in PERF_TESTS


@needs_libtpu
def test_a_kernel_without_an_estimate_is_named_as_its_page_says(project):
    project.makepyfile(test_pallas=python_of(PALLAS))
    printed = project.runpytest_inprocess("--perf", "-k", "without_an_estimate")
    printed.assert_outcomes(passed=1, deselected=3)
    shown = [block.text for block in blocks(read(PALLAS)) if block.language == "text"]
    assert (missing := difference(shown[0], printed.stdout.str())) is None, missing


def test_a_gate_that_failed_and_the_commands_that_read_its_baselines_print_what_their_pages_say(
    pytester, monkeypatch, capsys
):
    # With pytest's cache: it has the programs that were saved.
    pytester.makeini("[pytest]\naddopts = --perf-seconds=8\n")
    found = blocks(read(GATE_FAILED))
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, os.devnull)
    git("init", "--quiet", "--initial-branch=main")
    pytester.makepyfile(test_train=gate_failed.SAVED)
    pytester.runpytest_inprocess("--perf-save").assert_outcomes(passed=3)
    commit("The first baselines")

    pytester.makepyfile(test_train=gate_failed.changed())
    # In a process of its own, as a reader runs it.
    printed = pytester.runpytest_subprocess("--perf", "-v")
    printed.assert_outcomes(failed=3)
    texts = [block.text for block in found if block.language == "text"]
    assert len(texts) > 5
    missing = [said for text in texts if (said := difference(text, printed.stdout.str()))]
    assert not missing, "\n".join(missing)

    pytester.runpytest_inprocess("--perf-save").assert_outcomes(passed=3)
    baselines = blocks(read(DOCS / "baselines.md"))
    commands = [(each, below) for each, below in itertools.pairwise(baselines) if each.language == "sh"]
    assert len(commands) == 2
    for command, below in commands:
        capsys.readouterr()
        program, *arguments = shlex.split(command.text)
        assert (program, main(arguments)) == ("perfsuite", 0)
        out = capsys.readouterr().out
        assert (missing := difference(below.text, out)) is None, f"{command.text}{missing}\n{out}"


def git(*arguments: str) -> None:
    author = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *author, *arguments], check=True, capture_output=True)


def commit(subject: str) -> None:
    git("add", "baselines/cpu.json")
    git("commit", "--quiet", f"--message={subject}")


@pytest.mark.parametrize("page", ALL, ids=lambda page: str(page.relative_to(DOCS)))
def test_files_that_pages_show_are_python(page):
    for block in blocks(read(page)):
        if block.file and block.file.endswith(".py"):
            compile(block.text, block.file, "exec")


@pytest.mark.parametrize("page", SCRIPTS, ids=lambda page: page.stem)
def test_other_examples_print_what_they_say(page, capsys):
    code = SCRIPTS[page]
    exec(compile(code, str(page), "exec"), {})
    said = re.findall(r"^print\(.*\)  # (.*?)(?: where .*)?$", code, re.MULTILINE)
    assert len(said) == code.count("print(")
    assert capsys.readouterr().out.splitlines() == said


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link in links(read(page)):
        if link.startswith(("https://", "http://")):
            continue
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), link
        assert not anchor or anchor in anchors(read(file)), link


def test_the_table_of_contents_has_every_page():
    tables = ROOT / "README.md", DOCS / "README.md"
    listed = {(table.parent / link).resolve() for table in tables for link in links(read(table)) if "//" not in link}
    assert listed >= {page.resolve() for page in ALL} - {DOCS / "README.md"}


def test_every_instrument_has_a_page():
    headings = "\n".join(read(page).partition("\n")[0] for page in (DOCS / "instruments").glob("*.md"))
    for name in METHODS:
        assert f"`perf.{name}`" in headings, name
        assert re.search(rf"perf\.{name}\(", "\n".join(map(read, (DOCS / "instruments").glob("*.md")))), name


def test_every_instrument_page_says_what_it_should():
    for page in (DOCS / "instruments").glob("*.md"):
        sections = re.findall(r"^## (.*)$", read(page), re.MULTILINE)
        asked = ["What it returns", "What it gates", "What it costs", "What it cannot see", "A failure", "Options"]
        assert sections == asked, page.name
        assert failures(page), page.name


def test_every_option_fixture_and_budget_is_described(pytester: pytest.Pytester):
    page = read(DOCS / "options.md")
    shown = pytester.runpytest_inprocess("--help").stdout.str()
    options = set(re.findall(r"--perf[a-z-]*", shown))
    assert {"--perf", "--perf-save"} < options
    assert options == set(re.findall(r"^\| `(--perf[a-z-]*)", page, re.MULTILINE))
    inis = set(re.findall(r"^ +(perf_\w+) \(", shown, re.MULTILINE))
    assert "perf_targets" in inis
    assert inis <= set(re.findall(r"`(perf_\w+)`", page))
    fixture = type(pytest.fixture(lambda: None))
    fixtures = {name for name, value in vars(perfsuite.plugin).items() if isinstance(value, fixture)}
    assert {"perf", "compile_counter"} < fixtures
    assert fixtures <= set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    for field in perfsuite.Budget.__dataclass_fields__:
        assert f"`{field}=`" in page, field


def test_every_command_is_described():
    every = "\n".join(map(read, ALL))
    for command in COMMANDS:
        assert f"perfsuite {command}" in every, command
