"""The context of attention beside its input: positions of tokens, and the key of its dropout."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call, vmap

from outlast.errors import OutlastError, SpecError
from outlast.mixers.attention import Attention, blocks
from outlast.mixers.attention.schemes.tra import softmax_over
from outlast.mixers.base import Context
from outlast.mixers.randomness import random_bits
from outlast.models import build_model
from outlast.registry import mixers, schemes
from outlast.testing.subjects import plain_lines
from small_attention import (
    ROWS,
    TOKENS,
    WIDTH,
    check_each_seed_alone,
    close,
    draw,
    make,
    stacked_weights,
)

NAMES = [*plain_lines(schemes), "tra(distance=plain)", "dape(alibi)"]
WITHOUT_POSITIONS = {"nope", "cope", "forget", "stick_breaking", "matchability", "tra"}
DRAWN = torch.tensor([[1, 2, 5, 11, 12, 30, 31], [0, 3, 4, 6, 9, 17, 40]])
KEYS = torch.tensor([5, 77])

every = pytest.mark.parametrize("scheme", NAMES)


@pytest.fixture(params=["whole", "row by row"])
def blocked(request, monkeypatch):
    if request.param == "row by row":
        monkeypatch.setattr(blocks, "BUDGET", 1)


def run(layer: Attention, x: torch.Tensor, *context: torch.Tensor | None, state=None):
    layer.context = Context(*context)
    try:
        return layer(x, state)
    finally:
        layer.context = Context()


# --- positions -----------------------------------------------------------------------------------


@every
def test_uses_positions_is_true_to_the_scheme(scheme, blocked):
    layer, x = make(f"attention({scheme}, heads=2)"), draw()
    declared, layer.uses_positions = layer.uses_positions, True  # else positions are not passed
    changed = not torch.allclose(run(layer, x, DRAWN[0])[0], layer(x)[0])
    assert declared == changed == (scheme not in WITHOUT_POSITIONS)


@every
def test_explicit_counted_positions_change_nothing(scheme, blocked):
    layer, x = make(f"attention({scheme}, heads=2)"), draw()
    close(run(layer, x, torch.arange(TOKENS))[0], layer(x)[0])


@every
@pytest.mark.parametrize("sizes", [[1] * TOKENS, [3, 4]], ids=str)
def test_chunks_with_drawn_positions_equal_the_whole(scheme, sizes, blocked):
    layer, x = make(f"attention({scheme}, heads=2)"), draw()
    state, parts = None, []
    for chunk, positions in zip(x.split(sizes, 1), DRAWN[0].split(sizes), strict=True):
        y, state = run(layer, chunk, positions, state=state)
        parts.append(y)
    close(torch.cat(parts, 1), run(layer, x, DRAWN[0])[0])


@pytest.mark.parametrize("scheme", ["rope", "xpos", "alibi", "t5", "kerple", "position_only"])
def test_relative_schemes_ignore_a_shift_of_all_positions(scheme):
    layer, x = make(f"attention({scheme}, heads=2)"), draw()
    shifted, plain = run(layer, x, DRAWN[0] + 100)[0], run(layer, x, DRAWN[0])[0]
    torch.testing.assert_close(shifted, plain, rtol=1e-5, atol=1e-6)  # angles are float32


def test_bias_follows_the_distance_between_drawn_positions():
    layer = make("attention(alibi, heads=2)")
    q, k = (draw(seed=seed).unflatten(-1, (2, 4)).transpose(1, 2) for seed in (0, 1))
    scores = layer.scheme.scores(q, k, None, DRAWN[0], DRAWN[0])
    far = DRAWN[0][5] - DRAWN[0][2]
    close(scores[0, 0, 5, 2], q[0, 0, 5] @ k[0, 0, 2] / 2 - far * 2.0**-4)


@every
@pytest.mark.filterwarnings("error")
def test_stacked_seeds_with_drawn_positions_equal_each_seed_alone(scheme, blocked):
    copies = [make(f"attention({scheme}, heads=2)", seed) for seed in range(2)]
    stacked = stacked_weights(copies)
    x = torch.stack([draw(seed=seed) for seed in range(2)])

    def one(weights, x, positions):
        copies[0].context = Context(positions)
        return functional_call(copies[0], weights, (x,))[0]

    together = vmap(one)(stacked, x, DRAWN)
    copies[0].context = Context()
    check_each_seed_alone(
        together, stacked, copies, lambda seed: run(copies[seed], x[seed], DRAWN[seed])[0]
    )


def test_chunk_without_positions_after_drawn_ones_is_refused():
    layer, x = make("attention(rope, heads=2)"), draw()
    _, state = run(layer, x, DRAWN[0])
    with pytest.raises(OutlastError, match="give positions= for the tokens that follow"):
        layer(x, state)
    _, counted = layer(x)  # from plain tokens to drawn ones
    close(
        run(layer, x, 7 + torch.arange(7), state=counted)[0], layer(torch.cat([x, x], 1))[0][:, 7:]
    )


@pytest.mark.parametrize("scheme", ["nope", "tra"])
def test_scheme_without_positions_ignores_them_in_chunks(scheme, blocked):
    layer, x = make(f"attention({scheme}, heads=2)"), draw()
    first, state = run(layer, x[:, :3], DRAWN[0, :3])
    assert state.positions is None
    close(torch.cat([first, layer(x[:, 3:], state)[0]], 1), layer(x)[0])
    _, counted = layer(x[:, :3])  # whatever it is told later
    close(run(layer, x[:, 3:], DRAWN[1, :4], state=counted)[0], layer(x)[0][:, 3:])


@pytest.mark.parametrize("scheme", ["rope", "learned(ceiling=64)", "alibi", "nope"])
@pytest.mark.parametrize("sizes", [[1] * TOKENS, [3, 4]], ids=str)
def test_model_with_a_span_in_chunks_equals_the_whole(scheme, sizes):
    model = build_model(f"2 x (lstm > attention({scheme}, heads=2)) @ 8", 5, 5, seed=0).double()
    model.span = 64
    tokens = torch.arange(TOKENS)[None] % 5
    positions = model.positions(TOKENS)
    if scheme == "nope":
        assert positions is None
    pieces = [None] * len(sizes) if positions is None else positions.split(sizes)
    state, parts = None, []
    for chunk, of_chunk in zip(tokens.split(sizes, 1), pieces, strict=True):
        y, state = model(chunk, state, positions=of_chunk)
        parts.append(y)
    close(torch.cat(parts, 1), model(tokens)[0])
    if positions is not None:
        with pytest.raises(OutlastError, match=r"positions= with every chunk.*model\.positions"):
            model(tokens, state)


def test_model_positions_are_used_once_and_checked():
    model = build_model("2 x (attention(rope, heads=2) > mlp) @ 8", 5, 5, seed=0)
    tokens = torch.tensor([[1, 2, 3]])
    plain = model(tokens)[0]
    torch.testing.assert_close(model(tokens, positions=torch.arange(3))[0], plain)
    assert not torch.allclose(model(tokens, positions=torch.tensor([0, 9, 30]))[0], plain)
    torch.testing.assert_close(model(tokens)[0], plain)  # nothing is left behind
    with pytest.raises(SpecError, match="a position for each of 3 tokens"):
        model(tokens, positions=torch.arange(4))


# --- dropout -------------------------------------------------------------------------------------


@every
def test_no_dropout_without_a_key(scheme):
    x = draw()
    dropping = make(f"attention({scheme}, heads=2, dropout=0.5)")
    assert torch.equal(dropping(x)[0], make(f"attention({scheme}, heads=2)")(x)[0])


@every
@pytest.mark.filterwarnings("error")
def test_dropout_is_the_same_in_blocks_and_among_seeds(scheme, monkeypatch):
    layer = make(f"attention({scheme}, heads=2, dropout=0.3)")
    x = torch.stack([draw(seed=seed) for seed in range(2)])
    inputs = list(layer.parameters())

    def among() -> torch.Tensor:
        def one(x, positions, key):
            layer.context = Context(positions, key)
            return layer(x)[0]

        try:
            return vmap(one)(x, DRAWN, KEYS)
        finally:
            layer.context = Context()

    alone = torch.stack([run(layer, x[s], DRAWN[s], KEYS[s])[0] for s in range(2)])
    wanted = torch.autograd.grad((alone * draw(seed=3)).sum(), inputs)
    assert not torch.allclose(alone[0], run(layer, x[0], DRAWN[0])[0])
    for budget in (blocks.BUDGET, 1, 100):
        monkeypatch.setattr(blocks, "BUDGET", budget)
        together = among()
        close(together, alone)
        actual = torch.autograd.grad((together * draw(seed=3)).sum(), inputs)
        for got, want in zip(actual, wanted, strict=True):
            close(got, want)


def test_attention_dropout_by_hand():
    layer, x = make("attention(alibi, heads=2, dropout=0.3)"), draw()
    q, k, v = layer.qkv(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
    logits = layer.scheme.scores(q, k, None, torch.arange(TOKENS), torch.arange(TOKENS))
    dropped = random_bits(KEYS[0], (ROWS, 2, TOKENS, TOKENS)) < round(0.3 * 2**31)
    assert dropped.any()
    logits = torch.where(dropped, 0, logits / 0.7)
    later = torch.ones(TOKENS, TOKENS).triu(1).bool()
    weights = logits.masked_fill(later, float("-inf")).softmax(-1)
    wanted = layer.out((weights @ v).transpose(1, 2).flatten(2))
    close(run(layer, x, None, KEYS[0])[0], wanted)


def test_tra_dropout_by_hand():
    """As in the authors' notebook: dropout of s + δc, then the mask of the threshold."""
    layer, x = make("attention(tra, heads=2, dropout=0.3)"), draw()
    q, k, v = layer.qkv(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
    q, k = layer.scheme.rotate(q, k, torch.arange(TOKENS))
    s = q @ k.mT / 2
    kept = (s > 0) & torch.ones(TOKENS, TOKENS).tril().bool()
    count = kept.flip(-1).cumsum(-1).flip(-1)
    logits = s + layer.scheme.token_features(x) * count
    dropped = random_bits(KEYS[0], (ROWS, 2, TOKENS, TOKENS)) < round(0.3 * 2**31)
    weights = softmax_over(torch.where(dropped, 0, logits / 0.7), kept)
    wanted = layer.out((weights @ v).transpose(1, 2).flatten(2))
    close(run(layer, x, None, KEYS[0])[0], wanted)


@pytest.mark.parametrize("mixer", ["mlp", "glu"])
def test_mlp_dropout_is_of_the_input_of_the_last_map(mixer):
    layer = mixers.build(f"{mixer}(dropout=0.4)", width=WIDTH).double()
    inner = []
    layer.down.register_forward_pre_hook(lambda _, inputs: inner.append(inputs[0]))
    x = draw()
    layer(x)
    layer.context = Context(None, KEYS[0])
    layer(x)
    plain, dropped = inner
    assert 0.2 < (dropped == 0).double().mean() < 0.6
    close(dropped, torch.where(dropped == 0, 0, plain / 0.6))


def test_sublayers_and_embedding_drop_independently():
    model = build_model("2 x (mlp(dropout=0.5)) @ 64, dropout=0.5", 5, 5, seed=0)
    seen = []
    for sublayer in model.sublayers():
        sublayer.mixer.down.register_forward_pre_hook(lambda _, x: seen.append(x[0] == 0))
    model.body.register_forward_pre_hook(lambda _, x: seen.append(x[0].x == 0))
    model(torch.tensor([[1, 2, 3]]), key=torch.tensor(4))
    embedding, one, two = seen
    shares = [
        x.double().mean() for x in (embedding, one, two, one & two, embedding & one[..., :64])
    ]
    for share, wanted in zip(shares, (0.5, 0.5, 0.5, 0.25, 0.25), strict=True):
        assert abs(share - wanted) < 0.12
    seen.clear()
    model(torch.tensor([[1, 2, 3]]))
    assert not any(x.any() for x in seen)


def test_tra_transformer_dropout_reaches_every_sublayer():
    line = "tra_transformer(dropout=0.01) @ 8"
    model = build_model(line, 5, 5, seed=0)
    assert [s.mixer.dropout for s in model.sublayers()] == [0.01] * 8
    assert model.layout.dropout == 0.01
    assert str(build_model(str(model.layout), 5, 5).layout) == str(model.layout)
    assert "dropout" not in str(build_model("tra_transformer @ 8", 5, 5).layout)
