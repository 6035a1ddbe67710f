"""What methods do to the data of training: blocks of tokens shuffled, tokens mixed.

All chance is a hash of the step's keys, as in `mixers/randomness.py`.
"""

from __future__ import annotations

import torch

from outlast.mixers.randomness import MIX, SHUFFLE, fold_in, random_bits, within
from outlast.models.mixing import Mix, partners
from outlast.tasks import Batch
from outlast.train.plan import Tables


def shuffle_blocks(data: Batch, tables: Tables) -> Batch:
    """Data (steps, S, batch, tokens) with blocks of tokens in another order, answers with them.

    Blocks are counted from the first token of a sequence. One that the end of the sequence cuts off
    stays at its end.
    """
    device, (*_, batch, tokens) = data.inputs.device, data.inputs.shape
    share, size = tables["shuffle"].to(device)[..., None, None].unbind(2)
    size = size.long().clamp_min(1)
    key = fold_in(tables["keys"].to(device), SHUFFLE)
    chosen = within(random_bits(key, (batch, 1)), share)
    place = torch.arange(tokens, device=device)
    block = (place // size).expand_as(data.inputs)
    ends = ((data.part >= 0) * (place + 1)).amax(-1, keepdim=True) + 1  # the last asks nothing
    moves = chosen & ((block + 1) * size <= ends.clamp_max(tokens))
    rank = random_bits(fold_in(key, 1), (batch, tokens)).long().gather(-1, block)
    order = torch.where(moves, rank, block + moves.any(-1, True) * 2**31)
    order = order.argsort(dim=-1, stable=True)
    return data.map(lambda page: page.gather(-1, order))


def draw_mix(data: Batch, tables: Tables, points: int) -> Mix:
    """Which tokens of a step are exchanged, for data (S, batch, tokens): all with the seeds first.

    The two tokens have the same answer, as a test of the same part.
    """
    batch, tokens = data.inputs.shape[1:]
    key = fold_in(tables["keys"], MIX)
    point, shift = random_bits(fold_in(key, 1), (2,)).long().unbind(-1)
    shift = 1 + shift % max(1, batch - 1)
    others = partners(shift, batch)[..., None].expand_as(data.inputs)
    same = data.targets == data.targets.gather(1, others)
    same &= (data.part == data.part.gather(1, others)) & (data.part >= 0)
    chosen = within(random_bits(key, (batch, tokens)), tables["mix"][:, None, None])
    return Mix(point % points, shift, same & chosen)
