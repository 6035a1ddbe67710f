"""What is particular to causal attention: the reference by hand, and which path runs on a GPU."""

import pytest
import torch
from torch.func import vmap

from kernel_cases import draw, same
from outlast.kernels.attention import attend, attend_packed
from outlast.kernels.attention.reference import attend as reference
from outlast.kernels.attention.reference import causal_mask

# the interpreter's own
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

ROWS, HEADS, WIDTH = 3, 2, 4
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def qkv(queries: int, keys: int) -> list[torch.Tensor]:
    shapes = [(queries, 1), (keys, 2), (keys, 3)]
    return [draw(ROWS, HEADS, t, WIDTH, seed=s).mul(2) for t, s in shapes]


def test_reference_matches_attention_by_hand():
    q, k, v = (t[0, 0].tolist() for t in qkv(2, 3))
    actual = reference(*qkv(2, 3))[0, 0]
    for row, query in enumerate(q):
        seen = range(3 - 2 + row + 1)
        scores = [sum(a * b for a, b in zip(query, k[j], strict=True)) / WIDTH**0.5 for j in seen]
        weights = torch.tensor(scores, dtype=torch.float64).exp()
        weights /= weights.sum()
        wanted = sum(w * torch.tensor(v[j]) for w, j in zip(weights, seen, strict=True))
        torch.testing.assert_close(actual[row], wanted.double(), atol=1e-6, rtol=1e-6)


def test_mask_shows_the_last_query_every_key_and_the_first_the_cache_and_itself():
    mask = causal_mask(2, 5, torch.device("cpu"))
    assert mask.tolist() == [[True] * 4 + [False], [True] * 5]


@pytest.mark.parametrize("biased", [False, True])
def test_a_later_key_changes_no_earlier_result(biased):
    q, k, v = qkv(5, 5)
    bias = draw(ROWS, HEADS, 5, 5, seed=4) if biased else None
    before = attend(q, k, v, bias)
    k[:, :, 3], v[:, :, 3] = 50, -50
    after = attend(q, k, v, bias)
    assert torch.equal(before[:, :, :3], after[:, :, :3])
    assert not torch.allclose(before[:, :, 3:], after[:, :, 3:])


@pytest.mark.parametrize("shape", [(1, 1, 1, 8), (2, 3, 7, 20), (1, 2, 33, 16)], ids=str)
def test_packed_gradient_is_the_three_gradients_in_one_piece(shape):
    fused = pytest.importorskip("outlast.kernels.attention.triton")
    b, h, t, d = shape
    packed = draw(b, t, 3, h, d, seed=1).to(DEVICE, torch.float32)
    d_out = draw(*shape, seed=2).to(DEVICE, torch.float32)
    whole = fused.backward_packed(d_out, packed)
    assert whole.is_contiguous()
    alone = fused.backward(d_out, *fused.views(packed))
    assert all(torch.equal(a, b) for a, b in zip(fused.views(whole), alone, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(3, 2, 40, 16), (2, 2, 200, 16), (2, 2, 128, 128)], ids=str)
@pytest.mark.parametrize("precision", ["high", "highest"], indirect=True)
def test_on_a_gpu_attend_matches_the_reference_whichever_path_runs(shape, precision):
    b, h, t, d = shape
    packed = draw(b, t, 3, h, d, seed=1).float()
    exact = [e.requires_grad_() for e in packed.double().permute(2, 0, 3, 1, 4).unbind()]
    inputs = [t.detach().requires_grad_() for t in packed.cuda().permute(2, 0, 3, 1, 4)]
    actual, wanted, above = attend(*inputs), reference(*exact), draw(*shape, seed=2)
    same([actual.cpu()], [wanted], 1e-2)
    actual = torch.autograd.grad(actual, inputs, above.cuda().float())
    same([f.cpu() for f in actual], torch.autograd.grad(wanted, exact, above), 2e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [40, 200])
def test_on_a_gpu_a_packed_stack_is_three_views_in_one_piece(tokens, precision):
    packed = draw(3, 2, tokens, 3, 2, 16).cuda().float().requires_grad_()
    actual = vmap(attend_packed)(packed)
    wanted = vmap(attend)(*packed.permute(3, 0, 1, 4, 2, 5))
    assert torch.equal(actual, wanted)
    above = torch.randn_like(actual)
    (one,), (two,) = (torch.autograd.grad(y, packed, above) for y in (actual, wanted))
    torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-6)
    assert one.is_contiguous() or tokens == 200  # where one program takes a whole sequence
