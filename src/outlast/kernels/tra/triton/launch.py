"""What every launch needs: tensors the kernels can read, and the numbers in their units."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from outlast.kernels.tra.setting import (
    BOUNDED_GATE,
    LOWEST_GATE,
    WIDEST_PIVOT,
    WIDEST_PIVOT_HALF,
    Setting,
)
from outlast.kernels.tra.tables import Arithmetic, Pass, tiles

LOG2E = math.log2(math.e)
#: bytes of keys and values that should stay in the second-level cache
CACHED = 24e6
ALIGNED = 16

Options = dict[str, Any]


def interpreted() -> bool:
    """Whether Triton runs its kernels in Python, on any device."""
    return bool(triton.knobs.runtime.interpret)


@cache
def capability(device: torch.device) -> int:
    """The first number of a GPU's compute capability; to ask torch for it takes a while."""
    return torch.cuda.get_device_capability(device)[0]


def _strides(tensor: Tensor) -> list[int]:
    """The strides, with an axis of one entry given one that would be right for more."""
    wanted = tensor.numel()
    strides = []
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        wanted //= size
        strides.append(wanted if size == 1 else stride)
    return strides


def rows_of(tensor: Tensor, size: int) -> TensorDescriptor:
    """A contiguous tensor, read as `size` entries of its last axis."""
    return TensorDescriptor.from_tensor(tensor, [1, 1, size])


@dataclass(frozen=True)
class Call:
    """One call of the op, as the kernels want it."""

    q: Tensor
    k: Tensor
    v: Tensor
    gate: Tensor
    start: Tensor
    stop: Tensor
    padded: bool
    how: Setting

    @classmethod
    def of(
        cls,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        gate: Tensor,
        start: Tensor | None,
        stop: Tensor | None,
        how: Setting,
    ) -> Call:
        """Copy what cannot be read as it lies."""
        q, k, v = (cls.readable(t) for t in (q, k, v))
        gate = gate.contiguous()
        if start is None or stop is None:
            return cls(q, k, v, gate, gate, gate, False, how)
        return cls(q, k, v, gate, start.contiguous(), stop.contiguous(), True, how)

    @staticmethod
    def readable(tensor: Tensor) -> Tensor:
        """The tensor, copied if a descriptor cannot hold its strides or its address."""
        strides = _strides(tensor)
        bytes_apart = [s * tensor.element_size() for s in strides[:-1]]
        fits = strides[-1] == 1 and all(b > 0 and b % ALIGNED == 0 for b in bytes_apart)
        return (
            tensor
            if fits and tensor.data_ptr() % ALIGNED == 0
            else tensor.clone(memory_format=torch.contiguous_format)
        )

    def tiled(self, tensor: Tensor, rows: int) -> TensorDescriptor:
        """The tensor, read as blocks of so many rows of one head; zeros outside of it."""
        shape = [1, 1, rows, self.width]
        return TensorDescriptor(tensor, list(tensor.shape), _strides(tensor), shape)

    @staticmethod
    def strides(tensor: Tensor) -> tuple[int, ...]:
        """Of batch, head and row, for what is read by pointers."""
        return tuple(_strides(tensor)[:3])

    @property
    def rows(self) -> int:
        """Query heads of the whole batch."""
        return self.q.shape[0] * self.q.shape[1]

    @property
    def heads(self) -> int:
        """Query heads of one row of the batch."""
        return self.q.shape[1]

    @property
    def groups(self) -> int:
        """Query heads that share a key head."""
        return self.q.shape[1] // self.k.shape[1]

    @property
    def queries(self) -> int:
        """Queries of a head."""
        return self.q.shape[2]

    @property
    def keys(self) -> int:
        """Keys of a head."""
        return self.k.shape[2]

    @property
    def width(self) -> int:
        """The head width, filled up to a power of two."""
        return 1 << (self.q.shape[3] - 1).bit_length()

    @property
    def half(self) -> bool:
        """Whether weights are rounded to float16, whose range is small."""
        return self.q.dtype == torch.float16

    @property
    def fixed(self) -> bool:
        """Whether the scores are bounded well enough for a softmax around a fixed pivot."""
        if self.half and self.how.threshold < 0:
            return False
        return 0 < self.how.bound <= (WIDEST_PIVOT_HALF if self.half else WIDEST_PIVOT)

    @property
    def early(self) -> bool:
        """Whether reading may stop before the first key."""
        return self.fixed and self.how.tolerance > 0

    @property
    def scale(self) -> float:
        """Of a raw score, in powers of two."""
        return self.how.scale * LOG2E

    @property
    def level(self) -> float:
        """What a raw score must be above."""
        return self.how.threshold / self.how.scale

    @property
    def bound(self) -> float:
        """The largest logit, in powers of two."""
        return self.how.bound * LOG2E

    @property
    def pivot(self) -> float:
        """What weights are relative to; in the middle where the type's range is small."""
        return self.bound / 2 if self.half else self.bound

    @property
    def tolerance(self) -> float:
        """How many powers of two below the row's total the rest must lie."""
        return -math.log2(self.how.tolerance) if self.early else 0.0

    @property
    def lowest(self) -> float:
        """What a gate is raised to."""
        return BOUNDED_GATE if self.fixed else LOWEST_GATE

    @property
    def arithmetic(self) -> Arithmetic:
        """How numbers are multiplied."""
        if self.q.dtype != torch.float32:
            return "half"
        return "exact" if torch.get_float32_matmul_precision() == "highest" else "tf32"

    def together(self, rows: int) -> int:
        """How many heads to take side by side: a divisor of `rows`, its keys in the cache."""
        each = self.keys * self.width * 2 * self.q.element_size()
        heads = 1
        while rows % (2 * heads) == 0 and 2 * heads * each <= CACHED:
            heads *= 2
        return heads

    def options(self, which: Pass) -> Options:
        """The compile-time choices of one pass."""
        chosen = tiles(which, self.arithmetic, self.width, self.early)
        hopper = self.q.is_cuda and capability(self.q.device) >= 9
        return {
            "D": self.q.shape[3],
            "WIDTH": self.width,
            "BLOCK_M": chosen.queries,
            "BLOCK_N": chosen.keys,
            "PADDED": int(self.padded),
            "FIXED": int(self.fixed),
            "LEVEL": int(self.how.threshold != 0),
            "SPARSE": int(self.how.sparse),
            "PACKED": int(hopper and not interpreted()),
            "PRECISION": "tf32x3" if self.arithmetic == "exact" else "tf32",
            "num_warps": chosen.warps,
            "num_stages": chosen.stages,
            "maxnreg": chosen.registers,
        }
