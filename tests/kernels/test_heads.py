"""What is particular to QK-norm and rotation out of a packed projection."""

import pytest
import torch
from torch.func import vmap

from kernel_cases import draw, same
from outlast.kernels.heads import normed_heads, reference, turned_heads
from outlast.kernels.heads.op import back_end

# batch, tokens, heads, width
SHAPES = [(2, 5, 2, 8), (1, 1, 1, 2), (4, 47, 3, 16), (2, 3, 5, 600), (6, 1, 7, 12)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_without_gpu_the_functions_match_their_ops(shape):
    b, t, h, d = shape
    packed, angles = 3 * draw(b, t, 3, h, d), draw(t, d // 2, seed=1)
    cos, sin = angles.cos(), angles.sin()
    assert back_end(packed) is reference
    same(normed_heads(packed, 1e-6), torch.ops.outlast.normed_heads(packed, 1e-6))
    wanted = torch.ops.outlast.turned_heads(packed, cos[None], sin[None])
    same(turned_heads(packed, cos, sin), wanted)
    if b % 2 == 0:  # a table of angles for every two rows
        tables = torch.stack([cos, sin]).expand(b // 2, 2, t, d // 2).mul(draw(b // 2, 1, 1, 1))
        tables = tables.unbind(1)
        wanted = torch.ops.outlast.turned_heads(packed, *tables)
        same(reference.plain_turned(packed, *tables), wanted)


def test_without_gpu_every_derivative_exists():
    packed = 3 * draw(2, 2, 3, 1, 3)
    assert torch.autograd.gradgradcheck(normed_heads, packed.requires_grad_())


@pytest.mark.gpu
def test_on_a_gpu_attention_reads_the_heads_without_a_copy():
    from outlast.kernels.tra.triton.launch import Call

    packed = draw(3, 5, 33, 3, 4, 64).to("cuda", torch.bfloat16)
    angles = draw(33, 32, seed=5).to("cuda", torch.float32)
    cos, sin = angles.cos(), angles.sin()
    for function in (normed_heads, lambda piece: turned_heads(piece, cos, sin)):
        heads = vmap(function)(packed)
        assert all(Call.readable(f.flatten(0, 1)).data_ptr() == f.data_ptr() for f in heads)
        for row in range(3):
            alone = function(packed[row])
            assert all(torch.equal(a, b[row]) for a, b in zip(alone, heads, strict=True))
