"""The table of ops: one line for each op gives it every test of `test_every_op.py`.

Most ops have several lines, one for each set of arguments that takes another way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any

import op_inputs as make
import torch
import torch.nn.functional as F
from torch import Tensor

from kernel_cases import cut, draw, lstm_inputs, turned
from outlast.kernels.attention.reference import attend as explicit_attention

Shape = tuple[Any, ...]
#: how a tensor lies in memory, by its role: "input", or "gradient 0" of the first output
Layout = Callable[[str, Tensor], Tensor]
F32, F64, BF16, F16 = torch.float32, torch.float64, torch.bfloat16, torch.float16


@dataclass(frozen=True)
class Kernel:
    """The fused path of an op, in Triton's interpreter and on a GPU."""

    folder: str  # in `outlast.kernels`
    asks: tuple[int, ...]  # which tensors `back_end` is asked about
    gpu_shapes: tuple[Shape, ...]  # beside the case's own
    stack: tuple[Shape, torch.dtype]  # what is stacked on a GPU; one seed, or a batch
    weights: tuple[int, ...] = ()  # tensors in a table of weights: float32, gradients sum over rows
    rows: Callable[[Shape], int] = lambda shape: 1  # how many are summed
    layouts: dict[str, Layout] = field(default_factory=lambda: {"dense": lambda role, t: t})
    dtypes: tuple[torch.dtype, ...] = (F32,)  # in the interpreter
    bitwise: bool = True  # whether a seed alone has the bits it has among others
    tolerances: dict[torch.dtype, float] = field(default_factory=lambda: {F32: 1e-5, BF16: 2e-2})

    @property
    def op_module(self) -> ModuleType:
        return import_module(f"outlast.kernels.{self.folder}.op")

    @property
    def module(self) -> ModuleType:
        return import_module(f"outlast.kernels.{self.folder}.triton")


@dataclass(frozen=True)
class OpCase:
    """One op with one set of arguments."""

    op: str
    shapes: tuple[Shape, ...]
    tensors: Callable[..., list[Tensor | None]]  # (*shape, seed): the op's leading arguments
    plain: Callable[..., Any]  # of the same tensors: what the op should give, in torch's operations
    axes: tuple[tuple[int | None, ...], ...]  # for vmap, one for each tensor
    variant: str = ""
    numbers: Callable[[list[Tensor | None]], tuple[Any, ...]] = lambda tensors: ()
    outputs: tuple[int, ...] = (0,)  # which results of the op `plain` gives
    slopes: tuple[int, ...] | None = None  # which of those have a gradient; by default all
    used: tuple[tuple[int, ...], ...] = ()  # subsets of `slopes` that are differentiated, too
    frozen: tuple[int, ...] = ()  # tensors without a gradient
    stack_shapes: tuple[Shape, ...] = ()  # by default the first shape
    dtype: torch.dtype = F64  # in which the op runs without a GPU
    tolerance: float = 1e-9
    first_only: bool = True  # whether second derivatives are refused
    kernel: Kernel | None = None

    def __str__(self) -> str:
        return f"{self.op} {self.variant}".strip()


BIAS_AXES = ((0, 0), (None, 0), (2, 1), (0, None))
POINTWISE = Kernel(
    "pointwise",
    asks=(0, 1),
    gpu_shapes=((4, 7552, 512), (2, 77, 1024)),
    stack=((1, 299, 512), F32),
    weights=(1,),
    rows=lambda shape: shape[1],
)


# ---- norms ---------------------------------------------------------------------------------------

# seeds, two axes of rows, width: rows that fill no tile, several spans, no power of two, one number
NORM_SHAPES = ((2, 3, 5, 8), (1, 1, 1, 1), (3, 1, 130, 4), (2, 2, 3, 144), (1, 3, 1, 600))


