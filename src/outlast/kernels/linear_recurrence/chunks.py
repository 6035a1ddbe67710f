"""Tokens cut into chunks, and decay within a chunk.

Inside a chunk a recurrence is a few matmuls. A loop passes the state from chunk to chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

#: the most tokens of a chunk; on a CPU 16 to 64 are about as fast
CHUNK = 32

P = ParamSpec("P")
R = TypeVar("R")


def at_least_single(x: Tensor) -> Tensor:
    """x in float32, or as it is in float64."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


@contextmanager
def _without_autocast() -> Iterator[None]:
    with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        yield


def in_single(function: Callable[P, R]) -> Callable[P, R]:
    """The function with its tensors in float32 at least, and with no matmul lowered by autocast."""

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        raised = [at_least_single(a) if isinstance(a, Tensor) else a for a in args]
        with _without_autocast():
            return function(*raised, **kwargs)  # type: ignore[arg-type]

    return wrapped


def cut(x: Tensor, size: int) -> Tensor:
    """x [..., tokens, d] as [..., chunks, size, d], with zeros after the last token."""
    missing = -x.shape[-2] % size
    if missing:
        x = F.pad(x, (0, 0, 0, missing))
    return x.unflatten(-2, (-1, size))


def join(x: Tensor, tokens: int) -> Tensor:
    """The inverse of `cut`."""
    return x.flatten(-3, -2)[..., :tokens, :]


def chunk_size(tokens: int) -> int:
    """Tokens of a chunk: as few chunks as possible, and then as little padding."""
    chunks = -(-tokens // CHUNK)
    return -(-tokens // max(chunks, 1))


def decay_within(log_decay: Tensor) -> tuple[Tensor, Tensor]:
    """How much is left of the state at the beginning of a chunk, and of each earlier token.

    A difference of two sums over the chunk would be shorter, and loses digits where one decay is
    strong. So each pair of tokens has a sum of its own.

    Args:
        log_decay: [..., size, 1], at most 0.

    Returns:
        [..., size, 1], and [..., size (now), size (then)] with zeros where then is after now.
    """
    steps = log_decay.expand(*log_decay.shape[:-1], log_decay.shape[-2]).tril(-1)
    return log_decay.cumsum(-2).exp(), steps.cumsum(-2).exp().tril()
