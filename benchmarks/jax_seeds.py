"""The peer of `outlast bench seeds` in JAX: the same hybrid and step as one `jit(vmap(...))`.

    python benchmarks/jax_seeds.py --seeds 1 8 32

4 blocks of (lstm > attention > mlp), or with `--layout parallel` of (lstm | attention > mlp), AdamW
with clipping, each seed on a batch of its own, over and over: making data costs it nothing.
Products are in JAX's own default precision (tf32 on recent NVIDIA GPUs). Prints milliseconds a step
and steps of a seed a second: the median of 20 turns of three steps, after what it took to compile.
Without JAX it is an error that says so.

The blocks are one scan, so that XLA compiles one of them and not each; `--unroll 4` writes all of
them out, which takes several times as long to compile and may run a little faster.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from functools import partial
from pathlib import Path

from outlast.runs.folder import write_json

try:
    import jax
    import jax.numpy as jnp
    import numpy as np
except ImportError as error:
    sys.exit(
        f"error: JAX cannot be imported ({error}), so there is nothing to compare with; "
        f"pip install 'jax[cuda12]', or jax for the CPU"
    )

STEPS, TURNS = 3, 20
LAYOUTS = ("serial", "parallel")
RATE, DECAY, CLIP, BETA1, BETA2, EPSILON = 2e-3, 0.01, 1.0, 0.9, 0.999, 1e-8


def initial(chance, seeds, blocks, width, vocabulary, outputs):
    """Weights of all seeds, by NumPy: a seed a row, and those of the blocks then a block a row."""

    def uniform(*shape):
        return chance.uniform(-(width**-0.5), width**-0.5, (seeds, *shape)).astype(np.float32)

    def constant(value, *shape):
        return np.full((seeds, *shape), value, np.float32)

    def norm(*above):
        return {"scale": constant(1, *above, width), "shift": constant(0, *above, width)}

    def dense(*shape):
        return {"weight": uniform(*shape), "bias": constant(0, *shape[:-2], shape[-1])}

    return {
        "embedding": chance.standard_normal((seeds, vocabulary, width), np.float32),
        "blocks": {
            "norms": [norm(blocks) for _ in range(3)],
            "lstm": {
                "input": uniform(blocks, width, 4 * width),
                "recurrent": uniform(blocks, width, 4 * width),
                "bias_in": uniform(blocks, 4 * width),
                "bias": uniform(blocks, 4 * width),
            },
            "qkv": uniform(blocks, width, 3 * width),
            "out": dense(blocks, width, width),
            "up": dense(blocks, width, 4 * width),
            "down": dense(blocks, 4 * width, width),
        },
        "norm": norm(),
        "head": dense(width, outputs),
    }


def normed(own, x):
    """Layer norm."""
    centred = x - x.mean(-1, keepdims=True)
    spread = jnp.square(centred).mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(spread + 1e-5) * own["scale"] + own["shift"]


def linear(own, x):
    """x W + b."""
    return x @ own["weight"] + own["bias"]


def lstm(own, x):
    """The input's product for all steps at once, the recurrence as a scan over time."""
    projected = (x @ own["input"] + own["bias_in"] + own["bias"]).swapaxes(0, 1)

    def step(state, now):
        h, c = state
        i, f, g, o = jnp.split(now + h @ own["recurrent"], 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    start = jnp.zeros((x.shape[0], x.shape[2]))
    return jax.lax.scan(step, (start, start), projected)[1].swapaxes(0, 1)


def attention(own, x, heads=4):
    """Causal softmax attention."""
    q, k, v = (part.reshape(*x.shape[:2], heads, -1) for part in jnp.split(x @ own["qkv"], 3, -1))
    return linear(
        own["out"], jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape)
    )


def logits(own, tokens, layout, unroll):
    """Of tokens (batch, tokens)."""

    def through(x, block):
        first, second, third = block["norms"]
        after = x + lstm(block["lstm"], normed(first, x))
        x = after + attention(block, normed(second, after if layout == "serial" else x))
        inner = jax.nn.gelu(linear(block["up"], normed(third, x)), approximate=False)
        return x + linear(block["down"], inner), None

    x, _ = jax.lax.scan(through, own["embedding"][tokens], own["blocks"], unroll=unroll)
    return linear(own["head"], normed(own["norm"], x))


