"""Recurrences in chunks against loops over tokens, on a CPU: `python benchmarks/recurrences.py`.

Each layer is timed as it is, in `chunks`, and against three loops over tokens:

- `loop`: its recurrence alone is a loop. Its maps, its convolution and its norm are computed for
  all tokens at once, as in chunks.
- `layer_loop`: the layer is called with one token after the other. Its state is carried.
- `lean_loop`: the same, with the recurrence of `loop` in the layer. It does less for one token.

A time is that of a forward and a backward pass in float32, on one thread. It is CPU time, so that
other jobs of the machine count less. The sides take turns, and each has its best time of all turns.
`--recurrence` times the recurrence alone, without the layer around it. It has the first loop alone.

`error` is the largest difference of the outputs and of all gradients, over the largest entry,
between chunks and a loop. Numbers go to standard output, as one JSON line for each layer.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

from outlast.kernels.linear_recurrence import decayed_sum, delta_rule, linear_scan, reference
from outlast.mixers import xlstm
from outlast.registry import mixers

Tensors = tuple[Tensor, ...]
Pass = Callable[[], Tensors]
Sides = dict[str, Pass]


def mlstm_loop(
    q: Tensor, k: Tensor, v: Tensor, write: Tensor, log_forget: Tensor, state: xlstm.MLSTMState
) -> tuple[Tensor, xlstm.MLSTMState]:
    """`mlstm_cell`, token by token."""
    memory, largest = state
    v, rows = F.pad(v, (0, 1), value=1.0), []
    tokens = (part.split(1, -2) for part in (q, k, v, write, log_forget))
    for query, key, value, gate, forget in zip(*tokens, strict=True):
        before, largest = largest, torch.maximum(forget + largest, gate).detach()
        kept, written = (forget + before - largest).exp(), (gate - largest).exp()
        memory = kept * memory + key.mT * (value * written)
        read = query @ memory
        total = torch.maximum(read[..., -1:].abs(), (-largest).exp())
        rows.append(read[..., :-1] / (total + 1e-6))
    return torch.cat(rows, -2), (memory, largest)


#: the layers, what is replaced in them, and by what
LAYERS: dict[str, tuple[str, Callable[..., object], Callable[..., object]]] = {
    "deltanet": ("outlast.mixers.delta.delta_rule", delta_rule, reference.delta_rule),
    "gated_deltanet": ("outlast.mixers.delta.delta_rule", delta_rule, reference.delta_rule),
    "linear_attention": (
        "outlast.mixers.linear_attention.decayed_sum",
        decayed_sum,
        reference.decayed_sum,
    ),
    "mamba2": ("outlast.mixers.mamba2.decayed_sum", decayed_sum, reference.decayed_sum),
    "minlstm": ("outlast.mixers.minlstm.linear_scan", linear_scan, reference.linear_scan),
    "mlstm": ("outlast.mixers.xlstm.mlstm_cell", xlstm.mlstm_cell, mlstm_loop),
}


def of_layer(name: str, width: int, batch: int, tokens: int) -> Sides:
    """A forward and backward pass of the layer, in chunks and as the loops."""
    place, chunked, loop = LAYERS[name]
    torch.manual_seed(0)
    layer = mixers.build(name, width=width)
    x = torch.randn(batch, tokens, width, requires_grad=True)
    upstream = torch.randn(batch, tokens, width)
    leaves = [x, *layer.parameters()]

    def whole() -> Tensor:
        y: Tensor = layer(x)[0]
        return y

    def by_token() -> Tensor:
        outputs, state = [], None
        for token in range(tokens):
            y, state = layer(x[:, token : token + 1], state)
            outputs.append(y)
        return torch.cat(outputs, 1)

    def side(forward: Callable[[], Tensor], function: Callable[..., object]) -> Pass:
        def run() -> Tensors:
            with patch(place, function):
                y = forward()
            return y.detach(), *torch.autograd.grad(y, leaves, upstream)

        return run

    return {
        "chunks": side(whole, chunked),
        "loop": side(whole, loop),
        "layer_loop": side(by_token, chunked),
        "lean_loop": side(by_token, loop),
    }


def of_recurrence(name: str, width: int, batch: int, tokens: int) -> Sides:
    """The same of what the layer calls, with the inputs that it gives."""
    place, chunked, loop = LAYERS[name]
    torch.manual_seed(0)
    layer = mixers.build(name, width=width)
    given: list[object] = []

    def note(*args: object) -> object:
        given.extend(args)
        return chunked(*args)

    with patch(place, note), torch.no_grad():
        layer(torch.randn(batch, tokens, width))
    inputs = [a.requires_grad_() if isinstance(a, Tensor) else a for a in given]
    leaves = [a for a in inputs[:-1] if isinstance(a, Tensor)]

    def side(function: Callable[..., object]) -> Pass:
        def run() -> Tensors:
            out = function(*inputs)
            y = out[0] if isinstance(out, tuple) else out
            assert isinstance(y, Tensor)
            return y.detach(), *torch.autograd.grad(y, leaves, torch.ones_like(y))

        return run

    return {"chunks": side(chunked), "loop": side(loop)}


def seconds(side: Pass, passes: int) -> float:
    """CPU seconds of a pass."""
    start = time.process_time()
    for _ in range(passes):
        side()
    return (time.process_time() - start) / passes


def difference(ours: Tensors, theirs: Tensors) -> float:
    """The largest of all tensors, each over its largest entry."""
    pairs = zip(ours, theirs, strict=True)
    return max(float((one - two).abs().max() / two.abs().max()) for one, two in pairs)


def measured(name: str, sides: Sides, repeats: int) -> dict[str, object]:
    """All sides in turns: the best of each, how many times faster chunks are, and the error."""
    results = {side: run() for side, run in sides.items()}
    ours = results.pop("chunks")
    error = max(difference(ours, theirs) for theirs in results.values())
    turns = [
        {side: seconds(run, 3 if side == "chunks" else 1) for side, run in sides.items()}
        for _ in range(repeats)
    ]
    best = {side: min(turn[side] for turn in turns) for side in sides}
    return {
        "layer": name,
        "ms": {side: round(1e3 * time, 2) for side, time in best.items()},
        "times_faster": {side: round(best[side] / best["chunks"], 1) for side in results},
        "error": float(f"{error:.1e}"),
    }


def main() -> None:
    """Time the layers that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", nargs="+", choices=[*LAYERS], default=[*LAYERS])
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--recurrence", action="store_true", help="without the layer around it")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sides = of_recurrence if options.recurrence else of_layer
    for name in options.layers:
        layer_sides = sides(name, options.width, options.batch, options.tokens)
        print(json.dumps(measured(name, layer_sides, options.repeats)), flush=True)


if __name__ == "__main__":
    main()
