"""The linear map with a vmap rule of its own: torch's, with gradients that lie as the weights."""

import pytest
import torch
import torch.nn.functional as F
from kernel_cases import beside_others, draw, near, same
from torch import Tensor
from torch.func import vmap

from outlast.kernels.linear import linear, op
from outlast.kernels.row_alignment import empty_aligned, padded_table

pytestmark = pytest.mark.filterwarnings("error")


def inputs(biased: bool) -> list[torch.Tensor]:
    bias = [draw(3, 5, seed=3)] if biased else []
    return [draw(3, 6, 4, seed=1), beside_others(draw(3, 5, 4, seed=2)), *bias]


@pytest.mark.parametrize("axes", [(0, 0, 0), (None, 0, 0), (1, 2, 1), (0, None, None)], ids=str)
@pytest.mark.parametrize("biased", [True, False])
def test_a_stack_is_each_of_it_alone(axes, biased):
    given = [
        (a[0] if axis is None else a.movedim(0, axis)).requires_grad_()
        for a, axis in zip(inputs(biased), axes, strict=False)
    ]
    axes = axes[: len(given)]
    alone = torch.stack(
        [
            F.linear(
                *(a if x is None else a.select(x, row) for a, x in zip(given, axes, strict=True))
            )
            for row in range(3)
        ]
    )
    found = vmap(linear, in_dims=axes)(*given)
    same([found], [alone])
    above = draw(*found.shape, seed=5)
    same(torch.autograd.grad(found, given, above), torch.autograd.grad(alone, given, above))


def test_weight_gradients_lie_as_the_weights_do():
    x, weight, bias = (a.requires_grad_() for a in inputs(True))
    found = torch.autograd.grad(vmap(linear)(x, weight, bias).sum(), (weight, bias))
    assert all(f.is_contiguous() for f in found)


def test_the_ops_keep_torchs_rules_and_second_derivatives():
    x, weight, bias = (a.requires_grad_() for a in inputs(True))
    alone = [a[0].detach().requires_grad_() for a in (x, weight, bias)]
    torch.library.opcheck(torch.ops.outlast.linear.default, alone)
    torch.library.opcheck(torch.ops.outlast.batched_linear.default, (x, weight))
    assert torch.autograd.gradgradcheck(vmap(linear), (x, weight, bias))
    assert torch.equal(linear(*alone), F.linear(*alone))


# ---- rows filled up, and the bias in the product ------------------------------------------------


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Half precision as a GPU has it."""
    monkeypatch.setattr(op, "_half", lambda x: x.dtype.itemsize == 2)


def digits(*shape: int, seed: int) -> Tensor:
    """-1, 0 and 1: products of few of them are exact in half precision."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-1, 2, shape, generator=generator).bfloat16()


def cut_of(values: Tensor) -> Tensor:
    """The same numbers as the first columns of a filled-up table, zeros beside them."""
    cut = empty_aligned(values)
    padded_table(cut).zero_()
    return cut.copy_(values)


