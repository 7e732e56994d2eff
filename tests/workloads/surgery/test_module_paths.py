import dataclasses

import equinox as eqx
import jax
import pytest
from support.pytree_nodes import Pair

from perfsuite.workloads.surgery.module_paths import iter_module, sub_modules


class Leafless(eqx.Module):
    pass


class Keyed:
    """Has children under keys of a kind of its own."""

    def __init__(self, first, second):
        self.first, self.second = first, second


@dataclasses.dataclass(frozen=True)
class Side:
    name: str

    def __str__(self):
        return f"<{self.name}>"


jax.tree_util.register_pytree_with_keys(
    Keyed,
    lambda node: (((Side("first"), node.first), (Side("second"), node.second)), None),
    lambda _, children: Keyed(*children),
)


def names(tree):
    return [name for name, _ in iter_module(tree)]


def test_shared_sub_module_comes_once_under_its_first_name_but_has_all_its_places():
    shared = Pair(Leafless())
    tree = Pair([shared, shared], {"again": shared})
    assert names(tree) == ["", "left.0", "left.0.left"]
    assert [place.name for place in sub_modules(tree)] == [
        "",
        "left.0",
        "left.0.left",
        "left.1",
        "left.1.left",
        "right.again",
        "right.again.left",
    ]


def test_iter_module_goes_on_only_as_far_as_it_is_asked():
    class Forbidden:
        pass

    def flatten(node):
        raise RuntimeError("taken apart")

    jax.tree_util.register_pytree_node(Forbidden, flatten, lambda *_: Forbidden())
    found = iter_module([Leafless(), Forbidden()])
    assert next(found)[0] == "0"
    with pytest.raises(RuntimeError, match="taken apart"):
        next(found)
