"""Attention through torch's fused kernel against explicit scores, and its vmap rule."""

import pytest
import torch
from kernel_cases import draw, same
from torch.func import vmap

from outlast.kernels.attention import attend, attend_packed
from outlast.kernels.attention.reference import attend as reference
from outlast.kernels.attention.reference import causal_mask

pytestmark = pytest.mark.filterwarnings("error")

ROWS, HEADS, WIDTH = 3, 2, 4
# queries, keys: a whole sequence, one token, a token after a cache, a chunk after a cache
LENGTHS = [(6, 6), (1, 1), (1, 6), (4, 6), (5, 6)]
lengths = pytest.mark.parametrize(("queries", "keys"), LENGTHS)
biases = pytest.mark.parametrize("biased", ["no bias", "one for all rows", "one for each row"])


def qkv(queries: int, keys: int, *lead: int) -> list[torch.Tensor]:
    shapes = [(queries, 1), (keys, 2), (keys, 3)]
    return [draw(*lead, ROWS, HEADS, t, WIDTH, seed=s).mul(2).requires_grad_() for t, s in shapes]


def a_bias(biased: str, queries: int, keys: int, *lead: int) -> list[torch.Tensor]:
    rows = {"one for all rows": 1, "one for each row": ROWS}.get(biased)
    if rows is None:
        return []
    return [draw(*lead, rows, HEADS, queries, keys, seed=4).requires_grad_()]


def gradients(out: torch.Tensor, inputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad((out * draw(*out.shape, seed=9)).sum(), inputs)


@lengths
@biases
def test_it_is_explicit_attention_gradients_included(queries, keys, biased):
    inputs = [*qkv(queries, keys), *a_bias(biased, queries, keys)]
    found, wanted = attend(*inputs), reference(*inputs)
    same([found], [wanted])
    same(gradients(found, inputs), gradients(wanted, inputs))


def test_the_reference_by_hand():
    q, k, v = (t[0, 0].tolist() for t in qkv(2, 3))
    found = reference(*qkv(2, 3))[0, 0]
    for row, query in enumerate(q):
        seen = range(3 - 2 + row + 1)
        scores = [sum(a * b for a, b in zip(query, k[j], strict=True)) / WIDTH**0.5 for j in seen]
        weights = torch.tensor(scores, dtype=torch.float64).exp()
        weights /= weights.sum()
        wanted = sum(w * torch.tensor(v[j]) for w, j in zip(weights, seen, strict=True))
        torch.testing.assert_close(found[row], wanted.double(), atol=1e-6, rtol=1e-6)


def test_the_last_query_sees_every_key_and_the_first_only_the_cache_and_itself():
    mask = causal_mask(2, 5, torch.device("cpu"))
    assert mask.tolist() == [[True] * 4 + [False], [True] * 5]


def test_a_later_key_changes_nothing_before_it():
    q, k, v = (t.detach() for t in qkv(5, 5))
    bias = a_bias("one for each row", 5, 5)[0].detach()
    for extra in ([], [bias]):
        before = attend(q, k, v, *extra)
        k2, v2 = k.clone(), v.clone()
        k2[:, :, 3], v2[:, :, 3] = 50, -50
        after = attend(q, k2, v2, *extra)
        assert torch.equal(before[:, :, :3], after[:, :, :3])
        assert not torch.allclose(before[:, :, 3:], after[:, :, 3:])


@lengths
@biases
@pytest.mark.parametrize("stacked_bias", [True, False])
def test_a_stack_is_each_of_it_alone(queries, keys, biased, stacked_bias):
    size = 3
    inputs = qkv(queries, keys, size)
    bias = a_bias(biased, queries, keys, *([size] if stacked_bias else []))
    axes = (0, 0, 0, *([0 if stacked_bias else None] * len(bias)))
    inputs += bias
    found = vmap(attend, in_dims=axes)(*inputs)
    alone = torch.stack(
        [
            reference(
                *(a if axis is None else a[row] for a, axis in zip(inputs, axes, strict=True))
            )
            for row in range(size)
        ]
    )
    same([found], [alone])
    same(gradients(found, inputs), gradients(alone, inputs))


def test_the_axis_of_the_stack_may_lie_anywhere():
    inputs = [*qkv(4, 5, 3), *a_bias("one for all rows", 4, 5, 3)]
    axes = (1, 2, 4, 3)
    moved = [t.movedim(0, axis) for t, axis in zip(inputs, axes, strict=True)]
    found = vmap(attend, in_dims=axes)(*moved)
    same([found], [torch.stack([reference(*(t[row] for t in inputs)) for row in range(3)])])


def test_stacked_queries_may_share_keys_and_values():
    q, k, v = qkv(4, 4, 3)
    k, v = k[0], v[0]
    found = vmap(attend, in_dims=(0, None, None))(q, k, v)
    same([found], [torch.stack([reference(one, k, v) for one in q])])


def test_the_op_keeps_torchs_rules():
    for queries, bias in ((5, None), (3, a_bias("one for all rows", 3, 5)[0])):
        torch.library.opcheck(torch.ops.outlast.attend.default, (*qkv(queries, 5), bias))


@pytest.mark.parametrize("axis", [0, 2])
def test_packed_is_attention_on_its_parts_alone_and_in_a_stack(axis):
    packed = draw(2, ROWS, 5, 3, HEADS, WIDTH).requires_grad_()
    found = vmap(attend_packed, in_dims=axis)(packed.movedim(0, axis))
    alone = [reference(*one.permute(2, 0, 3, 1, 4)) for one in packed]
    same([found], [torch.stack(alone)])
    same(gradients(found, [packed]), gradients(torch.stack(alone), [packed]))
    same([attend_packed(packed[0])], alone[:1])
