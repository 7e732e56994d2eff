"""GPT-2 models whose generation the suite measures, and a cache that grows with every token."""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from support.gpt2_numpy import randomised

from perfsuite import call
from perfsuite.measure.call import Call
from perfsuite.measure.compiles import compiles
from perfsuite.workloads import gpt2
from perfsuite.workloads.gpt2 import GPT2Config, Params
from perfsuite.workloads.gpt2.generation import first_token, generate, generate_uncached, next_token
from perfsuite.workloads.gpt2.int8 import size_bytes

COUNTS = {"small": (4, 8, 12, 15), "full": (15, 64, 256, 512)}
"""Numbers of new tokens. The uncached baseline compiles six pieces for each length, so the small size ends early."""

STRIDE = {"small": 1, "full": 16}
"""Of the lengths at which an uncached token is timed."""

PROMPT = (0, 1, 2, 3)
"""As long as the lab note's, whose first shape is [1, 4]."""


def config_of(size: str, **changes: Any) -> GPT2Config:
    """GPT-2 124M; the small size keeps its layers and narrows its arrays."""
    narrow = {} if size == "full" else {"hidden_size": 64, "num_heads": 4, "vocab_size": 1024}
    return GPT2Config.small(**narrow, **changes)


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
    """Parameters with their configuration, and the prompt that all generations here go on from."""

    config: GPT2Config
    params: Params

    @property
    def prompt(self) -> np.ndarray:
        """Integer `[1, 4]`."""
        return np.asarray([PROMPT], np.int32)

    def call(self, how: Callable, count: int, **options: Any) -> Call:
        """The call that generates `count` tokens."""
        return call(how, self.params, self.config, self.prompt, np.asarray([len(PROMPT)]), count, **options)


@functools.cache
def model_of(size: str, **changes: Any) -> Model:
    """The same model for the same arguments, so that what one test compiled is there for the next."""
    config = config_of(size, **changes)
    return Model(config, randomised(config, std=1.6 / math.sqrt(config.hidden_size)))


def abstract_params(config: GPT2Config) -> Params:
    """Shapes in place of parameters, for programs that are compiled and not run."""
    return jax.eval_shape(lambda: gpt2.init_params(config, jax.random.key(0)))


def bytes_read(model: Model, slots: int) -> int:
    """What a decode step of one row has to read: every weight, one position, and the cache, whose slots it all reads."""
    cache = jax.eval_shape(lambda: gpt2.initialize_cache(model.config, 1, slots))
    positions = size_bytes(model.params["wpe"])
    return size_bytes((model.params, cache)) - positions + positions // model.config.max_positions


def seconds(run: Callable) -> float:
    """Seconds until what `run()` gives is ready."""
    began = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - began


def rounds(model: Model, counts: Sequence[int], number: int, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of generating `counts` tokens, uncached and cached, each `[number, len(counts)]`.

    What an uncached token takes depends on the length of what is read again, and on nothing else. So in every round one
    token is timed at every `stride`-th length, and the seconds of a generation are the sum over all of its lengths, of
    straight lines in between: with a stride of 1, of the lengths themselves. Cached generations are timed whole, each
    between uncached tokens.
    """
    first = len(PROMPT)
    lengths = np.unique([*range(first, first + counts[-1], stride), *(first + count - 1 for count in counts)])
    text = np.resize(model.prompt, (1, first + counts[-1]))

    def token(length: int) -> Callable:
        ids = text[:, :length]
        return lambda: generate_uncached(model.params, model.config, ids, np.asarray([length]), 1)

    tokens = {int(length): token(length) for length in lengths}
    generations = {first + count - 1: model.call(generate, count).run for count in counts}
    for run in (*tokens.values(), *generations.values()):
        seconds(run)  # compiles, and is done before a clock is read
    uncached, cached = np.zeros((2, number, len(counts)))
    with compiles.forbid():
        for row in range(number):
            took = {}
            for length, run in tokens.items():
                took[length] = seconds(run)
                if length in generations:
                    cached[row, list(generations).index(length)] = seconds(generations[length])
            each = np.interp(np.arange(first, first + counts[-1]), list(took), list(took.values()))
            uncached[row] = np.cumsum(each)[np.asarray(counts) - 1]
    return uncached, cached


def last_token(model: Model, count: int) -> tuple[Call, Call]:
    """Two calls that make the last of `count` tokens: with a cache of those before it, and by reading them all again."""
    seen = np.asarray([len(PROMPT) + count - 1], np.int32)
    ids = np.resize(model.prompt, (1, *seen))
    scalars = None, np.int32(count - 1), np.float32(0), np.int32(-1)
    static = {"config": model.config, "top_k": None}
    _, cache = first_token(model.params, ids, seen - 1, None, np.float32(0), slots=ids.size, **static)

    def cached(cache: Any) -> tuple[Any, jax.Array]:
        token, cache = next_token(model.params, ids[:, -1], cache, *scalars, **static)
        return dataclasses.replace(cache, lengths=seen - 1), token  # the next run makes the same token

    uncached = call(generate_uncached, model.params, model.config, ids, seen, 1)
    return call(cached, dataclasses.replace(cache, lengths=seen - 1), carry=1), uncached


def r_squared(values: np.ndarray, fitted: np.ndarray) -> float:
    """The part of the variance of `values` that `fitted` explains."""
    return float(1 - np.sum((values - fitted) ** 2) / np.sum((values - values.mean()) ** 2))


@functools.partial(jax.jit, static_argnames="config")
def growing_step(past: Any, ids: jax.Array, params: Params, *, config: GPT2Config) -> tuple[Any, jax.Array]:
    """Read `ids` after the tokens in `past`, and return `past` with their keys and values appended, as the lab note does.

    `past` is None, or a pair `[1, tokens, heads, size]` a layer; after it `ids` is a single token. Every length is
    another shape.
    """
    seen = past[0][0].shape[1] if past else 0
    grown = []

    def attend(query: jax.Array, *new: jax.Array) -> jax.Array:
        if not past:
            grown.append(new)
            return gpt2.causal_attention(query, *new)
        keys, values = (jnp.concatenate(both, axis=1) for both in zip(past[len(grown)], new, strict=True))
        grown.append((keys, values))
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, keys) / math.sqrt(config.head_size)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), values)

    x = gpt2.embed(params, config, ids, seen + jnp.arange(ids.shape[1]))
    for layer in params["h"]:
        x = gpt2.apply_layer(layer, config, x, attend)
    return grown, jnp.argmax(gpt2.head(params, config, x[:, -1:]), axis=-1).astype(jnp.int32)


def growing_call(model: Model, seen: int, carry: int = 0) -> Call:
    """The call of `growing_step` that reads one more token after `seen`; after none, the prompt."""
    shape = 1, seen, model.config.num_heads, model.config.head_size
    past = [(jnp.zeros(shape), jnp.zeros(shape)) for _ in model.params["h"]] if seen else None
    ids = jnp.zeros((1, 1), jnp.int32) if seen else jnp.asarray(model.prompt)
    return call(growing_step, past, ids, model.params, config=model.config, carry=carry)


def generate_growing(model: Model, count: int, step: Callable = growing_step) -> np.ndarray:
    """Greedy tokens `[1, count]`."""
    past, ids, tokens = None, jnp.asarray(model.prompt), []
    for _ in range(count):
        past, ids = step(past, ids, model.params, config=model.config)
        tokens.append(ids)
    return np.concatenate(tokens, axis=1)
