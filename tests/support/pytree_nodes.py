"""Nodes of every kind for tests of paths and of replacing."""

from typing import Any

import equinox as eqx
import jax


class Pair(eqx.Module):
    """Two children and a static field."""

    left: Any
    right: Any = None
    note: Any = eqx.field(static=True, default=None)


class Keyless:
    """A node registered without keys: JAX counts its children."""

    def __init__(self, *children):
        self.children = children


jax.tree_util.register_pytree_node(Keyless, lambda node: (node.children, None), lambda _, children: Keyless(*children))
