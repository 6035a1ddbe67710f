"""Chance inside a model, without a generator: numbers by a hash of a key and of where they go.

A pass in training has a *key*, one whole number for each seed and step. What is random in it is a
pure function of the key, of which sublayer asks, and of the place in the table. So there is no
state to save, a seed has the same numbers alone and among others (under vmap), a CPU the same as
a GPU, and a backward pass that computes something again draws what the forward pass drew. A pass
without a key, as in every test, leaves everything in.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from outlast.errors import bad_value
from outlast.streams import stream_seed

#: what a key is folded with for what is no sublayer (those are counted from 0)
EMBEDDING, POSITIONS = -1, -2


class Told(NamedTuple):
    """What a sublayer is told of a pass beside its input.

    `positions` (tokens,) is where the tokens stand, increasing, if not one after the other; `key`
    () is its own number for chance, if there is to be any.
    """

    positions: Tensor | None = None
    key: Tensor | None = None


def check_share(dropout: float) -> float:
    """Refuse what cannot be left out."""
    if not 0 <= dropout < 1:
        raise bad_value("dropout", dropout, "a share from 0 to below 1")
    return dropout


def fold(key: Tensor, *numbers: int | Tensor) -> Tensor:
    """A key for each of some numbers (which sublayer, which row), of the shape they broadcast to.

    The finaliser of SplitMix64 (Steele et al., 2014) after each number.
    """
    for number in numbers:
        x = (key + number) * -7046029254386353131  # 2^64 over the golden ratio, odd
        x = (x ^ _shift(x, 30)) * -4658895280553007687
        x = (x ^ _shift(x, 27)) * -7723592293110705685
        key = x ^ _shift(x, 31)
    return key


def bits(key: Tensor, shape: tuple[int, ...], first: int = 0) -> Tensor:
    """Whole numbers below 2^31, at random, int32 of `shape`.

    `first` is where the axis before the last begins in the table that this is a part of: rows
    have the same numbers whether they are asked for together or in blocks.
    """
    *rows, columns = shape
    for axis, size in enumerate(rows):
        start = first if axis == len(rows) - 1 else 0
        key = fold(key[..., None], torch.arange(start, start + size, device=key.device))
    # the last axis, where the size is, in half the memory
    low = _shift(fold(key, 0), 32).to(torch.int32)[..., None]
    column = torch.arange(columns, device=key.device, dtype=torch.int32)
    return _mixed(low ^ _mixed(column + 1)) & 0x7FFFFFFF


def drop(x: Tensor, share: float, key: Tensor | None, first: int = 0) -> Tensor:
    """x with a share of its numbers at 0 and the rest over 1 - share; x itself without a key."""
    if key is None or not share:
        return x
    dropped = bits(key, tuple(x.shape), first) < round(share * 2**31)
    return x.masked_fill(dropped, 0) / (1 - share)


def draw_positions(keys: Tensor, tokens: int, span: int) -> Tensor:
    """For each key (...) as many positions below `span` as there are tokens, sorted: (..., tokens).

    Every subset is as likely as any other; where there is nothing to choose, 0 to tokens - 1.
    """
    if span <= tokens:
        return torch.arange(tokens, device=keys.device).expand(*keys.shape, -1)
    order = bits(fold(keys, POSITIONS), (span,)).argsort(dim=-1, stable=True)
    return order[..., :tokens].sort(-1).values


def fixed_positions(tokens: int, span: int, device: torch.device) -> Tensor:
    """The positions that every test of this many tokens has, (tokens,)."""
    key = torch.tensor(stream_seed("test positions", tokens))
    return draw_positions(key, tokens, span).to(device)


def _mixed(x: Tensor) -> Tensor:
    """The mix of 32 bits with the least bias that Wellons found ("lowbias32", 2018)."""
    x = (x ^ _shift(x, 16)) * 2146121005
    x = (x ^ _shift(x, 15)) * -2073254261
    return x ^ _shift(x, 16)


def _shift(x: Tensor, by: int) -> Tensor:
    """x >> by for whole numbers without a sign."""
    return (x >> by) & ((1 << (x.dtype.itemsize * 8 - by)) - 1)
