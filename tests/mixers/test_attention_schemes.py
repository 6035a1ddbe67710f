"""Attention and each scheme by its formula."""

import math

import pytest
import torch

from outlast.errors import SpecError
from outlast.mixers.chance import Told
from outlast.registry import mixers, schemes, weightings

ROWS, TOKENS, WIDTH, HEADS = 2, 6, 8, 2
POSITIONS = torch.arange(TOKENS)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def attention(spec: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return mixers.build(spec, width=WIDTH).double()


def explicit(layer, x, embed=0.0, turn=lambda q, k: (q, k), bias=0.0) -> torch.Tensor:
    """Multi-head attention one head at a time, with position wherever a scheme puts it."""
    q, k, v = ((x + embed) @ layer.qkv.weight.T).chunk(3, -1)
    size = WIDTH // layer.heads
    heads = []
    for head in range(layer.heads):
        own = slice(head * size, (head + 1) * size)
        qh, kh = turn(q[..., own], k[..., own])
        scores = qh @ kh.mT / size**0.5 + (bias[head] if torch.is_tensor(bias) else bias)
        future = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
        heads.append(scores.masked_fill(future, -torch.inf).softmax(-1) @ v[..., own])
    return torch.cat(heads, -1) @ layer.out.weight.T + layer.out.bias


def close(one: torch.Tensor, two: torch.Tensor, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(one, two, rtol=tolerance, atol=tolerance)


def test_nope_is_plain_attention_without_input_biases():
    layer, x = attention("attention(heads=2)"), draw(ROWS, TOKENS, WIDTH)
    assert layer.qkv.bias is None
    close(layer(x)[0], explicit(layer, x))


def test_rope_turns_pair_i_by_position_times_its_speed():
    layer, x = attention("attention(rope(base=100), heads=2)"), draw(ROWS, TOKENS, WIDTH)

    def turned(part):
        pairs = torch.complex(part[..., :2], part[..., 2:])  # the halves of a head of width 4
        angle = POSITIONS[:, None].double() * torch.tensor([1.0, 100**-0.5])
        moved = pairs * torch.polar(torch.ones_like(angle), angle)
        return torch.cat([moved.real, moved.imag], -1)

    close(layer(x)[0], explicit(layer, x, turn=lambda q, k: (turned(q), turned(k))))


def test_rope_scores_depend_on_the_distance_alone():
    scheme = schemes.build("rope", width=WIDTH, heads=HEADS)
    q, k = draw(1, HEADS, 1, 4), draw(1, HEADS, 1, 4, seed=1)

    def score(at: int, to: int) -> torch.Tensor:
        turned, _ = scheme.rotate(q, k, torch.tensor([at]))
        _, other = scheme.rotate(q, k, torch.tensor([to]))
        return (turned * other).sum(-1)

    close(score(9, 4), score(105, 100), 1e-5)
    assert not torch.allclose(score(9, 4), score(9, 5))


def test_alibi_falls_with_distance_at_a_slope_for_each_head():
    layer, x = attention("attention(alibi, heads=2)"), draw(ROWS, TOKENS, WIDTH)
    distance = (POSITIONS[:, None] - POSITIONS).double()
    bias = torch.stack([-slope * distance for slope in (2**-4, 2**-8)])
    close(layer(x)[0], explicit(layer, x, bias=bias))


def test_alibi_slopes_are_those_of_the_paper():
    scheme = schemes.build("alibi", width=WIDTH, heads=8)
    slopes = -scheme.bias(torch.tensor([1]), 2)[0, :, 0, 0]
    close(slopes, torch.tensor([2.0**-h for h in range(1, 9)]))


def test_sinusoidal_adds_sines_and_cosines_of_the_position():
    layer, x = attention("attention(sinusoidal, heads=2)"), draw(ROWS, TOKENS, WIDTH)
    table = torch.tensor(
        [
            [math.sin(t / 10_000 ** (2 * i / WIDTH)) for i in range(WIDTH // 2)]
            + [math.cos(t / 10_000 ** (2 * i / WIDTH)) for i in range(WIDTH // 2)]
            for t in range(TOKENS)
        ],
        dtype=torch.float64,
    )
    close(layer(x)[0], explicit(layer, x, embed=table))


def test_learned_adds_a_row_of_its_table():
    layer, x = attention("attention(learned(ceiling=9), heads=2)"), draw(ROWS, TOKENS, WIDTH)
    assert layer.ceiling == 9
    assert layer.scheme.table.shape == (9, WIDTH)
    close(layer(x)[0], explicit(layer, x, embed=layer.scheme.table[:TOKENS]))


def test_scalable_multiplies_scores_by_s_log_n():
    layer, x = attention("attention(heads=2, weights=scalable)"), draw(ROWS, TOKENS, WIDTH)
    with torch.no_grad():
        layer.weights.scale.fill_(1.7)
    logs = torch.tensor([max(0.7, math.log(t + 1)) for t in range(TOKENS)]).double()
    close(layer(x)[0], explicit(layer, x, turn=lambda q, k: (q * 1.7 * logs[:, None], k)))


def test_scalable_learns_one_scale_a_head_that_is_not_decayed():
    weights = weightings.build("scalable", width=WIDTH, heads=HEADS)
    assert weights.scale.shape == (HEADS,), "only matrices are decayed by the optimiser"
    with torch.no_grad():
        weights.scale.copy_(torch.tensor([0.0, 1.0]))
    sharp = weights.sharpen(draw(1, HEADS, TOKENS, 4), draw(1, TOKENS, WIDTH), POSITIONS)
    assert not sharp[:, 0].any()
    assert sharp[:, 1].all()


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("attention(heads=3)", "heads=3: expected a divisor of the width, 8"),
        ("attention(heads=-2)", "heads=-2: expected a divisor of the width, 8"),
        ("attention(rope, heads=8)", "heads=8: expected a number that leaves an even head width"),
        ("attention(sinusoidal(base=0.5))", "scheme sinusoidal: base=0.5: expected a number > 1"),
        ("attention(ropes)", "there is no scheme 'ropes'; did you mean 'rope'?"),
    ],
)
def test_what_cannot_be_built_is_named(spec, says):
    with pytest.raises(SpecError) as caught:
        mixers.build(spec, width=WIDTH)
    assert says in str(caught.value)


@pytest.mark.parametrize("weights", ["softmax", "scalable", "temperature(length=3)"])
def test_alibi_is_tra_that_keeps_every_key(weights, monkeypatch):
    """As it is computed in 16 bit on a GPU, here in float64."""
    import outlast.mixers.attention.schemes.alibi as alibi

    layer = mixers.build(f"attention(alibi, heads=2, weights={weights})", width=16).double()
    x = draw(3, 11, 16).requires_grad_()
    wanted = layer(x)[0]
    wanted = [wanted, *torch.autograd.grad(wanted.sum(), [x, *layer.parameters()])]
    asked = []
    monkeypatch.setattr(alibi, "WIDEST_TYPE", 8)
    monkeypatch.setattr(alibi, "has_kernel", lambda q: not asked.append(q))
    found = layer(x)[0]
    found = [found, *torch.autograd.grad(found.sum(), [x, *layer.parameters()])]
    assert asked
    for one, two in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)
    asked.clear()
    layer.told = Told(positions=torch.arange(0, 22, 2))
    layer(x)
    assert not asked, "positions that were drawn are no counts"


@pytest.mark.parametrize("weights", weightings.names())
def test_alibi_goes_with_every_weights_where_there_is_a_kernel(weights, monkeypatch):
    import outlast.mixers.attention.schemes.alibi as alibi

    weights = {"temperature": "temperature(length=3)"}.get(weights, weights)
    layer = mixers.build(f"attention(alibi, heads=2, weights={weights})", width=16).double()
    x = draw(3, 11, 16)
    wanted = layer(x)[0]
    monkeypatch.setattr(alibi, "WIDEST_TYPE", 8)
    monkeypatch.setattr(alibi, "has_kernel", lambda q: True)
    close(layer(x)[0], wanted)