def loss(own, tokens, targets, layout, unroll):
    """Mean cross-entropy where something is asked (a target of 0 or more)."""
    scores = jax.nn.log_softmax(logits(own, tokens, layout, unroll))
    asked = targets >= 0
    found = jnp.take_along_axis(scores, jnp.where(asked, targets, 0)[..., None], -1)[..., 0]
    return -(found * asked).sum() / asked.sum()


def is_matrix(path, weight):
    """Whether a weight of one seed is decayed; a table of the blocks has an axis for them."""
    return weight.ndim > 1 + (path[0].key == "blocks")


def train(state, tokens, targets, layout, unroll):
    """One step of AdamW of one seed."""
    own, first, second, count = state
    gradient = jax.grad(loss)(own, tokens, targets, layout, unroll)
    leaves = jax.tree.leaves(gradient)
    size = jnp.sqrt(sum(jnp.square(g).sum() for g in leaves))
    gradient = jax.tree.map(lambda g: g * jnp.minimum(1.0, CLIP / (size + 1e-6)), gradient)
    count = count + 1
    first = jax.tree.map(lambda m, g: BETA1 * m + (1 - BETA1) * g, first, gradient)
    second = jax.tree.map(lambda v, g: BETA2 * v + (1 - BETA2) * g * g, second, gradient)

    def moved(path, w, m, v):
        pace = RATE * (m / (1 - BETA1**count))
        decayed = w * (1 - RATE * DECAY * is_matrix(path, w))
        return decayed - pace / (jnp.sqrt(v / (1 - BETA2**count)) + EPSILON)

    return jax.tree_util.tree_map_with_path(moved, own, first, second), first, second, count


def measure(seeds, blocks, width, batch, tokens, turns, layout, unroll):
    """Seconds to compile, and milliseconds of a step of all seeds."""
    begun = time.perf_counter()
    vocabulary = outputs = 1036
    chance = np.random.default_rng(0)
    own = initial(chance, seeds, blocks, width, vocabulary, outputs)
    zeros = jax.tree.map(np.zeros_like, own)
    # twice the zeros, put apart: a buffer that is given away must not be given twice
    state = jax.device_put((own, zeros, jax.tree.map(np.copy, zeros), np.zeros(seeds, np.float32)))
    shape = (seeds, batch, tokens)
    inputs = jax.device_put(chance.integers(0, vocabulary, shape, np.int32))
    targets = jax.device_put(chance.integers(-10, 10, shape, np.int32))
    step = jax.jit(jax.vmap(partial(train, layout=layout, unroll=unroll)), donate_argnums=0)
    for _ in range(2):
        state = jax.block_until_ready(step(state, inputs, targets))
    spent = time.perf_counter() - begun
    times = []
    for _ in range(turns):
        begun = time.perf_counter()
        for _ in range(STEPS):
            state = step(state, inputs, targets)
        jax.block_until_ready(state)
        times.append(1e3 * (time.perf_counter() - begun) / STEPS)
    return spent, statistics.median(times)


def main() -> None:
    """Measure each number of seeds and print a line for it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=59)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--layout", choices=LAYOUTS, default=LAYOUTS[0])
    parser.add_argument("--unroll", type=int, default=1, help="blocks that are written out")
    parser.add_argument("--out", type=Path, help="a JSON file for the numbers")
    given = parser.parse_args()
    if given.out is not None and (given.out.is_dir() or not given.out.parent.is_dir()):
        parser.error(f"--out={given.out}: expected a file in a folder that is there")
    rows = []
    card = jax.devices()[0].device_kind
    print(f"jax {jax.__version__} on {card}, {given.layout}, median of {given.turns}")
    sizes = (given.blocks, given.width, given.batch, given.tokens, given.turns)
    for seeds in given.seeds:
        compiled, ms = measure(seeds, *sizes, given.layout, given.unroll)
        rate = 1e3 * seeds / ms
        each = f"{rate:.0f} seed-steps/s, {rate * given.batch * given.tokens / 1e6:.2f} M tokens/s"
        print(f"{seeds:4d} seeds {ms:9.3f} ms  {each}, compiled in {compiled:.0f} s", flush=True)
        rows.append({"seeds": seeds, "ms": ms, "seed_steps_per_second": rate})
        rows[-1]["compiled_in_seconds"] = compiled
        if given.out is not None:  # after each: a run that is stopped has kept what it knew
            write_json(given.out, {"jax": jax.__version__, "layout": given.layout, "rows": rows})


if __name__ == "__main__":
    main()
