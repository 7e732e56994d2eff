"""A user's module as text, and the fingerprint of the call that it makes."""

import importlib.util
import sys
from pathlib import Path

from perfsuite.measure.fingerprint.fingerprint import Fingerprint, fingerprint

NAME = "fingerprinted_model"

SOURCE = '''
import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np

from perfsuite import call

SCALE = 3
LIMITS = {"rounds": 2, "names": ("a", "b")}
TABLE = np.arange(4.0)


class Options:
    depth = 2

    def __init__(self):
        self.width = 5

    def rounds(self):
        return self.depth + self.width


OPTIONS = Options()


def helper(x):
    return x


def other_helper(x):
    return x


def shifted(x, by=7, *, at=11):
    return x, by, at


def made_with(rate):
    def scaled(x):
        return x, rate

    return scaled


scaled = made_with(0.5)
added = functools.partial(operator.add, 13)
first = operator.itemgetter(0)


def logged(function):
    @functools.wraps(function)
    def inner(*args):
        return function(*args)

    return inner


@logged
def decorated(x):
    return x, 17


@functools.cache
def configured():
    return 19


@functools.partial(jax.jit, donate_argnums=(), static_argnums=2)
def step(x, y, n):
    return (x * 2 + y) * n


def run(x, y):
    """Add."""
    for _ in range(LIMITS["rounds"]):
        helper(x)
    shifted(x)
    scaled(x)
    added(SCALE)
    first(LIMITS["names"])
    decorated(TABLE)
    configured()
    OPTIONS.rounds()
    label = "a text"
    return step(x, y, 1), len(label)


def made():
    return call(run, jnp.ones(4), np.ones(4, np.float32))
'''


def module_of(source: str, folder: Path):
    """The module that is written into the folder, imported anew."""
    file = folder / f"{NAME}.py"
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(source)
    spec = importlib.util.spec_from_file_location(NAME, file)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    # Not from a cached file: two sources of one size may be written within the same second.
    exec(compile(source, str(file), "exec"), module.__dict__)
    return module


def fingerprint_of(source: str, folder: Path) -> Fingerprint:
    """The fingerprint of the call that `made()` of the source makes."""
    return fingerprint(module_of(source, folder).made())


if __name__ == "__main__":
    print(dict(fingerprint_of(SOURCE, Path(sys.argv[1]))))
