"""`perfsuite/measure/private` is the only place that names something private of another library, and declares it there.

A private name outside of it would end a session, or an instrument that does not need it, on the day it moves.
"""

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import perfsuite
from perfsuite.measure.private import names
from perfsuite.measure.private.capabilities import CAPABILITIES

ROOT = Path(perfsuite.__file__).parent
ROOM = ROOT / "measure" / "private"
MODULES = sorted(ROOT.rglob("*.py"))

DECLARATIONS = {each.__name__ for each in (names.Name, names.Frame, names.Attribute, names.Functions, names.Text)}

_LIBRARIES = "jax|jaxlib|equinox|flax|optax|pytest|pluggy|xdist|pytest_benchmark"
_PRIVATE = re.compile(
    rf"\b(?:(?:{_LIBRARIES})(?:\.\w+)*\._|jax\.(?:extend|interpreters)\b|jaxlib\.\b|flax\.nnx\.\b|_pytest\b|xdist\.\b"
    r"|pytest_benchmark\b)[\w.]*"
)
"""A module that a library may move as it likes."""

_PUBLIC = {"_replace", "_asdict", "_make", "_fields", "sys._getframe", "sys._current_frames", "os._exit"}
"""Documented, for all that their names begin with an underscore."""


def private_imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The imports from private modules. Of jaxlib the version is public."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            found = [f"{node.module}.{each.name}" for each in node.names]
        else:
            continue
        yield from ((node.lineno, f"imports {name}") for name in found if _PRIVATE.search(name))


def private_texts(tree: ast.AST, *, in_room: bool) -> Iterator[tuple[int, str]]:
    """The texts that name a private module, but for docstrings and, in the room, declarations."""
    allowed = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree) if in_room else ():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in DECLARATIONS:
            allowed |= {id(inner) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) and id(node) not in allowed else None
        if isinstance(text, str) and (found := _PRIVATE.search(text)):
            yield node.lineno, f"says {found.group()}"


def private_attributes(tree: ast.AST, own: frozenset[str]) -> Iterator[tuple[int, str]]:
    """The private attributes that are not `own`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            of, name = ast.unparse(node.value), node.attr
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("getattr", "setattr", "hasattr", "delattr")
            and isinstance(node.args[1], ast.Constant)
            and isinstance(node.args[1].value, str)
        ):
            of, name = ast.unparse(node.args[0]), node.args[1].value
        else:
            continue
        private = name.startswith("_") and not name.startswith("__")
        if private and not {name, f"{of}.{name}"} & (own | _PUBLIC):
            yield node.lineno, f"takes {of}.{name}"


def locals_of_frames(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Where the local variables of a frame are read: in the room only by a declared `Frame`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "f_locals":
            yield node.lineno, f"reads {ast.unparse(node)}"


def own_attributes(tree: ast.AST) -> Iterator[str]:
    """The attributes that the classes of a module have: methods, fields, and what methods give `self`."""
    for made in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for node in ast.walk(made):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.name
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                yield from [node.attr] if ast.unparse(node.value) in ("self", "cls") else []


TREES = {path: ast.parse(path.read_text()) for path in MODULES}
OWN = {path: frozenset(own_attributes(tree)) for path, tree in TREES.items()}
OTHERS = frozenset(str(each).rpartition(".")[2] for capability in CAPABILITIES for each in capability.names())
"""The last parts of the declared names. A class may have an attribute that is called so, for its own module."""


def violations(tree: ast.AST, own: frozenset[str], *, in_room: bool) -> list[tuple[int, str]]:
    """Each line that names something private of another library where it must not, and what it does."""
    found = [*private_imports(tree), *private_texts(tree, in_room=in_room), *private_attributes(tree, own)]
    return sorted(found + (list(locals_of_frames(tree)) if in_room else []))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_private_name_is_declared_in_the_room_and_nowhere_else(path):
    in_room = ROOM in path.parents and path.name != "names.py"  # which reads what the others declare
    found = violations(TREES[path], frozenset().union(*OWN.values()) - OTHERS | OWN[path], in_room=in_room)
    assert not [f"{path.relative_to(ROOT)}:{line} {what}" for line, what in found]


PLANTED = {
    "import jax._src.api": "imports jax._src.api",
    "from jax._src import api": "imports jax._src.api",
    "from jax.extend import core": "imports jax.extend.core",
    "from jax.interpreters import mlir": "imports jax.interpreters.mlir",
    "from jaxlib import _jax": "imports jaxlib._jax",
    "def late():\n    from _pytest.python import Function": "imports _pytest.python.Function",
    "import xdist.remote": "imports xdist.remote",
    "from pytest_benchmark.fixture import BenchmarkFixture": "imports pytest_benchmark.fixture.BenchmarkFixture",
    "from equinox._module import Module": "imports equinox._module.Module",
    "module = 'jax._src.pjit:_cpp_pjit'": "says jax._src.pjit",
    "if name.startswith(('equinox._jit', 'mine')): pass": "says equinox._jit",
    "text = f'flax.nnx.transforms.{name}'": "says flax.nnx.transforms.",
    "step._jit_info": "takes step._jit_info",
    "call(x).of._value": "takes call(x).of._value",
    "getattr(step, '_fun', None)": "takes step._fun",
    "item._request.getfixturevalue('benchmark')": "takes item._request",
    "class Own(pytest.Item):\n    def runtest(self): self._request": "takes self._request",
}


@pytest.mark.parametrize("in_room", [False, True], ids=["outside", "in the room"])
@pytest.mark.parametrize(("code", "what"), PLANTED.items(), ids=PLANTED)
def test_what_is_planted_is_seen(code, what, in_room):
    ((_, said),) = violations(ast.parse(code), frozenset(), in_room=in_room)
    assert said == what


def test_in_the_room_a_name_is_declared_and_a_frame_is_read_by_its_declaration():
    declared, read = ast.parse("A = Name('jax._src.api', 'jit')"), ast.parse("frame.f_locals['fun']")
    assert violations(declared, frozenset(), in_room=True) == []
    assert violations(declared, frozenset(), in_room=False) == [(1, "says jax._src.api")]
    assert violations(read, frozenset(), in_room=True) == [(1, "reads frame.f_locals")]
    assert violations(read, frozenset(), in_room=False) == []  # a user's frame has no names that move


def test_what_is_public_or_ones_own_is_no_violation():
    code = """
    '''jax._src.api is private.'''
    import jax, jaxlib
    from flax import nnx
    sys._getframe(1), os._exit(0), pair._replace(x=1), pair._fields, jaxlib.__version__, "jaxlib.", "flax.nnx."
    self._mine, other._mine, getattr(other, "_mine"), setattr(other, name, 1)
    """
    assert violations(ast.parse(textwrap.dedent(code)), frozenset({"_mine"}), in_room=True) == []
    made = "class A:\n    _field: int = 0\n    def _method(self): self._value = 1\n    _x, _y = 1, 2"
    assert set(own_attributes(ast.parse(made))) == {"_field", "_method", "_value", "_x", "_y"}
