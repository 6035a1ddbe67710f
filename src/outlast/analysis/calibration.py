"""Attention bias calibration: from the attention of a trained model to a bias for any length.

The first stage of 2310.11984; `abc` says what the paper is and what is ours. Both stages::

    outlast train --task TASK --model "attention(heads=2) > mlp @ 32" --out runs/first
    python -c "from outlast.analysis.calibration import calibrate_run as c; print(c('runs/first'))"
    {'1.attention': 'd0 d1=-0.2; all'}
    outlast train --task TASK --model 'attention(abc("d0 d1=-0.2; all"), heads=2) > mlp @ 32'

The bias is that of one seed, as the heads of another seed do other things. All seeds of the second
run have it. The bias stands in the line of the model, so a run needs no other file.

Maps of attention are averaged over sequences of the training length that are all right, and then
along each distance and each place. A line is kept if its average is above mean + level * std of
all entries of the map up to each query. Short lines are left out, with less than a quarter of the
tokens: other lines cross them (ours). A head without a line that stands out sees everything (ours).
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from outlast.analysis.scoring import check_answers
from outlast.analysis.sequences import SEQUENCES, blocks, draw_rungs, nothing_to_see
from outlast.analysis.watching import attention_layers, hooked
from outlast.errors import require
from outlast.evaluation.accuracy import correct_by_part
from outlast.evaluation.outputs import eval_mode
from outlast.mixers.attention.look import AttentionBlock
from outlast.mixers.attention.schemes.abc import ALL
from outlast.models.model import Model
from outlast.registry import tasks
from outlast.runs.records import read_run
from outlast.tasks import Task
from outlast.workflow.load import load

#: lines have at least so many tokens, or a quarter of all
FEWEST = 2


def lines_of(maps: Tensor, level: float = 1.0) -> str:
    """The lines of average maps of attention (heads, tokens, tokens), as `abc` reads them."""
    return "; ".join(_lines_of_head(one.double(), level) for one in maps)


def _lines_of_head(table: Tensor, level: float) -> str:
    tokens = len(table)
    entries = table[torch.ones(tokens, tokens, device=table.device).tril().bool()]
    limit = (entries.mean() + level * entries.std(correction=0)).item()
    numbers = range(tokens + 1 - max(FEWEST, tokens // 4))
    averages = {f"d{n}": table.diagonal(-n).mean().item() for n in numbers}
    averages |= {f"p{n}": table[n:, n].mean().item() for n in numbers}
    kept = {name: average for name, average in averages.items() if average > limit}
    top = max(kept.values(), default=0.0)
    words = [name if a == top else f"{name}={a - top:.3f}" for name, a in kept.items()]
    return " ".join(words) or ALL


class _MapKeeper:
    """A hook that adds up the maps of attention of some rows, (heads, tokens, tokens)."""

    def __init__(self, tokens: int) -> None:
        self.tokens, self.rows = tokens, torch.zeros(0)
        self.total: Tensor | None = None

    def __call__(self, block: AttentionBlock) -> None:
        _, heads, queries, keys = block.weights.shape
        if self.total is None:
            self.total = block.weights.new_zeros(heads, self.tokens, self.tokens)
        here = self.total[:, block.first : block.first + queries, :keys]
        here += block.weights[self.rows].sum(0)


def calibrate(
    model: Model, task: Task, sequences: int = SEQUENCES, level: float = 1.0
) -> dict[str, str]:
    """For each layer of attention the `bias` of `abc` that goes on as this attention does.

    Args:
        model: A model that has learned sequences of the training length.
        task: What it has learned.
        sequences: How many sequences are looked at; those that are all right count.
        level: How many standard deviations above the mean a line must be.
    """
    check_answers(task, (1.0,), sequences)
    require(level >= 0, "level", level, "a number >= 0")
    if not attention_layers(model):
        raise nothing_to_see("model", model.layout, "one with attention that is switched on")
    (rung,) = draw_rungs(model, task, (1.0,), sequences)
    tokens, asked = rung.batch.inputs.shape[1], rung.batch.part >= 0
    places = torch.arange(1, tokens + 1, device=asked.device)
    tokens = int((asked * places).amax(1).min())  # past it some rows have padding
    keepers = {name: _MapKeeper(tokens) for name in attention_layers(model)}
    count = 0
    with eval_mode(model), torch.no_grad():
        for batch in blocks(rung.batch):
            right = correct_by_part(model(batch.inputs)[0], batch, task).exact["joint"]
            count += int(right.sum())
            for keeper in keepers.values():
                keeper.rows = right
            with hooked(dict(keepers), model):
                model(batch.inputs[:, :tokens])
    if not count:
        accepted = f"one that gets some of {sequences} sequences of length {rung.length} right"
        raise nothing_to_see("model", model.layout, accepted)
    totals = {name: keeper.total for name, keeper in keepers.items()}
    return {n: lines_of(total / count, level) for n, total in totals.items() if total is not None}


def calibrate_run(
    folder: Path | str, seed: int | None = None, sequences: int = SEQUENCES, level: float = 1.0
) -> dict[str, str]:
    """`calibrate` for a seed of a trained run; by default its first."""
    run = read_run(Path(folder)).spec
    model = load(Path(folder), run.seeds[0] if seed is None else seed)
    return calibrate(model, tasks.build(run.task), sequences, level)
