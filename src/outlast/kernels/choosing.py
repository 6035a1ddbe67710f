"""Where a fused kernel may run at all; what else it asks for is its own `fits`."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

FLOATS = (torch.float32, torch.bfloat16)


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def can_fuse(*tensors: Tensor) -> bool:
    """Whether these lie on a GPU with Triton, in a type the kernels read (float32 or bfloat16)."""
    return all(t.is_cuda and t.dtype in FLOATS for t in tensors) and _has_triton()
