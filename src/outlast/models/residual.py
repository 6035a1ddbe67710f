"""The residual stream between two sublayers, and the norms that read it."""

from __future__ import annotations

from torch import Tensor

from outlast.kernels.dispatch import can_fuse
from outlast.mixers.base import Norm, RMSNorm


class ResidualStream:
    """The residual stream: x (batch, tokens, width), and sums that are still pending.

    On a GPU sums wait for the norm that follows: it takes up to two of them, and a bias (width,),
    in its own pass. Elsewhere sums are made at once. `narrow` is x already cast to the matmul
    dtype, if available.
    """

    def __init__(
        self,
        x: Tensor,
        *pending: Tensor,
        bias: Tensor | None = None,
        narrow: Tensor | None = None,
    ) -> None:
        self._x, self._pending, self._bias, self._narrow = x, pending, bias, narrow

    @property
    def x(self) -> Tensor:
        """The whole sum. Pending sums are made now."""
        for y in self._pending:
            self._x = self._x + y
        if self._bias is not None:
            self._x = self._x + self._bias
        self._pending, self._bias = (), None
        return self._x

    @property
    def narrow(self) -> Tensor:
        """x as the input of a matmul."""
        return self.x if self._narrow is None else self._narrow

    @property
    def defers_sums(self) -> bool:
        """Whether sums wait for the next norm."""
        return can_fuse(self._x)

    def plus(self, y: Tensor, bias: Tensor | None = None) -> ResidualStream:
        """This stream and what a sublayer adds to it."""
        if not can_fuse(self._x, y):
            return ResidualStream(self.x + (y if bias is None else y + bias))
        if len(self._pending) == 2:
            return ResidualStream(self.x, y, bias=bias)
        if bias is None or self._bias is None:
            bias = self._bias if bias is None else bias
        else:
            bias = self._bias + bias
        return ResidualStream(self._x, *self._pending, y, bias=bias)

    def normed(self, norm: Norm | RMSNorm) -> Tensor:
        """The norm of the sum, (batch, tokens, width). Pending sums are made in the same pass."""
        if not self._pending:
            return norm(self.x)
        self._x, out = norm.after(self._x, *self._pending, bias=self._bias)
        self._pending, self._bias = (), None
        return out

    def normalised(self, norm: Norm | RMSNorm) -> ResidualStream:
        """A new stream that begins with the norm of this one."""
        if not self._pending:
            x, narrow = norm.instead(self.x)
        else:
            x, narrow = norm.instead(self._x, *self._pending, bias=self._bias)
        return ResidualStream(x, narrow=narrow)
