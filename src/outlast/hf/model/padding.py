"""Which tokens of a batch are padding, read from an attention mask."""

from __future__ import annotations

from torch import Tensor

from outlast.errors import bad_value
from outlast.hf.model.cache import OutlastCache
from outlast.models.arguments import describe_tensor


def read_padding(
    mask: Tensor | None, batch: int, tokens: int, cache: OutlastCache
) -> tuple[Tensor | None, bool]:
    """How much padding each row has on its left (batch,), and whether any has some on its right.

    None: no row has any on its left.
    """
    if mask is None:
        return None, False
    count = cache.tokens + tokens
    accepted = f"ones and zeros ({batch}, {count}), 0 for padding: the tokens so far and these"
    if not isinstance(mask, Tensor) or mask.shape != (batch, count):
        shape = describe_tensor(mask) if isinstance(mask, Tensor) else type(mask).__name__
        raise bad_value("attention_mask", shape, accepted)
    present = mask != 0
    if present.all():
        return None, False
    if not present.any(1).all():
        raise bad_value("attention_mask", "a row of padding alone", accepted)
    ordered = present.long()
    left = ordered.argmax(1)
    right = ordered.flip(1).argmax(1)
    if (ordered.sum(1) + left + right != count).any():
        raise bad_value("attention_mask", "zeros between ones", accepted)
    if cache.groups:
        known = left.new_zeros(batch)
        for group in cache.groups:
            known[group.rows] = group.padding
        if (known != left).any():
            accepted = f"the padding of the tokens before, {known.tolist()}"
            raise bad_value("attention_mask", f"padding {left.tolist()}", accepted)
    return (left if left.any() else None), bool(right.any())
