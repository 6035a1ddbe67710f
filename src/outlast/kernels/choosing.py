"""What the kernels ask before they run: whether they may at all, and in which type.

What else a kernel asks for is its own `fits`.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

FLOATS = (torch.float32, torch.bfloat16)


@cache
def has_triton() -> bool:
    """Whether the fused kernels can be compiled at all."""
    return find_spec("triton") is not None


def can_fuse(*tensors: Tensor) -> bool:
    """Whether these lie on a GPU with Triton, in a type the kernels read (float32 or bfloat16)."""
    return all(t.is_cuda and t.dtype in FLOATS for t in tensors) and has_triton()


def product_type(x: Tensor) -> torch.dtype:
    """What a product of x is computed in: autocast's type where that is on, else that of x."""
    kind = x.device.type
    casts = torch.is_autocast_enabled(kind) and x.dtype != torch.float64
    return torch.get_autocast_dtype(kind) if casts else x.dtype
