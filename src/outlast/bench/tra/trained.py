"""A section of `outlast bench tra`: stopping early with the gates of a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outlast.bench.graphs import compare_replays
from outlast.bench.timing import Bench, Row
from outlast.bench.tra.inputs import BATCH, FLASH, HEADS, PASSES, TRA_EARLY, TRA_FUSED, Inputs
from outlast.mixers.attention import Attention
from outlast.models import Model
from outlast.registry import tasks
from outlast.runs.records import read_run
from outlast.specs import Spec
from outlast.workflow.load import load

#: tokens of a trained model's sequences, by type of device
TOKENS = {"cuda": 32768, "cpu": 512}
#: q, k, v and the gate
Captured = tuple[Tensor, Tensor, Tensor, Tensor]


def trained(bench: Bench) -> None:
    """Stopping early with the gates of a trained model, the run of `--run`."""
    layers = []
    reason = "give the folder of a run trained with attention(tra): --run runs/tra-paper/tra"
    if bench.run is not None:
        layers = capture_layers(bench.run, bench.device, TOKENS[bench.device.type])
        reason = f"no attention(tra) as published in {bench.run}"
    if not layers:
        bench.add(Row("trained", "a trained model", "tra, early", None, note=f"n/a: {reason}"))
    for number, layer in enumerate(layers):
        if bench.spent("trained", f"layer {number}"):
            return
        data = as_inputs(bench, layer)
        heads, note = data.q.shape[0] * data.q.shape[1], data.description()
        for name, backward in PASSES:
            sides, errors = data.measured(FLASH | TRA_FUSED | TRA_EARLY, backward)
            what = f"layer {number}, n {data.q.shape[2]}, {heads} heads, {name}"
            compare_replays(bench, "trained", what, sides, errors, note)


@torch.no_grad()
def capture_layers(run: Path, device: torch.device, tokens: int) -> list[Captured]:
    """q, k, v and gate of every layer of a run's first seed, on sequences of its own task.

    As many sequences as make up the usual number of heads.
    """
    task = tasks.build(read_run(run).task)
    model = load(run).to(device)
    layers = _tra_layers(model)
    if not layers:
        return []
    batch = -(-BATCH * HEADS // layers[0].heads)
    length = task.lengths[1]
    while task.tokens(2 * length) <= tokens and (task.ceiling or 2 * length) >= 2 * length:
        length *= 2
    generator = torch.Generator(device).manual_seed(0)
    captured: list[Captured] = []
    for layer in layers:
        _capture(layer, captured)  # the model is ours alone
    model(task.sample(length, batch, generator).inputs)
    return captured


def as_inputs(bench: Bench, captured: Captured) -> Inputs:
    """What was captured of a layer, in the form that the other sections draw."""
    q, k, v, gate = captured
    dtype = torch.bfloat16 if bench.device.type == "cuda" else torch.float32
    generator = torch.Generator(bench.device).manual_seed(0)
    above = torch.randn(q.shape, device=q.device, generator=generator).to(dtype)
    q, k, v = (t.to(dtype).contiguous().requires_grad_() for t in (q, k, v))
    return Inputs(q, k, v, gate.float().contiguous().requires_grad_(), above)


def _tra_layers(model: Model) -> list[Attention]:
    """Attention by TRA with the gate and the threshold of the paper."""
    mixers = [s.mixer for s in model.sublayers() if isinstance(s.mixer, Attention)]
    return [m for m in mixers if m.scheme.spec == Spec("tra")]


def _capture(layer: Attention, captured: list[Captured]) -> None:
    """Note from now on what attention is given."""
    scheme: Any = layer.scheme
    fused = scheme.fused

    def noting(q: Tensor, k: Tensor, v: Tensor, token_features: Tensor, drawn: bool) -> Any:
        captured.append((q, k, v, token_features[..., 0]))
        return fused(q, k, v, token_features, drawn)

    scheme.fused = noting