def norm_case(
    variant: str,
    added: int = 0,
    *,
    biased: bool = False,
    shift: bool = True,
    added_dtype: torch.dtype | None = None,
    dtypes: tuple[torch.dtype | None, torch.dtype | None] = (None, None),
    used: tuple[tuple[int, ...], ...] = (),
    every_shape: bool = True,
) -> OpCase:
    """`dtypes` are those of the norm and of the norm to keep; that of x and none by default."""
    outputs = (*([0] if added else []), 1, *([2] if dtypes[1] else []))
    eps = 1e-5 if shift else 1e-6  # as the layer norm and the RMS norm of the models have it

    def tensors(*shape: int, seed: int = 0) -> list[Tensor | None]:
        """x far from mean 0 and spread 1; terms of a sum on a grid: it is exact in any dtype."""
        n, d = shape[0], shape[-1]
        x, *more = (draw(*shape, seed=seed + s) for s in (1, 2, 3))
        x, bias = 3 * x + 2, draw(n, d, seed=seed + 4)
        if added:
            x, bias, *more = (t.mul(4).round() / 4 for t in (x, bias, *more))
        more = [t.to(added_dtype or t.dtype) for t in more[:added]]
        scale, moved = draw(n, d, seed=seed + 5), draw(n, d, seed=seed + 6)
        y, z = [*more, None, None][:2]
        return [x, y, z, bias if biased else None, scale, moved if shift else None]

    def plain(x, y, z, bias, scale, moved):
        total = sum((t for t in (y, z) if t is not None), x)
        total = total if bias is None else total + bias[:, None, None]
        scale = scale[:, None, None]
        if moved is None:
            normed = total / (total.pow(2).mean(-1, keepdim=True) + eps).sqrt() * scale
        else:
            normed = F.layer_norm(total, total.shape[-1:], eps=eps) * scale
            normed = normed + moved[:, None, None]
        results = (total, normed, normed)
        return [results[i] for i in outputs]

    return OpCase(
        "stream_norm",
        NORM_SHAPES if every_shape else NORM_SHAPES[:2],
        tensors,
        plain,
        axes=((0,) * 6, (None, 0, 0, 0, 0, 0), (2, 1, 0, 2, 1, 0), (0, 0, 0, None, None, None)),
        variant=variant,
        numbers=lambda given: (eps, dtypes[0] or given[0].dtype, dtypes[1] and given[0].dtype),
        outputs=outputs,
        used=used,
        stack_shapes=((1, 2, 4, 5), (2, 2, 4, 5)),
        tolerance=2e-2 if dtypes[0] else 1e-9,  # the reference adds up gradients in their dtype
        kernel=Kernel(
            "norm",
            asks=(0, 4),
            gpu_shapes=((4, 59, 128, 128 if shift else 256), (2, 3, 77, 1024))
            if every_shape
            else (),
            stack=((1, 9, 33, 128), F32),
            weights=(3, 4, 5),
            rows=lambda shape: shape[1] * shape[2],
            layouts={"dense": lambda role, t: t, "turned": turned_rows},
        ),
    )


def turned_rows(role: str, tensor: Tensor) -> Tensor:
    return turned(tensor) if role in ("input", "gradient 0") else tensor


NORMS = [
    norm_case("layer norm"),
    norm_case("layer norm of a sum", 1, used=((0,), (1,))),
    norm_case("layer norm of three and a bias", 2, biased=True, used=((0,), (1,))),
    norm_case("layer norm of a sum with bfloat16", 2, biased=True, added_dtype=BF16),
    norm_case("layer norm in bfloat16", dtypes=(BF16, None), every_shape=False),
    norm_case("rms norm", shift=False),
    norm_case("rms norm of a sum", 1, shift=False, used=((0,), (1,)), every_shape=False),
    norm_case(
        "rms norm of three and a bias, kept",
        2,
        biased=True,
        shift=False,
        dtypes=(None, F64),
        used=((0,), (1,), (2,), (0, 1), (1, 2)),
    ),
    norm_case(
        "rms norm, kept", shift=False, dtypes=(None, F64), used=((0,), (1,)), every_shape=False
    ),
    norm_case(
        "rms norm of a sum, kept",
        1,
        shift=False,
        dtypes=(None, F64),
        used=((0,), (1,), (2,), (0, 1), (1, 2)),
        every_shape=False,
    ),
    norm_case(
        "rms norm in bfloat16, kept",
        2,
        biased=True,
        shift=False,
        added_dtype=BF16,
        dtypes=(BF16, F64),
    ),
]


