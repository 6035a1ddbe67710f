"""Two sections of `outlast bench tra`: other libraries beside it, and the gates of a trained model.

The libraries are called in the layout they want, on inputs that lie so already: FoX of
flash-linear-attention (tokens before heads) and 1.5-entmax of AdaSplash. Neither computes what TRA
computes; each is compared with its own definition in float64.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from outlast.bench.timing import Bench, Row
from outlast.bench.tra import graphed, replayed
from outlast.bench.tra_sides import (
    BATCH,
    ENTMAX,
    FORGETTING,
    HEADS,
    PLAIN,
    Attend,
    Inputs,
    fused,
    fused_early,
    sdpa,
)
from outlast.kernels.libraries import PACKAGES, installed
from outlast.mixers.attention import Attention
from outlast.models import Model
from outlast.specs import Spec

#: tokens of a trained model's sequences, by kind of device
TOKENS = {"cuda": 32768, "cpu": 512}
PASSES = (("forward", False), ("fwd+bwd", True))
Captured = tuple[Tensor, Tensor, Tensor, Tensor]


def fox(q: Tensor, k: Tensor, v: Tensor, gate: Tensor) -> Tensor:
    """Forgetting attention of flash-linear-attention, all (batch, tokens, heads, ...)."""
    _need("fla")
    from fla.ops.forgetting_attn import parallel_forgetting_attn

    found: Tensor = parallel_forgetting_attn(q, k, v, gate)
    return found


def splash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """1.5-entmax attention of AdaSplash, all (batch, heads, tokens, width)."""
    _need("adasplash")
    from adasplash import adasplash

    found: Tensor = adasplash(q, k, v, alpha=1.5)
    return found


def beside(bench: Bench, length: int = 8192, width: int = 64) -> None:
    """FoX and AdaSplash at one length, beside plain attention and TRA."""
    data = Inputs.draw(bench, (BATCH, HEADS, length, width))
    swapped = _swapped(data)
    plain = sdpa("sdpa flash")
    for name, learns in PASSES:
        sides = {"sdpa flash": data.side(plain, learns, gated=False)}
        sides["tra"] = data.side(fused, learns)
        sides["fox, fla"] = _tried(swapped.side(fox, learns))
        sides["adasplash"] = _tried(data.side(splash, learns, gated=False))
        errors = {"tra": data.error(fused, learns)}
        errors |= data.errors(learns, {"sdpa flash": plain}, PLAIN)
        errors |= data.errors(learns, {"fox, fla": _tried(_turned_fox)}, FORGETTING)
        errors |= data.errors(learns, {"adasplash": _tried(splash)}, ENTMAX)
        what = f"n {length}, width {width}, {name}"
        bench.compare("peers", what, sides, errors, f"for tra: {data.words()}")


def trained(bench: Bench) -> None:
    """Stopping early with the queries, keys and gates of a trained model (``--run FOLDER``)."""
    if bench.run is None:
        why = "n/a: give the folder of a run trained with attention(tra): --run runs/tra-paper/tra"
        bench.add(Row("trained", "a trained model", "tra, early", None, note=why))
        return
    tokens = TOKENS[bench.device.type]
    found = capture(bench, tokens)
    if not found:
        why = f"n/a: no attention(tra) as published in {bench.run}"
        bench.add(Row("trained", "a trained model", "tra, early", None, note=why))
    for layer, taken in enumerate(found):
        if bench.spent("trained", f"layer {layer}"):
            return
        data = inputs(bench, taken)
        heads, note = data.q.shape[0] * data.q.shape[1], data.words()
        for name, learns in PASSES:
            plain = sdpa("sdpa flash")
            sides = {"sdpa flash": data.side(plain, learns, gated=False)}
            errors = data.errors(learns, {"sdpa flash": plain}, PLAIN)
            for which, attend in (("tra", fused), ("tra, early", fused_early)):
                sides[which] = data.side(attend, learns)
                errors[which] = data.error(attend, learns)
            what = f"layer {layer}, n {data.q.shape[2]}, {heads} heads, {name}"
            bench.compare("trained", what, replayed(bench, sides), errors, graphed(bench, note))


@torch.no_grad()
def capture(bench: Bench, tokens: int) -> list[Captured]:
    """q, k, v and gate of every layer of a run's first seed, on sequences of its own task.

    As many sequences as make up the usual number of heads.
    """
    from outlast.registry import tasks
    from outlast.runs.records import read_run
    from outlast.workflow.load import load

    if bench.run is None:
        return []
    task = tasks.build(read_run(bench.run)["task"])
    model = load(bench.run).to(bench.device)
    layers = _layers(model)
    if not layers:
        return []
    batch = -(-BATCH * HEADS // layers[0].heads)
    length = task.lengths[1]
    while task.tokens(2 * length) <= tokens and (task.ceiling or 2 * length) >= 2 * length:
        length *= 2
    chance = torch.Generator(bench.device).manual_seed(0)
    with ExitStack() as held:
        taken: list[Captured] = []
        for layer in layers:
            held.enter_context(_listening(layer, taken))
        model(task.sample(length, batch, chance).inputs)
    return taken


def inputs(bench: Bench, taken: Captured) -> Inputs:
    """What was taken of a layer, as the other sections draw it."""
    q, k, v, gate = taken
    dtype = torch.bfloat16 if bench.device.type == "cuda" else torch.float32
    chance = torch.Generator(bench.device).manual_seed(0)
    above = torch.randn(q.shape, device=q.device, generator=chance).to(dtype)
    q, k, v = (t.to(dtype).contiguous().requires_grad_() for t in (q, k, v))
    return Inputs(q, k, v, gate.float().contiguous().requires_grad_(), above)


def _layers(model: Model) -> list[Attention]:
    """Attention by TRA with the gate and the threshold of the paper."""
    mixers = [s.mixer for s in model.sublayers() if isinstance(s.mixer, Attention)]
    return [m for m in mixers if m.scheme.spec == Spec("tra")]


@contextmanager
def _listening(layer: Attention, taken: list[Captured]) -> Any:
    """Note what attention is given, for as long as this lasts."""
    scheme: Any = layer.scheme
    real = scheme.fused

    def noted(q: Tensor, k: Tensor, v: Tensor, marks: Tensor, drawn: bool) -> Any:
        taken.append((q, k, v, marks[..., 0]))
        return real(q, k, v, marks, drawn)

    scheme.fused = noted
    try:
        yield
    finally:
        del scheme.fused


def _swapped(data: Inputs) -> Inputs:
    """The same with tokens before heads."""
    q, k, v, gate = (t.detach().transpose(1, 2).contiguous().requires_grad_() for t in data.leaves)
    return Inputs(q, k, v, gate, data.above.transpose(1, 2).contiguous())


def _turned_fox(q: Tensor, k: Tensor, v: Tensor, gate: Tensor) -> Tensor:
    """`fox` of inputs with heads before tokens."""
    return fox(*(t.transpose(1, 2) for t in (q, k, v, gate))).transpose(1, 2)


def _need(package: str) -> None:
    if not installed(package):
        raise ImportError(f"{PACKAGES[package]} is not installed (outlast[fast])")


def _tried(side: Attend) -> Attend:
    """The same with everything that can go wrong in another library as one kind of error."""

    def run(*given: Tensor) -> Any:
        try:
            return side(*given)
        except ImportError:
            raise
        except Exception as error:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error

    return run
