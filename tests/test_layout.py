"""Imports go one way: lazy and type-only imports included.

`MAY_IMPORT` says which packages of perfsuite each package may import, beside itself. Add an arrow only downwards: from
what a user calls (`commands`, `hooks`) to what is measured (`measure`). Where two packages need the same thing, it
belongs in a package below both.
"""

import ast
import graphlib
import io
import itertools
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import perfsuite

ROOT = Path(perfsuite.__file__).parent

_PRIVATE = ("measure", "measure/private")
_COMPILES = (*_PRIVATE, "measure/compiles")
_FIRST_CALL = (*_COMPILES, "measure/program", "measure/first_call")
_TIMING = (*_COMPILES, *_FIRST_CALL, "measure/runtime", "measure/timing")
_PROGRAM = (*_PRIVATE, "measure/hlo", "measure/targets", "measure/program")
_MEASURE = (*_TIMING, *_PROGRAM, "measure/trace", "measure/cache", "measure/imports", "measure/instructions")
_GATE = (*_MEASURE, "gate")
_SESSION = (*_GATE, "options", "processes", "git", "session")
_REPORT = (*_SESSION, "sources", "against", "report")

MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "options": (),
    "measure": (),
    "measure/private": ("measure",),
    "measure/compiles": _PRIVATE,
    "measure/runtime": (*_COMPILES, "measure/program"),
    "measure/first_call": _FIRST_CALL,
    "measure/timing": _TIMING,
    "measure/trace": _TIMING,
    "measure/instructions": _FIRST_CALL,
    "measure/hlo": ("measure",),
    "measure/targets": (*_PRIVATE, "measure/hlo"),
    "measure/program": _PROGRAM,
    "measure/cache": _PROGRAM,
    "measure/imports": _PRIVATE,
    "gate": _MEASURE,
    "git": ("measure",),
    "sources": (*_GATE, "git"),
    "processes": (),
    "session": _SESSION,
    "against": (*_GATE, "options", "processes", "git"),
    "instruments": _SESSION,
    "report": _REPORT,
    "commands": _REPORT,
    "fixture": (*_SESSION, "instruments"),
    "hooks": (*_REPORT, "instruments", "fixture"),
    "plugin": ("options", "processes", "measure", "measure/compiles", "session", "fixture", "hooks"),
    "__init__": ("measure", "gate", "fixture"),
    "__main__": ("commands",),
    "workloads": (),
    "workloads/training": ("workloads",),
    "workloads/bert": ("workloads", "workloads/training"),
    "workloads/surgery": ("workloads", "workloads/training", "workloads/bert"),
    "workloads/gpt2": ("workloads",),
    "workloads/qwen2": ("workloads", "workloads/surgery"),
    "workloads/extraction": ("workloads", "workloads/surgery", "workloads/qwen2"),
}
"""By package, seen from perfsuite/. The modules at the root stand for themselves, and others that are named here."""

MODULES = {
    ".".join(("perfsuite", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}


def package_of(module: str) -> str:
    """What `MAY_IMPORT` calls the package of a module: "measure/timing", or "plugin" for perfsuite/plugin.py."""
    path = MODULES[module].relative_to(ROOT)
    name = path.with_suffix("").as_posix()
    return name if name in MAY_IMPORT or path.parent == Path() else path.parent.as_posix()


def imports_of(module: str) -> Iterator[tuple[str, int]]:
    """The modules of perfsuite that a module imports anywhere in it, each with its line."""
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{MODULES[module]}:{node.lineno}: perfsuite imports by full names"
            names = [f"{node.module}.{each.name}" for each in node.names]
        else:
            continue
        for name in names:
            while name.startswith("perfsuite"):
                if name in MODULES:
                    yield name, node.lineno
                    break
                name = name.rpartition(".")[0]


_IMPORTS = (ast.Import, ast.ImportFrom)

IMPORTS = {module: list(imports_of(module)) for module in MODULES}


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_packages_below_its_own(module):
    package = package_of(module)
    assert package in MAY_IMPORT, f"say in MAY_IMPORT what perfsuite/{package} may import"
    wrong = [
        f"{MODULES[module].relative_to(ROOT)}:{line} imports {imported}"
        for imported, line in IMPORTS[module]
        if imported != "perfsuite" and package_of(imported) not in (package, *MAY_IMPORT[package])
    ]
    assert not wrong, "\n".join(wrong)


def test_no_package_may_import_one_that_may_import_it():
    below = {package: set(others) - {package} for package, others in MAY_IMPORT.items()}
    try:
        graphlib.TopologicalSorter(below).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"a circle of packages: {' -> '.join(error.args[1])}")


def test_no_modules_import_each_other():
    graph = {
        module: {imported for imported, _ in imports if imported not in (module, "perfsuite")}
        for module, imports in IMPORTS.items()
    }
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"a circle of imports: {' -> '.join(error.args[1])}")


