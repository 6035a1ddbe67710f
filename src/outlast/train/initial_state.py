"""The states with which recurrent layers begin a training sequence, if not with nothing.

In the same step, other sequences pass through the model without gradients: those of the batch, a
row further. Their last states are passed on, or noise is drawn that has their mean and spread. So
there is nothing to save: a resumed run begins with the same states. Attention begins with nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outlast.methods.base import INITIAL_STATE
from outlast.mixers.base import State
from outlast.mixers.randomness import STATES, draw_normal, draw_true, fold_in
from outlast.models import Model
from outlast.models.model import ModelState
from outlast.tasks import Batch


def state_inputs(data: Batch, table: Tensor, kinds: tuple[str, ...]) -> dict[str, Tensor]:
    """What `initial_state` needs: other sequences (S, batch, tokens), and numbers (S,) by kind.

    `table` (S, INITIAL_STATE) is that of the plan, at one step.
    """
    numbers = dict(zip(INITIAL_STATE, table.unbind(-1), strict=True))
    chosen = {kind: numbers[kind] for kind in (*kinds, "scale")}
    return {"tokens": repeated(data.inputs, data.part).roll(1, -2)} | chosen


def repeated(inputs: Tensor, part: Tensor) -> Tensor:
    """Rows of tokens without padding: each is repeated from its beginning until it is full.

    A row ends where its last answer is due. A model never sees padding in a test, so states after
    padding are of no use.
    """
    places = torch.arange(inputs.shape[-1], device=inputs.device)
    used = ((part >= 0) * (places + 1)).amax(-1, keepdim=True).clamp_min(1)
    return inputs.gather(-1, places % used)


def initial_state(
    model: Model, last: ModelState, initial: dict[str, Tensor], key: Tensor
) -> ModelState:
    """The state before the first token of each sequence of one seed.

    `last` are the states after other sequences. Each kind is drawn by sequence, for all layers at
    once. A sequence of which several are drawn has the state that is passed.
    """
    key, batch = fold_in(key, STATES), initial["tokens"].shape[0]
    rows = {
        kind: draw_true(fold_in(key, number), initial[kind], batch)
        for number, kind in enumerate(INITIAL_STATE)
        if kind in initial and kind != "scale"
    }

    def begin(table: Tensor, table_key: Tensor) -> Tensor:
        start = torch.zeros_like(table)
        shape = (-1, *[1] * (table.dim() - 1))
        if "noise" in rows:
            spread = initial["scale"] * table.std(0, correction=0)
            noise = table.mean(0) + spread * draw_normal(table_key, tuple(table.shape))
            start = torch.where(rows["noise"].view(shape), noise.to(table.dtype), start)
        if "passed" in rows:
            start = torch.where(rows["passed"].view(shape), table, start)
        return start

    def begin_all(state: State, state_key: Tensor) -> State:
        if isinstance(state, tuple | list):
            keys = [fold_in(state_key, index) for index in range(len(state))]
            return tuple(begin_all(*pair) for pair in zip(state, keys, strict=True))
        # a skipped layer has no state, and a mixer may count tokens
        return begin(state, state_key) if isinstance(state, Tensor) else state

    return tuple(
        begin_all(state, fold_in(key, number)) if sublayer.pathway == "recurrent" else None
        for number, (sublayer, state) in enumerate(zip(model.sublayers(), last, strict=True))
    )
