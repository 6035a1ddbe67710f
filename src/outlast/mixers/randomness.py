"""Random numbers inside a model, without a generator: a hash of a key and of the place.

A training pass has a *key*, one whole number for each seed and step. All randomness is a pure
function of the key, the sublayer, and the place in the table. So there is no state to save. A seed
has the same numbers alone and among others (under vmap), on a CPU and on a GPU. A backward pass
that computes something again draws what the forward pass drew. A pass without a key, as in every
test, drops nothing.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from outlast.errors import require
from outlast.streams import stream_seed

#: what `fold_in` takes for these; sublayers are counted from 0
EMBEDDING, POSITIONS, SEQUENCES, STATES, WINDOW, SHUFFLE, MIX = -1, -2, -3, -4, -5, -6, -7


def check_dropout(dropout: float) -> float:
    """Refuse a share that cannot be dropped."""
    require(0 <= dropout < 1, "dropout", dropout, "a share from 0 to below 1")
    return dropout


def fold_in(key: Tensor, *numbers: int | Tensor) -> Tensor:
    """A new key from a key and numbers, such as a sublayer or rows; all of them broadcast.

    It applies the finaliser of SplitMix64 (Steele et al., 2014) after each number.
    """
    for number in numbers:
        x = (key + number) * -7046029254386353131  # 2^64 over the golden ratio, odd
        x = (x ^ _shift(x, 30)) * -4658895280553007687
        x = (x ^ _shift(x, 27)) * -7723592293110705685
        key = x ^ _shift(x, 31)
    return key


def random_bits(key: Tensor, shape: tuple[int, ...], first: int = 0) -> Tensor:
    """Random whole numbers below 2^31, int32 of `shape`.

    `first` is the index at which the axis before the last begins in a larger table. So rows have
    the same numbers together and in blocks.
    """
    *rows, columns = shape
    for axis, size in enumerate(rows):
        start = first if axis == len(rows) - 1 else 0
        key = fold_in(key[..., None], torch.arange(start, start + size, device=key.device))
    # the last axis is the longest: it takes half the memory in 32 bits
    low = _shift(fold_in(key, 0), 32).to(torch.int32)[..., None]
    column = torch.arange(columns, device=key.device, dtype=torch.int32)
    return _mixed(low ^ _mixed(column + 1)) & 0x7FFFFFFF


def drop(x: Tensor, share: float, key: Tensor | None, first: int = 0) -> Tensor:
    """x with a share of its numbers set to 0, the rest divided by 1 - share; x without a key."""
    if key is None or not share:
        return x
    dropped = random_bits(key, tuple(x.shape), first) < round(share * 2**31)
    return x.masked_fill(dropped, 0) / (1 - share)


def within(bits: Tensor, share: Tensor | float) -> Tensor:
    """Whether each of `random_bits` is in a share of them: none at 0, all at 1."""
    # 23 bits, which a float32 holds exactly
    return (bits >> 8) < share * 2**23


def draw_true(key: Tensor, share: Tensor | float, count: int) -> Tensor:
    """For each of `count` rows, True with the probability `share`, (count,)."""
    return within(random_bits(key, (count,)), share)


def draw_normal(key: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Numbers of a standard normal distribution, float32 of `shape` (Box & Muller, 1958)."""
    first, second = (
        ((random_bits(fold_in(key, number), shape) >> 8) + 0.5) / 2**23 for number in (0, 1)
    )
    return (-2 * first.log()).sqrt() * (2 * math.pi * second).cos()


def draw_positions(keys: Tensor, tokens: int, span: int) -> Tensor:
    """Positions below `span` drawn for each key (...), increasing, (..., tokens).

    Every subset is equally likely. With no more positions than tokens they are 0 to tokens - 1.
    """
    if span <= tokens:
        return torch.arange(tokens, device=keys.device).expand(*keys.shape, -1)
    order = random_bits(fold_in(keys, POSITIONS), (span,)).argsort(dim=-1, stable=True)
    return order[..., :tokens].sort(-1).values


def fixed_positions(tokens: int, span: int, device: torch.device) -> Tensor:
    """The positions of every test with this many tokens, (tokens,)."""
    key = torch.tensor(stream_seed("test positions", tokens))
    return draw_positions(key, tokens, span).to(device)


def _mixed(x: Tensor) -> Tensor:
    """The 32-bit hash with the least bias that Wellons found ("lowbias32", 2018)."""
    x = (x ^ _shift(x, 16)) * 2146121005
    x = (x ^ _shift(x, 15)) * -2073254261
    return x ^ _shift(x, 16)


def _shift(x: Tensor, by: int) -> Tensor:
    """x >> by, with x as a whole number without a sign."""
    return (x >> by) & ((1 << (x.dtype.itemsize * 8 - by)) - 1)