SHARED = {"add_arguments", "run", "main"}
"""What each command or script has, under one name."""


def test_no_two_public_functions_or_classes_have_one_name():
    owners: dict[str, list[str]] = {}
    for module, path in MODULES.items():
        if not module.startswith("perfsuite.workloads"):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith(("_", "pytest_")):
                    owners.setdefault(node.name, []).append(module)
    assert {name: each for name, each in owners.items() if each[1:] and name not in SHARED} == {}


@pytest.mark.parametrize("module", MODULES)
def test_a_module_says_what_it_is_for(module):
    said = ast.get_docstring(ast.parse(MODULES[module].read_text()))
    assert said
    assert "TODO" not in said


def unexplained_imports(module: str) -> Iterator[int]:
    """The lines of imports inside a function or for type checkers alone, without a comment there or in the line above.

    Of several imports in a row the first one has the comment.
    """
    source = MODULES[module].read_text()
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    commented = {token.start[0] for token in tokens if token.type == tokenize.COMMENT}
    for node in ast.walk(ast.parse(source)):
        blocks = [] if isinstance(node, ast.Module) else [getattr(node, name, []) for name in ("body", "orelse")]
        for block in (block for block in blocks if isinstance(block, list)):
            for before, statement in itertools.pairwise([None, *block]):
                first = isinstance(statement, _IMPORTS) and not isinstance(before, _IMPORTS)
                if first and not {statement.lineno, statement.lineno - 1} & commented:
                    yield statement.lineno


@pytest.mark.parametrize("module", MODULES)
def test_an_import_that_is_not_at_the_top_says_why(module):
    """An optional package, or the time that it takes where most sessions do not need it."""
    assert not [f"{MODULES[module].relative_to(ROOT)}:{line}" for line in unexplained_imports(module)]


def test_imports_without_a_reason_are_seen(tmp_path, monkeypatch):
    module = tmp_path / "block.py"
    module.write_text(
        "if TYPE_CHECKING:  # imports jax\n    import perfsuite.fixture\n\n\n"
        "if TYPE_CHECKING:\n    import perfsuite.fixture\n\n\n"
        "def time():\n    # 70 ms\n    import jax\n    import numpy\n\n    return jax, numpy\n\n\n"
        "def lazy():\n    import jax  # 70 ms\n\n    import numpy\n    try:\n        import scipy\n    finally:\n        pass\n"
    )
    monkeypatch.setitem(MODULES, "perfsuite.measure.timing.block", module)
    assert sorted(unexplained_imports("perfsuite.measure.timing.block")) == [6, 22]


def test_an_arrow_back_up_is_seen(tmp_path, monkeypatch):
    lazy = tmp_path / "block.py"
    lazy.write_text("def time():\n    from perfsuite.report import model\n")
    monkeypatch.setitem(MODULES, "perfsuite.measure.timing.block", lazy)
    assert list(imports_of("perfsuite.measure.timing.block")) == [("perfsuite.report.model", 2)]
    assert package_of("perfsuite.report.model") not in MAY_IMPORT["measure/timing"]


RUNS_DATA = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}


@pytest.mark.parametrize("module", MODULES)
def test_nothing_that_is_read_can_run(module):
    """`docs/security.md` promises it."""
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        names = [each.name for each in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert RUNS_DATA.isdisjoint(name.partition(".")[0] for name in names)
        if isinstance(node, ast.Call):
            called = node.func.id if isinstance(node.func, ast.Name) else ""
            assert called not in ("eval", "exec")
            assert not any(each.arg in ("shell", "allow_pickle") for each in node.keywords)
