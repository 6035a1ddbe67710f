"""What every op asks before it picks a path: can a fused kernel run, and in which dtype.

Each kernel's own limits are in its `fits`.
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
    """Whether all tensors are on a GPU with Triton, in a dtype the kernels read.

    Those are float32 and bfloat16.
    """
    return all(t.is_cuda and t.dtype in FLOATS for t in tensors) and has_triton()


def hides_numbers(tensor: Tensor) -> bool:
    """Whether nobody can look at the numbers now: below vmap, or where torch compiles."""
    return torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def matmul_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which a matmul of x is computed: autocast's if it is on, else that of x."""
    kind = x.device.type
    casts = torch.is_autocast_enabled(kind) and x.dtype != torch.float64
    return torch.get_autocast_dtype(kind) if casts else x.dtype
