"""What is particular to layer norm and RMS norm on a residual stream."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from kernel_cases import draw, same
from outlast.kernels.norm import add_norm, norm, reference, rms
from outlast.kernels.norm.op import back_end

EPS = 1e-5


def inputs(*shape: int) -> list[Tensor]:
    """x, scale and shift; x far from mean 0 and spread 1."""
    lead, d = shape[:-3], shape[-1]
    return [3 * draw(*shape, seed=1) + 2, draw(*lead, d, seed=2), draw(*lead, d, seed=3)]


def on_gpu(*shape: int) -> list[Tensor]:
    return [a.to("cuda", torch.float32).requires_grad_() for a in inputs(*shape)]


def rms_formula(x: Tensor, scale: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * scale


# ---- without a GPU these are torch's own operations ----------------------------------------------


def test_without_gpu_layer_norm_is_torchs_to_the_bit():
    x, scale, shift = (a.float() for a in inputs(2, 3, 8))
    wanted = torch.addcmul(shift, F.layer_norm(x, (8,), eps=EPS), scale)
    assert torch.equal(norm(x, scale, shift, EPS), wanted)
    assert torch.equal(norm(x[0, 0], scale, shift, EPS), wanted[0, 0])
    assert back_end(x, scale) is reference
    assert torch.autograd.gradgradcheck(norm, [a.requires_grad_() for a in inputs(2, 2, 3)])


def test_without_gpu_a_sum_and_its_norm_are_torchs_to_the_bit():
    x, scale, shift = (a.float() for a in inputs(2, 3, 8))
    y = draw(*x.shape, seed=8).float()
    total, normed = add_norm(x, y, scale, shift, EPS)
    assert torch.equal(total, x + y)
    assert torch.equal(normed, norm(x + y, scale, shift, EPS))
    total, normed = add_norm(x, y, scale, shift, EPS, y, shift)
    assert torch.equal(total, x + y + y + shift)
    assert torch.equal(normed, norm(total, scale, shift, EPS))


def test_without_gpu_rms_norm_is_the_formula_to_the_bit():
    x, scale, bias = (a.float() for a in inputs(2, 3, 8))
    y, z = (draw(*x.shape, seed=s).float() for s in (4, 5))
    total = x + y + z + bias
    wanted = rms_formula(total, scale)
    actual = rms(x, scale, EPS, (y, z), bias, keep=True)
    assert all(torch.equal(f, w) for f, w in zip(actual, (total, wanted, wanted), strict=True))
    assert torch.equal(rms(x + bias, scale, EPS)[1], rms(x, scale, EPS, bias=bias)[1])
    x, scale, _ = (a.requires_grad_() for a in inputs(2, 2, 3))
    assert torch.autograd.gradgradcheck(lambda x, scale: rms(x, scale)[1], (x, scale))


def test_without_gpu_gradients_may_be_taken_inside_a_stack():
    def one(*piece):
        return torch.func.grad(lambda *a: norm(*a, EPS).pow(3).sum(), (0, 1, 2))(*piece)

    stacked = inputs(3, 2, 4, 5)
    alone = zip(*(one(*row) for row in zip(*stacked, strict=True)), strict=True)
    same(vmap(one)(*stacked), [torch.stack(parts) for parts in alone], 1e-8)


# ---- on a GPU ------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_on_a_gpu_under_autocast_layer_norm_has_the_dtype_of_the_matmuls():
    x, scale, shift = on_gpu(9, 33, 128)
    with torch.autocast("cuda", torch.bfloat16):
        actual = norm(x, scale, shift)
        total, normed = add_norm(x, actual, scale, shift)
        more, _ = add_norm(x, actual, scale, shift, z=actual)
    assert actual.dtype == normed.dtype == torch.bfloat16
    assert total.dtype == more.dtype == torch.float32
    same([more], [x + 2 * actual.float()], 1e-6)
    same([actual.float()], [norm(x, scale, shift)], 2e-2)
    grads = torch.autograd.grad(normed.float().pow(2).sum() + total.sum(), (x, scale, shift))
    assert all(g.dtype == torch.float32 and g.isfinite().all() for g in grads)


@pytest.mark.gpu
def test_on_a_gpu_under_autocast_rms_norm_is_kept_in_the_dtype_of_the_stream_too():
    x, scale, bias = on_gpu(9, 33, 256)
    y = draw(9, 33, 256, seed=4).to("cuda", torch.float32).requires_grad_()
    wanted = rms_formula(x + y + bias, scale)
    with torch.autocast("cuda", torch.bfloat16):
        total, normed, kept = rms(x, scale, EPS, (y.bfloat16(),), bias, keep=True)
    assert [t.dtype for t in (total, normed, kept)] == [x.dtype, torch.bfloat16, x.dtype]
    assert torch.equal(kept.bfloat16(), normed)
    same([kept], [wanted], 2e-2)
    leaves = (x, y, bias, scale)
    actual = torch.autograd.grad(normed.float().sum() + kept.sum(), leaves)
    for one, two in zip(actual, torch.autograd.grad(2 * wanted.sum(), leaves), strict=True):
        assert (one - two).norm() < 3e-2 * two.norm()


@pytest.mark.gpu
def test_on_a_gpu_it_can_be_captured():
    x, y = (draw(4, 59, 128, seed=s).float().cuda() for s in (1, 2))
    scale, shift = torch.ones(128, device="cuda"), torch.zeros(128, device="cuda")
    wanted = add_norm(x, y, scale, shift)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        actual = add_norm(x, y, scale, shift)
    graph.replay()
    assert all(torch.equal(f, w) for f, w in zip(actual, wanted, strict=True))


@pytest.mark.gpu
def test_on_a_gpu_a_stack_of_norms_is_each_alone_to_the_bit():
    x, scale, shift = (a.detach() for a in on_gpu(3, 9, 33, 128))
    assert back_end(x, scale) is not reference
    assert back_end(x.double(), scale) is reference
    layer, root = vmap(norm)(x, scale, shift), vmap(lambda *piece: rms(*piece)[1])(x, scale)
    for row in range(3):
        piece = x[row], scale[row], shift[row]
        assert torch.equal(norm(*piece), layer[row])
        assert torch.equal(rms(*piece[:2])[1], root[row])
        total, normed = add_norm(layer[row], *piece)
        assert torch.equal(total, layer[row] + x[row])
        assert torch.equal(normed, norm(total, *piece[1:]))
