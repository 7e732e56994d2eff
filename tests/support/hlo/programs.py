"""The programs whose compiled text is kept in this folder: `make.py` compiles them, test_hlo.py looks up their lines."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.xla_metadata import set_xla_metadata
from jax.sharding import PartitionSpec as P


def dropout(key, x):
    kept = jax.random.bernoulli(key, 0.9, x.shape)
    return jnp.where(kept, x / 0.9, 0)


def block(weights, x, key):
    hidden = jax.nn.gelu(jnp.einsum("bd,df->bf", x, weights["up"]))
    hidden = dropout(key, hidden)
    return x + jnp.einsum("bf,fd->bd", hidden, weights["down"])


def loss(params, batch, key):
    x = params["embedding"][batch]
    for index in range(2):
        x = block(params["blocks"][index], x, jax.random.fold_in(key, index))
    logits = (x @ params["embedding"].T).astype(jnp.float32)
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1))


def train_step(params, momentum, batch, key):
    value, gradients = jax.value_and_grad(loss)(params, batch, key)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients)
    params = jax.tree.map(lambda p, m: (p - 0.01 * m).astype(p.dtype), params, momentum)
    return params, momentum, value


def train_arguments():
    block = {
        "up": jax.ShapeDtypeStruct((128, 512), jnp.bfloat16),
        "down": jax.ShapeDtypeStruct((512, 128), jnp.bfloat16),
    }
    params = {"embedding": jax.ShapeDtypeStruct((256, 128), jnp.bfloat16), "blocks": [block, block]}
    key = jax.eval_shape(lambda: jax.random.key(0))
    return params, params, jax.ShapeDtypeStruct((64,), jnp.int32), key


def scanned(carry, x):
    carry = jnp.tanh(carry @ x)
    return carry, carry.sum()


def negated(x):
    return -x


def squared(x):
    return x * x


def control(x, table, image, kernel, index):
    carry, sums = jax.lax.scan(scanned, x, jnp.stack([x, x.T, x + 1]))
    chosen = jax.lax.cond(sums[0] > 0, negated, squared, carry)
    switched = jax.lax.switch(index[0], [negated, squared, jnp.sin], chosen)
    looped = jax.lax.while_loop(lambda state: state[1] < 5, lambda state: (state[0] * 2, state[1] + 1), (switched, 0))
    rows = table[index]
    written = table.at[index].add(rows * 2)
    filtered = jax.lax.conv_general_dilated(image, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    pooled = jax.lax.reduce_window(filtered, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 1, 1, 1), "VALID")
    ordered = jax.lax.sort((table[:, 0], table[:, 1]), num_keys=2)
    _, bits = jax.lax.rng_bit_generator(jnp.arange(4, dtype=jnp.uint32), (16, 16))
    known = jnp.asarray([[1.5, 2.5], [3.5, -4.5]]) @ table[:2]
    precise = jnp.matmul(x, x, precision=jax.lax.Precision.HIGHEST)
    return looped, written, pooled, ordered, bits, known, precise


def control_arguments():
    shapes = [
        ((32, 32), "float32"),
        ((64, 8), "float32"),
        ((2, 16, 16, 4), "float32"),
        ((3, 3, 4, 8), "float32"),
        ((6,), "int32"),
    ]
    return [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]


def exchange(x, weight):
    total = jax.lax.psum(x @ weight, "data")
    whole = jax.lax.all_gather(weight, "model", axis=1, tiled=True)
    part = jax.lax.psum_scatter(x @ whole, "data", scatter_dimension=0, tiled=True)
    passed = jax.lax.ppermute(part, "model", [(0, 1), (1, 0)])
    swapped = jax.lax.all_to_all(total, "model", split_axis=0, concat_axis=1, tiled=True)
    return passed * jnp.sin(part), swapped


def sharded(mesh):
    specs = {
        "in_specs": (P("data", None), P(None, "model")),
        "out_specs": (P(("data", "model"), None), P("data", "model")),
    }
    return jax.shard_map(exchange, mesh=mesh, check_vma=False, **specs)


def sharded_arguments(mesh):
    def argument(shape, spec):
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=jax.sharding.NamedSharding(mesh, spec))

    return argument((256, 128), P("data", None)), argument((128, 256), P(None, "model"))


def doubled(x):
    return np.asarray(x) * 2


def called_back(x):
    result = jax.pure_callback(doubled, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
    jax.debug.print("{}", result.sum())
    return jnp.sin(result)


def called_back_arguments():
    return (jax.ShapeDtypeStruct((128, 128), jnp.float32),)


def labelled(x):
    scope = 'a "quoted" {brace}, calls=%nothing, \\ x=1 é'
    with jax.named_scope(scope), set_xla_metadata(note='{"k": ["v", "}"]}', odd='say "hi", {', plain="yes"):
        return jnp.exp(x) + 1


def attributes(x):
    factor = jax.scipy.linalg.cholesky(x @ x.T + jnp.eye(x.shape[0]), lower=True)
    return labelled(factor), jnp.fft.rfft(x), {"nested": ((x.sum(), x.max()), [x.astype(jnp.int4)])}


def attributes_arguments():
    return (jax.ShapeDtypeStruct((16, 16), jnp.float32),)