OUTS = [1, 7, 8, 12, 1036]


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("out", OUTS)
@pytest.mark.parametrize("bias", ["none", "added", "in the product"])
@pytest.mark.parametrize("cut", [True, False], ids=["cut", "dense"])
def test_filled_up_it_is_the_same(out, bias, cut, monkeypatch):
    monkeypatch.setattr(op, "WIDE", 0 if bias == "in the product" else 1000)
    given = [digits(3, 12, 4, seed=1), digits(3, out, 4, seed=2), digits(3, out, seed=3)]
    given = [g.requires_grad_() for g in given[: 2 if bias == "none" else 3]]
    exact = [g.detach().double().requires_grad_() for g in given]
    found, wanted = vmap(linear)(*given), vmap(F.linear)(*exact)
    assert found.dtype == torch.bfloat16
    same([found], [wanted], 0)
    above = digits(*found.shape, seed=5)
    found = torch.autograd.grad(found, given, cut_of(above) if cut else above)
    same(found, torch.autograd.grad(wanted, exact, above.double()), 0)


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("out", OUTS)
def test_rows_of_a_product_begin_at_whole_16_bytes(out):
    x, weight = digits(3, 12, 4, seed=1), digits(3, out, 4, seed=2)
    wide = -(-out // 8) * 8
    found = torch.ops.outlast.batched_linear(x, weight)
    assert found.stride() == (12 * wide, wide, 1)
    assert not found._is_view()
    table = found.as_strided((3, 12, wide), found.stride())
    assert table[..., out:].eq(0).all()
    stacked = vmap(linear)(x, weight)
    assert stacked.stride() == found.stride()


@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_wide_maps_bias_is_not_added_on_its_own(monkeypatch):
    seen = []
    monkeypatch.setattr(op, "_with_bias", lambda *args: seen.append(args) or args[:2])
    for out in (15, 16):
        vmap(linear)(digits(3, 6, 4, seed=1), digits(3, out, 4, seed=2), digits(3, out, seed=3))
    assert [weight.shape[1] for _, weight, _ in seen] == [16]


@pytest.mark.usefixtures("as_on_a_gpu")
def test_other_types_stay_as_they_are():
    x, weight, bias = (a.float() for a in (draw(3, 6, 4), draw(3, 21, 4), draw(3, 21)))
    found = vmap(linear)(x, weight, bias)
    assert found.is_contiguous()
    assert torch.equal(found, torch.bmm(x, weight.mT) + bias[:, None])


@pytest.mark.usefixtures("as_on_a_gpu")
def test_gradients_of_weights_that_are_cast_lie_as_the_weights_do():
    x = digits(3, 12, 4, seed=1)
    weight, bias = (draw(3, 21, *more).float().requires_grad_() for more in ([4], []))
    above = cut_of(digits(3, 12, 21, seed=5))
    out = vmap(linear)(x, weight.bfloat16(), bias.bfloat16())
    assert all(g.is_contiguous() for g in torch.autograd.grad(out, (weight, bias), above))


@pytest.mark.usefixtures("as_on_a_gpu")
def test_filled_up_the_op_keeps_torchs_rules_and_may_be_changed_in_place():
    x, weight = (digits(3, n, 4, seed=n).requires_grad_() for n in (6, 5))
    torch.library.opcheck(torch.ops.outlast.batched_linear.default, (x, weight))
    out = torch.ops.outlast.batched_linear(x, weight)
    wanted = out.detach().clone().relu()
    assert torch.equal(out.relu_(), wanted)
    found = torch.autograd.grad(out.sum(), (x, weight), create_graph=True)
    assert all(f.requires_grad for f in found)


def test_a_table_is_known_by_its_first_columns():
    table = torch.zeros(2, 6, 16).bfloat16()
    cut = table[..., :12]
    assert padded_table(cut).data_ptr() == table.data_ptr()
    assert padded_table(cut).shape == table.shape
    assert padded_table(cut.view(12, 12)).shape == (12, 16)
    one = table[:1, :, :12].contiguous()
    apart = torch.empty_strided(cut.shape, cut.stride(), dtype=cut.dtype)
    others = [table[..., 2:14], table[..., :7], table[:, :3, :12], table.mT[..., :5], one, apart]
    others += [cut.float(), torch.zeros(2, 6, 16)[..., :12], cut.detach().requires_grad_()]
    assert all(padded_table(other) is other for other in others)


@pytest.mark.gpu
@pytest.mark.parametrize("out", [*OUTS, 44])
def test_on_a_gpu_it_is_the_same(out):
    given = [draw(4, 1024, 8, seed=1), draw(4, out, 8, seed=2), draw(4, out, seed=3)]
    given = [g.bfloat16().cuda().requires_grad_() for g in given]
    exact = [g.detach().double().requires_grad_() for g in given]
    found, wanted = vmap(linear)(*given), vmap(F.linear)(*exact)
    assert not found.is_contiguous() or out % 8 == 0 or out < op.WIDE * 8
    near([found], [wanted.cpu()], 1e-2)
    above = draw(*found.shape, seed=5).bfloat16().cuda()
    found = torch.autograd.grad(found, given, cut_of(above))
    near(found, [w.cpu() for w in torch.autograd.grad(wanted, exact, above.double())], 1e-2)
