"""What is particular to the linear map: how its results and gradients lie in memory."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from kernel_cases import beside_others, draw, near, same
from outlast.kernels.linear import linear, op
from outlast.kernels.row_alignment import empty_aligned, padded_table

pytestmark = pytest.mark.filterwarnings("error")


def inputs() -> list[Tensor]:
    return [draw(3, 6, 4, seed=1), beside_others(draw(3, 5, 4, seed=2)), draw(3, 5, seed=3)]


def test_weight_gradients_lie_as_the_weights_do():
    x, weight, bias = (a.requires_grad_() for a in inputs())
    gradients = torch.autograd.grad(vmap(linear)(x, weight, bias).sum(), (weight, bias))
    assert all(g.is_contiguous() for g in gradients)


def test_second_derivatives_exist_and_one_seed_is_torchs_to_the_bit():
    x, weight, bias = (a.requires_grad_() for a in inputs())
    assert torch.autograd.gradgradcheck(vmap(linear), (x, weight, bias))
    alone = [a[0] for a in (x, weight, bias)]
    assert torch.equal(linear(*alone), F.linear(*alone))


# ---- padded rows, and the bias in the matmul -----------------------------------------------------


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Half precision as a GPU has it."""
    monkeypatch.setattr(op, "_half", lambda x: x.dtype.itemsize == 2)


def digits(*shape: int, seed: int) -> Tensor:
    """-1, 0 and 1: matmuls of few of them are exact in half precision."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-1, 2, shape, generator=generator).bfloat16()


def padded(values: Tensor) -> Tensor:
    """The same numbers as the first columns of a padded table, zeros beside them."""
    view = empty_aligned(values)
    padded_table(view).zero_()
    return view.copy_(values)


OUTS = [1, 7, 8, 12, 1036]


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("out", OUTS)
@pytest.mark.parametrize("bias", ["none", "added", "in the matmul"])
@pytest.mark.parametrize("cut", [True, False], ids=["cut", "dense"])
def test_padded_rows_give_the_same_numbers(out, bias, cut, monkeypatch):
    monkeypatch.setattr(op, "WIDE", 0 if bias == "in the matmul" else 1000)
    arguments = [digits(3, 12, 4, seed=1), digits(3, out, 4, seed=2), digits(3, out, seed=3)]
    arguments = [g.requires_grad_() for g in arguments[: 2 if bias == "none" else 3]]
    exact = [g.detach().double().requires_grad_() for g in arguments]
    actual, wanted = vmap(linear)(*arguments), vmap(F.linear)(*exact)
    assert actual.dtype == torch.bfloat16
    same([actual], [wanted], 0)
    above = digits(*actual.shape, seed=5)
    actual = torch.autograd.grad(actual, arguments, padded(above) if cut else above)
    same(actual, torch.autograd.grad(wanted, exact, above.double()), 0)


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("out", OUTS)
def test_rows_begin_at_multiples_of_16_bytes(out):
    x, weight = digits(3, 12, 4, seed=1), digits(3, out, 4, seed=2)
    wide = -(-out // 8) * 8
    actual = torch.ops.outlast.batched_linear(x, weight)
    assert actual.stride() == (12 * wide, wide, 1)
    assert not actual._is_view()
    table = actual.as_strided((3, 12, wide), actual.stride())
    assert table[..., out:].eq(0).all()
    stacked = vmap(linear)(x, weight)
    assert stacked.stride() == actual.stride()


@pytest.mark.usefixtures("as_on_a_gpu")
def test_bias_of_a_wide_map_goes_through_the_matmul(monkeypatch):
    seen = []
    monkeypatch.setattr(op, "_with_bias", lambda *args: seen.append(args) or args[:2])
    for out in (15, 16):
        vmap(linear)(digits(3, 6, 4, seed=1), digits(3, out, 4, seed=2), digits(3, out, seed=3))
    assert [weight.shape[1] for _, weight, _ in seen] == [16]


@pytest.mark.usefixtures("as_on_a_gpu")
def test_float32_is_not_padded():
    x, weight, bias = (a.float() for a in (draw(3, 6, 4), draw(3, 21, 4), draw(3, 21)))
    actual = vmap(linear)(x, weight, bias)
    assert actual.is_contiguous()
    assert torch.equal(actual, torch.bmm(x, weight.mT) + bias[:, None])


@pytest.mark.usefixtures("as_on_a_gpu")
def test_gradients_of_cast_weights_lie_as_the_weights_do():
    x = digits(3, 12, 4, seed=1)
    weight, bias = (draw(3, 21, *more).float().requires_grad_() for more in ([4], []))
    above = padded(digits(3, 12, 21, seed=5))
    out = vmap(linear)(x, weight.bfloat16(), bias.bfloat16())
    assert all(g.is_contiguous() for g in torch.autograd.grad(out, (weight, bias), above))


@pytest.mark.usefixtures("as_on_a_gpu")
def test_padded_op_keeps_torch_rules_and_may_be_changed_in_place():
    x, weight = (digits(3, n, 4, seed=n).requires_grad_() for n in (6, 5))
    torch.library.opcheck(torch.ops.outlast.batched_linear.default, (x, weight))
    out = torch.ops.outlast.batched_linear(x, weight)
    wanted = out.detach().clone().relu()
    assert torch.equal(out.relu_(), wanted)
    actual = torch.autograd.grad(out.sum(), (x, weight), create_graph=True)
    assert all(f.requires_grad for f in actual)


def test_padded_table_is_found_from_its_first_columns_alone():
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
def test_on_a_gpu_padded_rows_give_the_same_numbers(out):
    arguments = [draw(4, 1024, 8, seed=1), draw(4, out, 8, seed=2), draw(4, out, seed=3)]
    arguments = [g.bfloat16().cuda().requires_grad_() for g in arguments]
    exact = [g.detach().double().requires_grad_() for g in arguments]
    actual, wanted = vmap(linear)(*arguments), vmap(F.linear)(*exact)
    assert not actual.is_contiguous() or out % 8 == 0 or out < op.WIDE * 8
    near([actual], [wanted.cpu()], 1e-2)
    above = draw(*actual.shape, seed=5).bfloat16().cuda()
    actual = torch.autograd.grad(actual, arguments, padded(above))
    near(actual, [w.cpu() for w in torch.autograd.grad(wanted, exact, above.double())], 1e-2)