HEADS = Kernel(
    "heads",
    asks=(0,),
    gpu_shapes=((64, 512, 4, 64), (4, 77, 2, 128)),
    stack=((5, 33, 4, 64), BF16),
    layouts={"": lambda role, t: turned(t) if role == "gradient 1" else t},
)


# rows, heads, tokens, head width: one token, tokens and widths that fill no tile, more than a tile
SHORT_SHAPES = ((2, 3, 7, 20), (1, 1, 1, 8), (1, 2, 33, 16), (1, 1, 70, 32))


def short_case(name: str, tensors: Any, plain: Any, axes: Any) -> OpCase:
    """Its only path is the kernel, so it runs in float32 and in the interpreter everywhere."""
    kernel = Kernel(
        "attention",
        asks=(),
        gpu_shapes=((9, 4, 128, 32), (300, 4, 59, 32)),
        stack=((3, 2, 40, 16), F32),
        tolerances={F32: 1e-2, BF16: 4e-2, F16: 1e-2},
    )
    return OpCase(
        name, SHORT_SHAPES, tensors, plain, axes, dtype=F32, tolerance=2e-6, kernel=kernel
    )


# ---- the table -----------------------------------------------------------------------------------

CASES: Sequence[OpCase] = [
    # seeds, rows, width: rows that fill no tile, one number, several spans, blocks of columns
    OpCase(
        "bias_gelu",
        ((2, 5, 8), (1, 1, 1), (3, 130, 4), (2, 3, 144)),
        make.bias_tensors,
        lambda z, bias: F.gelu(z + bias[:, None]),
        BIAS_AXES,
        kernel=POINTWISE,
    ),
    OpCase(
        "bias_glu",
        ((2, 5, 8), (1, 1, 2), (3, 130, 4), (2, 3, 288)),
        make.bias_tensors,
        make.glu,
        BIAS_AXES,
        kernel=POINTWISE,
    ),
    *NORMS,
    # batch, tokens, heads, width: tiles not filled, over tokens and rows, no power of two, one pair
    OpCase(
        "normed_heads",
        ((2, 5, 2, 8), (1, 1, 1, 1), (3, 47, 3, 16), (2, 3, 5, 600), (5, 1, 7, 12)),
        make.packed_heads,
        make.normed,
        ((0,), (2,)),
        numbers=lambda given: (1e-6,),
        outputs=(0, 1, 2),
        kernel=HEADS,
    ),
    *(
        OpCase(
            "turned_heads",
            ((2, 5, 2, 8), (1, 1, 1, 2), (4, 47, 3, 16), (2, 3, 5, 600), (6, 1, 7, 12)),
            make.heads_and_angles(shared),
            make.rotated,
            ((0, 0, 0), (2, 0, 0), (0, None, None), (2, None, None)),
            variant="one table of angles" if shared else "a table for two rows",
            outputs=(0, 1, 2),
            frozen=(1, 2),
            kernel=HEADS,
        )
        for shared in (True, False)
    ),
    # seeds, batch, tokens, classes: tokens that fill no tile, several spans, one class, many
    OpCase(
        "part_losses",
        (
            *((2, 3, 7, 11), (1, 1, 1, 1), (2, 5, 130, 4), (2, 2, 9, 700)),
            *((2, 2, 5, classes) for classes in (1, 7, 8, 12, 1036)),
        ),
        make.token_losses,
        make.means_by_part,
        ((0, 0, 0), (3, 0, 1)),
        numbers=lambda given: (make.PARTS, make.IGNORE),
        outputs=(0, 1, 2),
        slopes=(0,),
        kernel=Kernel(
            "loss",
            asks=(0,),
            gpu_shapes=((4, 128, 59, 12), (2, 2, 9, 4096)),
            stack=((1, 16, 33, 12), F32),
            layouts={
                "dense": lambda role, t: t,
                "cut": lambda role, t: cut(t) if role == "input" else t,
                "turned": lambda role, t: turned(t) if role == "input" else t,
            },
            dtypes=(F32, BF16),
            bitwise=False,
            tolerances={F32: 1e-5, BF16: 1e-2},
        ),
    ),
    OpCase(
        "lstm",
        ((7, 3, 5, 2), (1, 1, 1, 1), (4, 2, 16, 2)),
        lstm_inputs,
        make.recurrence,
        (
            (0, 0, 0, 0, 0),
            (None, 0, 0, None, None),  # one input for all
            (0, None, None, 0, 0),  # one set of weights for all
            (2, 1, 1, 1, 0),
        ),
        outputs=(0, 1, 2),
        used=((0, 2), (0,), (1,), (2,)),
    ),
    OpCase(
        "lstm_layer",
        # few steps first: torch's rules are checked on the first shape, and trace every step
        ((3, 2, 5, 6), (7, 3, 5, 6), (1, 1, 1, 1), (4, 2, 16, 16)),
        make.layer_tensors,
        make.layer,
        (
            (0, 0, 0, 0, 0, 0),
            (None, 0, 0, 0, None, None),
            (0, None, None, None, 0, 0),
            (2, 1, 1, 2, 1, 0),
        ),
        outputs=(0, 1, 2),
        used=((0,), (1,), (2,)),
        first_only=False,
    ),
    *(
        OpCase(
            "linear",
            ((6, 4, 5),),
            make.linear_tensors(biased),
            F.linear,
            ((0, 0, 0), (None, 0, 0), (1, 2, 1), (0, None, None)),
            variant="with a bias" if biased else "without a bias",
            first_only=False,
        )
        for biased in (True, False)
    ),
    OpCase(
        "batched_linear",
        ((3, 6, 4, 5),),
        lambda n, rows, k, out, seed=0: [
            draw(n, rows, k, seed=seed + 1),
            draw(n, out, k, seed=seed + 2),
        ],
        lambda x, weight: torch.einsum("nrk,nok->nro", x, weight),
        ((0, 0), (None, 0), (1, 2), (0, None)),
        first_only=False,
    ),
    OpCase(
        "attend",
        tuple((*lengths, bias) for lengths in make.LENGTHS for bias in make.BIASES),
        make.attention_tensors,
        explicit_attention,
        ((0, 0, 0, 0), (0, 0, 0, None), (1, 2, 4, 3), (0, None, None, 0)),
        stack_shapes=tuple((*lengths, bias) for lengths in make.LENGTHS for bias in make.BIASES),
        first_only=False,
    ),
    OpCase(
        "attend_packed",
        ((3, 2, 5, 4),),
        make.packed_qkv,
        make.split_attention,
        ((0,), (2,)),
        first_only=False,
    ),
    short_case("attend_short", make.views_of_one, explicit_attention, ((0, 0, 0), (2, 1, 0))),
    short_case("attend_packed_short", make.packed_qkv, make.split_attention, ((0,), (2,))),
    *(
        OpCase(
            "tra",
            ((),),
            make.tra_tensors(padded),
            make.tra_plain,
            ((0,) * 4 + (None, None), (0, None, None, 0, None, None), (2, 1, 0, 3, None, None)),
            variant="padded" if padded else "",
            numbers=make.tra_numbers,
        )
        for padded in (False, True)
    ),
    # the gates go over in float32
    OpCase(
        "forgetting",
        ((2, 2, 6, 4),),
        make.library_tensors(True),
        make.forgetting,
        ((0, 0, 0, 0),),
        tolerance=1e-4,
    ),
    OpCase(
        "entmax_attend",
        ((2, 2, 6, 4),),
        make.library_tensors(False),
        make.entmax_attention,
        ((0, 0, 0),),
    ),
]
