"""Attention and each scheme by its formula."""

import math

import pytest
import torch

from outlast.mixers.base import Context
from outlast.registry import mixers, schemes, weightings
from small_attention import close, randn

ROWS, TOKENS, WIDTH, HEADS = 2, 6, 8, 2
POSITIONS = torch.arange(TOKENS)


def attention(spec: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return mixers.build(spec, width=WIDTH).double()


def explicit(layer, x, embed=0.0, turn=lambda q, k: (q, k), bias=0.0) -> torch.Tensor:
    """Multi-head attention one head at a time, with position wherever a scheme puts it."""
    q, k, v = ((x + embed) @ layer.qkv.weight.T).chunk(3, -1)
    size = WIDTH // layer.heads
    heads = []
    for head in range(layer.heads):
        part = slice(head * size, (head + 1) * size)
        qh, kh = turn(q[..., part], k[..., part])
        scores = qh @ kh.mT / size**0.5 + (bias[head] if torch.is_tensor(bias) else bias)
        future = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
        heads.append(scores.masked_fill(future, -torch.inf).softmax(-1) @ v[..., part])
    return torch.cat(heads, -1) @ layer.out.weight.T + layer.out.bias


def test_nope_is_plain_attention_without_input_biases():
    layer, x = attention("attention(heads=2)"), randn(ROWS, TOKENS, WIDTH)
    assert layer.qkv.bias is None
    close(layer(x)[0], explicit(layer, x), 1e-6)


def test_rope_turns_pair_i_by_position_times_its_speed():
    layer, x = attention("attention(rope(base=100), heads=2)"), randn(ROWS, TOKENS, WIDTH)

    def turned(part):
        pairs = torch.complex(part[..., :2], part[..., 2:])  # the halves of a head of width 4
        angle = POSITIONS[:, None].double() * torch.tensor([1.0, 100**-0.5])
        moved = pairs * torch.polar(torch.ones_like(angle), angle)
        return torch.cat([moved.real, moved.imag], -1)

    close(layer(x)[0], explicit(layer, x, turn=lambda q, k: (turned(q), turned(k))), 1e-6)


def test_rope_scores_depend_on_the_distance_alone():
    scheme = schemes.build("rope", width=WIDTH, heads=HEADS)
    q, k = randn(1, HEADS, 1, 4), randn(1, HEADS, 1, 4, seed=1)

    def score(at: int, to: int) -> torch.Tensor:
        turned, _ = scheme.rotate(q, k, torch.tensor([at]))
        _, other = scheme.rotate(q, k, torch.tensor([to]))
        return (turned * other).sum(-1)

    close(score(9, 4), score(105, 100), 1e-5)
    assert not torch.allclose(score(9, 4), score(9, 5))


def test_alibi_falls_with_distance_at_a_slope_for_each_head():
    layer, x = attention("attention(alibi, heads=2)"), randn(ROWS, TOKENS, WIDTH)
    distance = (POSITIONS[:, None] - POSITIONS).double()
    bias = torch.stack([-slope * distance for slope in (2**-4, 2**-8)])
    close(layer(x)[0], explicit(layer, x, bias=bias), 1e-6)


def test_alibi_slopes_are_those_of_the_paper():
    scheme = schemes.build("alibi", width=WIDTH, heads=8)
    slopes = -scheme.bias(torch.tensor([1]), torch.arange(2))[0, :, 0, 0]
    close(slopes, torch.tensor([2.0**-h for h in range(1, 9)]))


def test_sinusoidal_adds_sines_and_cosines_of_the_position():
    layer, x = attention("attention(sinusoidal, heads=2)"), randn(ROWS, TOKENS, WIDTH)
    table = torch.tensor(
        [
            [math.sin(t / 10_000 ** (2 * i / WIDTH)) for i in range(WIDTH // 2)]
            + [math.cos(t / 10_000 ** (2 * i / WIDTH)) for i in range(WIDTH // 2)]
            for t in range(TOKENS)
        ],
        dtype=torch.float64,
    )
    close(layer(x)[0], explicit(layer, x, embed=table), 1e-6)


def test_learned_adds_a_row_of_its_table():
    layer, x = attention("attention(learned(ceiling=9), heads=2)"), randn(ROWS, TOKENS, WIDTH)
    assert layer.ceiling == 9
    assert layer.scheme.table.shape == (9, WIDTH)
    close(layer(x)[0], explicit(layer, x, embed=layer.scheme.table[:TOKENS]), 1e-6)


def test_scalable_multiplies_scores_by_s_log_n():
    layer, x = attention("attention(heads=2, weights=scalable)"), randn(ROWS, TOKENS, WIDTH)
    with torch.no_grad():
        layer.weights.scale.fill_(1.7)
    logs = torch.tensor([max(0.7, math.log(t + 1)) for t in range(TOKENS)]).double()
    close(layer(x)[0], explicit(layer, x, turn=lambda q, k: (q * 1.7 * logs[:, None], k)), 1e-6)


def test_scalable_learns_one_scale_a_head_that_is_not_decayed():
    weights = weightings.build("scalable", width=WIDTH, heads=HEADS)
    assert weights.scale.shape == (HEADS,), "only matrices are decayed by the optimiser"
    with torch.no_grad():
        weights.scale.copy_(torch.tensor([0.0, 1.0]))
    sharp = weights.sharpen(randn(1, HEADS, TOKENS, 4), randn(1, TOKENS, WIDTH), POSITIONS)
    assert not sharp[:, 0].any()
    assert sharp[:, 1].all()


@pytest.mark.parametrize(
    ("arguments", "tolerance"),
    [
        ("alibi, heads=2", 1e-9),
        ("alibi, heads=2, weights=scalable", 1e-9),
        ("alibi, heads=2, weights=temperature(length=3)", 1e-9),
        ("alibi, heads=3", 1e-7),  # these slopes are no powers of two, and are rounded to float32
        ("alibi(convention=transformers), heads=3", 1e-9),
    ],
)
def test_alibi_by_the_tra_kernel_equals_its_bias(arguments, tolerance, monkeypatch):
    """As it is computed in 16 bit on a GPU, here in float64."""
    import outlast.mixers.attention.schemes.alibi as alibi

    layer = mixers.build(f"attention({arguments})", width=24).double()
    x = randn(3, 11, 24).requires_grad_()
    wanted = layer(x)[0]
    wanted = [wanted, *torch.autograd.grad(wanted.sum(), [x, *layer.parameters()])]
    asked = []
    monkeypatch.setattr(alibi, "WIDEST_TYPE", 8)
    monkeypatch.setattr(alibi, "has_kernel", lambda q: not asked.append(q))
    actual = layer(x)[0]
    actual = [actual, *torch.autograd.grad(actual.sum(), [x, *layer.parameters()])]
    assert asked
    for one, two in zip(actual, wanted, strict=True):
        torch.testing.assert_close(one, two, rtol=tolerance, atol=tolerance)
    asked.clear()
    layer.context = Context(positions=torch.arange(0, 22, 2))
    layer(x)
    assert not asked, "positions that were drawn are no counts"


@pytest.mark.parametrize("weights", weightings.names())
def test_alibi_kernel_respects_every_weights(weights, monkeypatch):
    import outlast.mixers.attention.schemes.alibi as alibi

    weights = {"temperature": "temperature(length=3)"}.get(weights, weights)
    layer = mixers.build(f"attention(alibi, heads=2, weights={weights})", width=16).double()
    x = randn(3, 11, 16)
    wanted = layer(x)[0]
    monkeypatch.setattr(alibi, "WIDEST_TYPE", 8)
    monkeypatch.setattr(alibi, "has_kernel", lambda q: True)
    close(layer(x)[0], wanted)
