"""The seam every scheme stands behind: three places where position may enter attention."""

from __future__ import annotations

from torch import Tensor, nn

from outlast.specs import Spec


class Scheme(nn.Module):
    """Base of every scheme; as it stands, it leaves attention without any position.

    `positions` (tokens,) counts from the start of the sequence, cached tokens included.
    `ceiling` is the most tokens it can take; None means no limit. Attention sees to it that no
    position at or past the ceiling is ever asked for.
    """

    spec: Spec
    ceiling: int | None = None

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.width, self.heads = width, heads

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Change the input of q, k and v, (batch, tokens, width)."""
        return x

    def rotate(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Change queries and keys, (batch, heads, tokens, head width), before they are cached."""
        return q, k

    def bias(self, positions: Tensor, keys: int) -> Tensor | None:
        """What is added to the scores of these queries over the first `keys` keys."""
        return None
