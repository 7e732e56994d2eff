"""`%load_ext perfsuite` in a shell of IPython: the page about it, word for word, and what is refused."""

import re
import sys
from types import ModuleType

import pytest
from support.markdown_blocks import DOCS, blocks, difference

from perfsuite.measure.private.capabilities import Capability

pytest.importorskip("IPython")
PAGE = (DOCS / "notebooks.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPYTHONDIR", str(tmp_path_factory.mktemp("ipython")))
        patch.delenv("VIRTUAL_ENV", raising=False)  # of a shell where another environment is active: it warns of that
        patch.setattr(sys, "path", [*sys.path])
        patch.setitem(sys.modules, "a_notebook", None)  # which the shell puts there, in place of `__main__`
        shell = InteractiveShell(config=config, user_module=ModuleType("a_notebook"))
        for block in blocks(PAGE)[:2]:
            assert shell.run_cell(block.text).success
        yield shell
        shell.magics_manager.magics["line"]["perf"].__self__.observing.close()


@pytest.fixture
def run(shell, capsys):
    def run_cell(cell):
        shell.run_cell(cell)
        return re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)

    return run_cell


def test_the_page_about_notebooks_works_word_for_word(run):
    cells = blocks(PAGE)[2:]
    for cell, output in zip(cells[::2], cells[1::2], strict=True):
        assert (cell.language, output.language) == ("ipython", "text")
        printed = run(cell.text)
        assert difference(output.text, printed) is None, printed


def test_a_budget_fails_its_cell_and_one_that_holds_does_not(run):
    cell = "%%perf --seconds=0.1\nperf.dispatches(call(looped, x), budget=Budget(dispatches=LIMIT)).total"
    failed = run(cell.replace("LIMIT", "2"))
    assert re.search(r"looped programs run +20 programs +limit 2 +fail", failed)
    assert "BudgetExceeded: looped programs run is 20 programs" in failed
    assert "notebook.py" not in failed
    held = run(cell.replace("LIMIT", "20"))
    assert re.search(r"looped programs run +20 programs +limit 20 +pass", held)
    assert "Error" not in held


def test_what_does_not_work_with_the_installed_jax_is_said_in_place_of_metrics(run, monkeypatch):
    monkeypatch.setattr(Capability, "lost", lambda self: "moved" if self.name == "transfers" else "")
    printed = run("%perf transfers looped(x)")
    assert printed.startswith("perf.transfers does not work with jax ")
    assert "Error" not in printed


def test_names_of_a_cell_are_the_users_again_after_it(run, shell):
    shell.user_ns["call"] = "the user's"
    run("%%perf\nkept = perf")
    assert shell.user_ns.pop("call") == "the user's"
    assert not {"perf", "Budget"} & shell.user_ns.keys()
    assert type(shell.user_ns["kept"]).__name__ == "Perf"


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("%perf", "UsageError: %perf needs the name of an instrument"),
        ("%perf tame step(x)", "UsageError: %perf has no instrument 'tame'"),
        ("%perf compare step(x)", "UsageError: %perf compare takes two calls with `vs` between them"),
        ("%perf time step(x) vs step(x)", "UsageError: %perf time takes one call"),
        ("%perf time x + 1", "UsageError: 'x + 1' is no call of a function"),
        ("%perf time step(x", "UsageError: 'step(x': "),
        ("%perf --seconds=0 time step(x)", "UsageError: --seconds=0: it must be a number above zero"),
        ("%%perf time\n1", "UsageError: %%perf takes nothing but --seconds=S, got 'time'"),
        ("%%perf\nperf.cache_key(call(step, x))", "MeasurementError: perf.cache_key measures several processes"),
    ],
)
def test_what_cannot_be_measured_says_what_to_do(run, shell, capsys, cell, said):
    shell.run_cell(cell)
    captured = capsys.readouterr()
    assert said in captured.out + captured.err


def test_a_second_load_changes_nothing(run, shell):
    before = shell.magics_manager.magics["line"]["perf"]
    run("%load_ext perfsuite\n%reload_ext perfsuite")
    assert shell.magics_manager.magics["line"]["perf"] is before
