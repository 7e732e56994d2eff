"""The calls that `sessions.py` compares: different kinds of work, each made anew by its function.

A function here builds everything that its call uses: closures, dictionaries, compiled programs, arrays. So two calls of
one function are two builds of the same code.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from perfsuite.measure.call import Call, call

Maker = Callable[[], Call]


def product(times: int = 750, size: int = 32) -> Call:
    """Arithmetic alone, about 1 ms on one core: a chain of products of small matrices."""

    @jax.jit
    def step(x):
        return jax.lax.fori_loop(0, times, lambda _, x: jnp.tanh(x @ x), x)

    return call(step, jnp.full((size, size), 0.01))


def memory(megabytes: int = 16) -> Call:
    """Memory alone: the sum of two arrays that no cache holds."""
    add = jax.jit(lambda x, y: x + y)
    return call(add, *(jnp.full((megabytes << 18,), value) for value in (1.0, 2.0)))


def many_arguments(count: int = 1000) -> Call:
    """Dispatch alone: a jitted function of a thousand small arrays."""
    halve = jax.jit(lambda arrays: {name: array / 2 for name, array in arrays.items()})
    return call(halve, {f"array {place}": jnp.full((4,), float(place)) for place in range(count)})


def filter_step() -> Call:
    """Python above all: the train step of a small network under `filter_jit`."""
    network = eqx.nn.MLP(16, 16, 32, 3, key=jax.random.key(0))

    @eqx.filter_jit
    def step(network, x):
        loss, gradients = eqx.filter_value_and_grad(lambda network: jnp.mean(jax.vmap(network)(x) ** 2))(network)
        return eqx.apply_updates(network, jax.tree.map(lambda gradient: -1e-6 * gradient, gradients)), loss

    return call(step, network, jnp.ones((8, 16)), carry=1)


def cache_scan(steps: int = 64, length: int = 512) -> Call:
    """A loop that writes one row of a cache at a time and reads all of it, as a decoder does."""

    @jax.jit
    def decode(cache, query):
        def step(cache, place):
            cache = jax.lax.dynamic_update_slice(cache, query[None], (place, 0))
            return cache, jax.nn.softmax(cache @ query) @ cache

        return jax.lax.scan(step, cache, jnp.arange(steps))

    return call(decode, jnp.zeros((length, 64)), jnp.full((64,), 0.1))


def python(times: int = 1) -> Call:
    """The interpreter alone: a dictionary of texts, built and sorted, about half a millisecond each time."""
    words = [f"word {place * 7919 % 1000}" for place in range(3000)]

    def count():
        counts: dict[str, int] = {}
        for word in words * times:
            counts[word] = counts.get(word, 0) + len(word)
        return len(sorted(counts.items()))

    return call(count)


def sort(size: int = 10_000) -> Call:
    """Branches and moves: a sort."""
    return call(jax.jit(jnp.sort), jnp.asarray(np.random.default_rng(0).random(size, np.float32)))


def eager(operations: int = 10) -> Call:
    """Operations one by one, each dispatched from Python."""

    def chain(x):
        for _ in range(operations):
            x = jnp.tanh(x) + 1
        return x

    return call(chain, jnp.ones((64, 64)))


def to_host() -> Call:
    """A program whose output Python waits for and copies."""
    double = jax.jit(lambda x: 2 * x)
    return call(lambda x: np.asarray(double(x)).copy(), jnp.ones((512, 512)))


def large_product(times: int) -> Call:
    """Arithmetic on all cores: a chain of `times` products of matrices of 256 x 256."""
    return product(times, 256)


def two_programs(*, both: bool, first: int = 5, second: int = 2) -> Call:
    """A call that dispatches two programs, of `first` and `second` large products, and returns one output or both."""
    main, side = large_product(first), large_product(second)

    def run(x, y):
        output, other = main.fn(x), side.fn(y)
        return (output, other) if both else output

    run.__name__ = "both" if both else "unreturned"
    return call(run, *main.args, *side.args)


def unreturned() -> Call:
    """A call that leaves a program running whose output it does not return."""
    return two_programs(both=False)


BUILDS: dict[str, Maker] = {made.__name__: made for made in (product, memory, many_arguments, filter_step, cache_scan)}
"""The calls of which two builds are compared."""

UNLIKE: dict[str, tuple[Maker, Maker]] = {
    f"{candidate.__name__}/{reference.__name__}": (candidate, reference)
    for candidate, reference in (
        (memory, product),
        (python, product),
        (sort, product),
        (unreturned, product),
        (filter_step, product),
        (eager, product),
        (many_arguments, filter_step),
        (to_host, python),
        (sort, memory),
        (cache_scan, memory),
    )
}
"""Comparisons of unlike calls, by name: the candidate and the reference."""

LEFTOVERS: dict[str, tuple[Maker, Maker]] = {
    "unreturned": (unreturned, lambda: large_product(5)),
    "returned by both": (lambda: two_programs(both=True), lambda: two_programs(both=True)),
}
"""A call that dispatches a program of five products on all cores, and another of two; the control returns both outputs."""

PYTHON: dict[str, tuple[Maker, Maker]] = {"ten times": (lambda: python(10), python), "once": (python, python)}
"""The same work ten times, and once."""
