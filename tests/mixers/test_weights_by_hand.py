"""Weights against small examples worked out one number at a time, in plain Python."""

import math

import torch

from outlast.registry import mixers, weightings
from small_attention import close_values as close

HEADS, WIDTH = 2, 8
INF = float("inf")
#: scores of three queries over three keys, one head
ROWS = [[0.5, -INF, -INF], [1.0, -0.5, -INF], [0.2, 1.5, -1.0]]


def weights(spec: str, heads: int = 1):
    torch.manual_seed(0)
    return weightings.build(spec, width=WIDTH, heads=heads).double()


def normalised(spec: str, rows=ROWS) -> list[list[float]]:
    scores = torch.tensor(rows, dtype=torch.float64)[None, None]
    return weights(spec).normalise(scores, None)[0][0, 0].tolist()


def test_sink_takes_a_share_of_the_weight():
    total = sum(math.exp(s) for s in ROWS[2])
    for spec in ("sink", "sink(learned=false)"):
        close(normalised(spec)[2], [math.exp(s) / (1 + total) for s in ROWS[2]])
    assert not list(weights("sink(learned=false)").parameters())
    module = weights("sink", heads=HEADS)
    with torch.no_grad():
        module.sink.copy_(torch.tensor([50.0, -50.0]))
    built = module.normalise(torch.zeros(1, HEADS, 1, 3, dtype=torch.float64), None)[0].sum(-1)
    close(built[0, :, 0], [0, 1])


def test_topk_keeps_the_highest_and_what_ties_with_them():
    built = normalised("topk(k=1)", [[1.0, 0.0, -INF], [2.0, 2.0, 1.0]])
    close(built, [[1, 0, 0], [0.5, 0.5, 0]])
    two = normalised("topk(k=2)")[2]
    close(two, [math.exp(0.2) / (math.exp(0.2) + math.exp(1.5)), 1 - two[0], 0])


def test_topk_with_large_k_is_softmax():
    close(normalised("topk(k=9)"), normalised("softmax"))


def test_uniform_weighs_every_key_so_far_the_same():
    close(normalised("uniform"), [[1, 0, 0], [0.5, 0.5, 0], [1 / 3, 1 / 3, 1 / 3]])


def test_uniform_sends_no_gradient_to_the_scores():
    scores = torch.tensor(ROWS, dtype=torch.float64)[None, None].requires_grad_()
    built = weights("uniform").normalise(scores, None)[0]
    (gradient,) = torch.autograd.grad(built.square().sum(), scores)
    assert torch.equal(gradient, torch.zeros_like(scores))


def test_hard_has_all_weight_on_the_highest_score_and_ties_share_it():
    assert normalised("hard") == [[1, 0, 0], [1, 0, 0], [0, 1, 0]]
    assert normalised("hard", [[2.0, 2.0, 1.0]]) == [[0.5, 0.5, 0]]


def test_hard_has_the_gradient_of_a_softmax():
    values = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    gradients = []
    for spec in ("hard", "softmax"):
        scores = torch.tensor(ROWS, dtype=torch.float64)[None, None].requires_grad_()
        built = weights(spec).normalise(scores, None)[0]
        gradients += torch.autograd.grad((built @ values).sum(), scores)
    assert gradients[0].abs().max() > 0.1
    close(*gradients)


def test_temperature_acts_only_past_the_training_length():
    q = torch.ones(1, 1, 16, 4)
    built = weights("temperature(length=4)").sharpen(q, torch.ones(1, 16, WIDTH), torch.arange(16))
    close(built[0, 0, :4], torch.ones(4, 4))
    close(built[0, 0, 15, 0], math.log(16) / math.log(4), 1e-6)


def test_asentmax_scales_each_query_by_its_own_rule():
    module, x = weights("asentmax", HEADS), torch.randn(1, 3, WIDTH, dtype=torch.float64)
    built = module.sharpen(torch.ones(1, HEADS, 3, 1), x, torch.arange(3))[0, :, :, 0]
    for t in range(3):
        beta = torch.nn.functional.softplus(module.beta.weight @ x[0, t])
        gamma = 2 * torch.tanh(module.gamma.weight @ x[0, t])
        close(built[:, t], 1 + beta * math.log(t + 2) ** gamma, 1e-6)


def test_entmax_by_hand():
    # two scores that differ by Δ, α = 2: sparsemax gives (1 ± Δ)/2, cut at 0
    close(normalised("entmax(alpha=2)", [[0.4, 0.0, -INF]])[0], [0.7, 0.3, 0])
    close(normalised("entmax(alpha=2)", [[1.4, 0.0, -INF]])[0], [1, 0, 0])
    # α = 1.5: squares of s/2 - τ that add up to 1
    one, two, three = normalised("entmax")[2]
    close(one + two + three, 1)
    close(two**0.5 - one**0.5, (1.5 - 0.2) / 2)
    assert three == 0
    learned = weights("entmax(alpha=learned)")
    close(
        learned.normalise(torch.tensor([ROWS]).double()[None], None)[0][0, 0], normalised("entmax")
    )


def test_doubly_normalised_divides_by_what_a_key_gave_before():
    built = normalised("doubly_normalised")
    for i in range(3):
        column = [sum(math.exp(ROWS[q][j]) for q in range(j, i + 1)) for j in range(i + 1)]
        shares = [math.exp(ROWS[i][j]) / column[j] for j in range(i + 1)]
        close(built[i][: i + 1], [s / sum(shares) for s in shares])


def test_inline_weights_are_linear_and_add_up_to_one():
    built = normalised("inline")
    for i, row in enumerate(built):
        known = ROWS[i][: i + 1]
        mean = sum(known) / len(known)
        close(row[: i + 1], [(s - mean + 1) / len(known) for s in known])
        close(sum(row), 1)


def test_compositional_chooses_among_what_every_search_found():
    torch.manual_seed(0)
    layer = mixers.build("attention(heads=2, weights=compositional)", width=WIDTH).double()
    x = torch.randn(1, 3, WIDTH, dtype=torch.float64)
    q, k, v = (part.unflatten(-1, (2, 4))[0] for part in (x @ layer.qkv.weight.T).chunk(3, -1))
    t, outs = 2, []
    for s in range(2):
        w = (q[t, s] @ k[:, s].T / 2).softmax(-1)
        actual = [w @ v[:, r] for r in range(2)]
        asked = (layer.weights.ask.weight @ x[0, t])[4 * s : 4 * s + 4]
        scores = torch.stack([asked @ (layer.weights.answer.weight @ f) / 2 for f in actual])
        outs.append(sum(a * f for a, f in zip(scores.softmax(-1), actual, strict=True)))
    wanted = torch.cat(outs) @ layer.out.weight.T + layer.out.bias
    close(layer(x)[0][0, t].detach(), wanted.detach())
