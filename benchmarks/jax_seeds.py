"""The peer of `outlast bench seeds` in JAX: the same hybrid and step as one `jit(vmap(...))`.

    python benchmarks/jax_seeds.py --seeds 1 8 32

4 blocks of (lstm | attention > mlp), AdamW with clipping, each seed on a batch of its own, over
and over: making data costs it nothing. Products are in JAX's own default precision (tf32 on recent
NVIDIA GPUs). Prints milliseconds a step and steps of a seed a second: the median of 20 turns of
three steps. Without JAX it says so and leaves.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from functools import partial
from pathlib import Path

try:
    import jax
    import jax.numpy as jnp
except ImportError:
    print("jax is not installed: nothing to compare with (pip install 'jax[cuda12]')")
    sys.exit(0)

STEPS, TURNS = 3, 20
RATE, DECAY, CLIP, BETA1, BETA2, EPSILON = 2e-3, 0.01, 1.0, 0.9, 0.999, 1e-8


def initial(key, blocks, width, vocabulary, outputs):
    """Weights of one seed."""
    keys = iter(jax.random.split(key, 2 + 8 * blocks))

    def uniform(*shape):
        return jax.random.uniform(next(keys), shape, minval=-(width**-0.5), maxval=width**-0.5)

    def norm():
        return {"scale": jnp.ones(width), "shift": jnp.zeros(width)}

    def block():
        return {
            "norms": [norm(), norm(), norm()],
            "lstm": {"input": uniform(width, 4 * width), "recurrent": uniform(width, 4 * width)}
            | {"bias_in": uniform(4 * width), "bias": uniform(4 * width)},
            "qkv": uniform(width, 3 * width),
            "out": {"weight": uniform(width, width), "bias": jnp.zeros(width)},
            "up": {"weight": uniform(width, 4 * width), "bias": jnp.zeros(4 * width)},
            "down": {"weight": uniform(4 * width, width), "bias": jnp.zeros(width)},
        }

    return {
        "embedding": jax.random.normal(next(keys), (vocabulary, width)),
        "blocks": [block() for _ in range(blocks)],
        "norm": norm(),
        "head": {"weight": uniform(width, outputs), "bias": jnp.zeros(outputs)},
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


def logits(own, tokens):
    """Of tokens (batch, tokens)."""
    x = own["embedding"][tokens]
    for block in own["blocks"]:
        first, second, third = block["norms"]
        x = x + lstm(block["lstm"], normed(first, x)) + attention(block, normed(second, x))
        inner = jax.nn.gelu(linear(block["up"], normed(third, x)), approximate=False)
        x = x + linear(block["down"], inner)
    return linear(own["head"], normed(own["norm"], x))


def loss(own, tokens, targets):
    """Mean cross-entropy where something is asked (a target of 0 or more)."""
    scores = jax.nn.log_softmax(logits(own, tokens))
    asked = targets >= 0
    found = jnp.take_along_axis(scores, jnp.where(asked, targets, 0)[..., None], -1)[..., 0]
    return -(found * asked).sum() / asked.sum()


def train(state, tokens, targets):
    """One step of AdamW of one seed."""
    own, first, second, count = state
    gradient = jax.grad(loss)(own, tokens, targets)
    leaves = jax.tree.leaves(gradient)
    size = jnp.sqrt(sum(jnp.square(g).sum() for g in leaves))
    gradient = jax.tree.map(lambda g: g * jnp.minimum(1.0, CLIP / (size + 1e-6)), gradient)
    count = count + 1
    first = jax.tree.map(lambda m, g: BETA1 * m + (1 - BETA1) * g, first, gradient)
    second = jax.tree.map(lambda v, g: BETA2 * v + (1 - BETA2) * g * g, second, gradient)

    def moved(w, m, v):
        pace = RATE * (m / (1 - BETA1**count))
        decayed = w * (1 - RATE * DECAY * (w.ndim > 1))
        return decayed - pace / (jnp.sqrt(v / (1 - BETA2**count)) + EPSILON)

    return jax.tree.map(moved, own, first, second), first, second, count


def measure(seeds, blocks, width, batch, tokens, turns):
    """Milliseconds of a step of all seeds."""
    vocabulary = outputs = 1036
    keys = jax.random.split(jax.random.key(0), seeds)
    make = partial(initial, blocks=blocks, width=width, vocabulary=vocabulary, outputs=outputs)
    own = jax.vmap(make)(keys)
    zeros = jax.tree.map(jnp.zeros_like, own)
    state = (own, zeros, jax.tree.map(jnp.zeros_like, own), jnp.zeros(seeds))
    shape = (seeds, batch, tokens)
    inputs = jax.random.randint(jax.random.key(1), shape, 0, vocabulary)
    targets = jax.random.randint(jax.random.key(2), shape, -10, 10)
    step = jax.jit(jax.vmap(train), donate_argnums=0)
    for _ in range(2):
        state = jax.block_until_ready(step(state, inputs, targets))
    times = []
    for _ in range(turns):
        begun = time.perf_counter()
        for _ in range(STEPS):
            state = step(state, inputs, targets)
        jax.block_until_ready(state)
        times.append(1e3 * (time.perf_counter() - begun) / STEPS)
    return statistics.median(times)


def main() -> None:
    """Measure each number of seeds and print a line for it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=59)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--out", type=Path, help="a JSON file for the numbers")
    given = parser.parse_args()
    rows = []
    print(f"jax {jax.__version__} on {jax.devices()[0].device_kind}, median of {given.turns}")
    for seeds in given.seeds:
        ms = measure(seeds, given.blocks, given.width, given.batch, given.tokens, given.turns)
        rate = 1e3 * seeds / ms
        tokens = rate * given.batch * given.tokens / 1e6
        print(f"{seeds:4d} seeds {ms:9.3f} ms  {rate:.0f} seed-steps/s, {tokens:.2f} M tokens/s")
        rows.append({"seeds": seeds, "ms": ms, "seed_steps_per_second": rate})
    if given.out is not None:
        given.out.write_text(json.dumps({"jax": jax.__version__, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
