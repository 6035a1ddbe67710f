"""What attention is told beside its input: where tokens stand, and the key of its dropout."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call, vmap

from outlast.errors import OutlastError, SpecError
from outlast.mixers.attention import Attention, blocks
from outlast.mixers.attention.schemes.tra import softmax_over
from outlast.mixers.chance import Told, bits
from outlast.models import build_model
from outlast.registry import mixers, schemes

WIDTH, ROWS, TOKENS = 8, 3, 7
NAMES = [*schemes.names(), "tra(distance=plain)", "dape(alibi)"]
UNPLACED = {"nope", "cope", "forget", "stick_breaking", "matchability", "tra"}
DRAWN = torch.tensor([[1, 2, 5, 11, 12, 30, 31], [0, 3, 4, 6, 9, 17, 40]])
KEYS = torch.tensor([5, 77])

every = pytest.mark.parametrize("scheme", NAMES)


@pytest.fixture(params=["whole", "row by row"])
def blocked(request, monkeypatch):
    if request.param == "row by row":
        monkeypatch.setattr(blocks, "BUDGET", 1)


def make(spec: str, seed: int = 0) -> Attention:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = mixers.build(f"attention({spec}, heads=2)", width=WIDTH)
        with torch.no_grad():  # what starts at 0 hides what it does
            for parameter in layer.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    return layer.double()


def draw(seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(ROWS, TOKENS, WIDTH, dtype=torch.float64, generator=generator)


def run(layer: Attention, x: torch.Tensor, *told: torch.Tensor | None, state=None):
    layer.told = Told(*told)
    try:
        return layer(x, state)
    finally:
        layer.told = Told()


def close(one: torch.Tensor, two: torch.Tensor) -> None:
    torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-9)


# --- positions -----------------------------------------------------------------------------------


@every
def test_a_scheme_says_truly_whether_it_asks_where_a_token_stands(scheme, blocked):
    layer, x = make(scheme), draw()
    said, layer.placed = layer.placed, True  # else it is not told
    changed = not torch.allclose(run(layer, x, DRAWN[0])[0], layer(x)[0])
    assert said == changed == (scheme not in UNPLACED)


@every
def test_positions_that_are_counted_are_no_others(scheme, blocked):
    layer, x = make(scheme), draw()
    close(run(layer, x, torch.arange(TOKENS))[0], layer(x)[0])


@every
@pytest.mark.parametrize("sizes", [[1] * TOKENS, [3, 4]], ids=str)
def test_in_chunks_it_is_the_same_as_whole(scheme, sizes, blocked):
    layer, x = make(scheme), draw()
    state, parts = None, []
    for chunk, places in zip(x.split(sizes, 1), DRAWN[0].split(sizes), strict=True):
        y, state = run(layer, chunk, places, state=state)
        parts.append(y)
    close(torch.cat(parts, 1), run(layer, x, DRAWN[0])[0])


@pytest.mark.parametrize("scheme", ["rope", "xpos", "alibi", "t5", "kerple", "position_only"])
def test_relative_schemes_see_differences_alone(scheme):
    layer, x = make(scheme), draw()
    moved, there = run(layer, x, DRAWN[0] + 100)[0], run(layer, x, DRAWN[0])[0]
    torch.testing.assert_close(moved, there, rtol=1e-5, atol=1e-6)  # angles are float32


def test_a_bias_is_that_of_the_distance_between_positions():
    layer = make("alibi")
    q, k = (draw(seed).unflatten(-1, (2, 4)).transpose(1, 2) for seed in (0, 1))
    found = layer.scheme.scores(q, k, None, DRAWN[0], DRAWN[0])
    far = DRAWN[0][5] - DRAWN[0][2]
    close(found[0, 0, 5, 2], q[0, 0, 5] @ k[0, 0, 2] / 2 - far * 2.0**-4)


@every
@pytest.mark.filterwarnings("error")
def test_seeds_with_positions_of_their_own_are_each_seed_alone(scheme, blocked):
    copies = [make(scheme, seed) for seed in range(2)]
    rows = [dict(c.named_parameters()) for c in copies]
    stacked = {n: torch.stack([r[n].detach() for r in rows]).requires_grad_() for n in rows[0]}
    x = torch.stack([draw(seed) for seed in range(2)])

    def one(own, x, places):
        copies[0].told = Told(places)
        return functional_call(copies[0], own, (x,))[0]

    together = vmap(one)(stacked, x, DRAWN)
    copies[0].told = Told()
    found = torch.autograd.grad((together * draw(3)).sum(), list(stacked.values()))
    for seed, layer in enumerate(copies):
        alone, _ = run(layer, x[seed], DRAWN[seed])
        close(together[seed], alone)
        wanted = torch.autograd.grad((alone * draw(3)).sum(), list(rows[seed].values()))
        for got, want in zip(found, wanted, strict=True):
            close(got[seed], want)


def test_going_on_without_positions_is_an_error():
    layer, x = make("rope"), draw()
    _, state = run(layer, x, DRAWN[0])
    with pytest.raises(OutlastError, match="give positions= to go on"):
        layer(x, state)
    _, counted = layer(x)  # from plain tokens to drawn ones
    close(
        run(layer, x, 7 + torch.arange(7), state=counted)[0], layer(torch.cat([x, x], 1))[0][:, 7:]
    )


@pytest.mark.parametrize("scheme", ["nope", "tra"])
def test_a_scheme_without_positions_goes_on_without_them(scheme, blocked):
    layer, x = make(scheme), draw()
    first, state = run(layer, x[:, :3], DRAWN[0, :3])
    assert state.places is None
    close(torch.cat([first, layer(x[:, 3:], state)[0]], 1), layer(x)[0])
    _, counted = layer(x[:, :3])  # whatever it is told later
    close(run(layer, x[:, 3:], DRAWN[1, :4], state=counted)[0], layer(x)[0][:, 3:])


@pytest.mark.parametrize("scheme", ["rope", "learned(ceiling=64)", "alibi", "nope"])
@pytest.mark.parametrize("sizes", [[1] * TOKENS, [3, 4]], ids=str)
def test_a_model_with_a_span_goes_on_as_the_whole(scheme, sizes):
    model = build_model(f"2 x (lstm > attention({scheme}, heads=2)) @ 8", 5, 5, seed=0).double()
    model.span = 64
    tokens = torch.arange(TOKENS)[None] % 5
    places = model.positions(TOKENS)
    if scheme == "nope":
        assert places is None
    pieces = [None] * len(sizes) if places is None else places.split(sizes)
    state, parts = None, []
    for chunk, own in zip(tokens.split(sizes, 1), pieces, strict=True):
        y, state = model(chunk, state, positions=own)
        parts.append(y)
    close(torch.cat(parts, 1), model(tokens)[0])
    if places is not None:
        with pytest.raises(OutlastError, match=r"give positions= to go on.*model\.positions"):
            model(tokens, state)


def test_a_model_takes_a_position_for_each_token():
    model = build_model("2 x (attention(rope, heads=2) > mlp) @ 8", 5, 5, seed=0)
    tokens = torch.tensor([[1, 2, 3]])
    plain = model(tokens)[0]
    torch.testing.assert_close(model(tokens, positions=torch.arange(3))[0], plain)
    assert not torch.allclose(model(tokens, positions=torch.tensor([0, 9, 30]))[0], plain)
    torch.testing.assert_close(model(tokens)[0], plain)  # nothing is left behind
    with pytest.raises(SpecError, match="one for each of 3 tokens"):
        model(tokens, positions=torch.arange(4))


# --- dropout -------------------------------------------------------------------------------------


@every
def test_without_a_key_nothing_is_dropped(scheme):
    x = draw()
    assert torch.equal(make(f"{scheme}, dropout=0.5")(x)[0], make(scheme)(x)[0])


@every
@pytest.mark.filterwarnings("error")
def test_dropout_in_blocks_and_among_seeds_is_that_of_the_whole_alone(scheme, monkeypatch):
    layer, x = make(f"{scheme}, dropout=0.3"), torch.stack([draw(seed) for seed in range(2)])
    inputs = list(layer.parameters())

    def among() -> torch.Tensor:
        def one(x, places, key):
            layer.told = Told(places, key)
            return layer(x)[0]

        try:
            return vmap(one)(x, DRAWN, KEYS)
        finally:
            layer.told = Told()

    alone = torch.stack([run(layer, x[s], DRAWN[s], KEYS[s])[0] for s in range(2)])
    wanted = torch.autograd.grad((alone * draw(3)).sum(), inputs)
    assert not torch.allclose(alone[0], run(layer, x[0], DRAWN[0])[0])
    for budget in (blocks.BUDGET, 1, 100):
        monkeypatch.setattr(blocks, "BUDGET", budget)
        together = among()
        close(together, alone)
        found = torch.autograd.grad((together * draw(3)).sum(), inputs)
        for got, want in zip(found, wanted, strict=True):
            close(got, want)


def test_a_dropped_logit_is_nought_and_the_others_are_louder():
    layer, x = make("alibi, dropout=0.3"), draw()
    q, k, v = layer.qkv(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
    logits = layer.scheme.scores(q, k, None, torch.arange(TOKENS))
    dropped = bits(KEYS[0], (ROWS, 2, TOKENS, TOKENS)) < round(0.3 * 2**31)
    assert dropped.any()
    logits = torch.where(dropped, 0, logits / 0.7)
    later = torch.ones(TOKENS, TOKENS).triu(1).bool()
    weights = logits.masked_fill(later, float("-inf")).softmax(-1)
    wanted = layer.out((weights @ v).transpose(1, 2).flatten(2))
    close(run(layer, x, None, KEYS[0])[0], wanted)


def test_tra_keeps_the_keys_it_would_keep_and_drops_their_logits():
    """As in the authors' notebook: dropout of s + δc, then the mask of the threshold."""
    layer, x = make("tra, dropout=0.3"), draw()
    q, k, v = layer.qkv(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
    q, k = layer.scheme.rotate(q, k, torch.arange(TOKENS))
    s = q @ k.mT / 2
    kept = (s > 0) & torch.ones(TOKENS, TOKENS).tril().bool()
    count = kept.flip(-1).cumsum(-1).flip(-1)
    logits = s + layer.scheme.marks(x) * count
    dropped = bits(KEYS[0], (ROWS, 2, TOKENS, TOKENS)) < round(0.3 * 2**31)
    weights = softmax_over(torch.where(dropped, 0, logits / 0.7), kept)
    wanted = layer.out((weights @ v).transpose(1, 2).flatten(2))
    close(run(layer, x, None, KEYS[0])[0], wanted)


@pytest.mark.parametrize("mixer", ["mlp", "glu"])
def test_inside_a_token_what_the_last_map_is_given_is_dropped(mixer):
    layer = mixers.build(f"{mixer}(dropout=0.4)", width=WIDTH).double()
    given = []
    layer.down.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    x = draw()
    layer(x)
    layer.told = Told(None, KEYS[0])
    layer(x)
    plain, dropped = given
    assert 0.2 < (dropped == 0).double().mean() < 0.6
    close(dropped, torch.where(dropped == 0, 0, plain / 0.6))


def test_each_sublayer_and_the_embedding_drop_something_else():
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


@pytest.mark.parametrize("spec", ["attention(dropout=1)", "mlp(dropout=-0.1)", "glu(dropout=1.5)"])
def test_a_share_that_is_none(spec):
    with pytest.raises(SpecError, match=r"dropout=.*a share from 0 to below 1"):
        mixers.build(spec, width=WIDTH)


def test_the_authors_dropout_is_an_option_of_their_model():
    line = "tra_transformer(dropout=0.01) @ 8"
    model = build_model(line, 5, 5, seed=0)
    assert [s.mixer.dropout for s in model.sublayers()] == [0.01] * 8
    assert model.layout.dropout == 0.01
    assert str(build_model(str(model.layout), 5, 5).layout) == str(model.layout)
    assert "dropout" not in str(build_model("tra_transformer @ 8", 5, 5).layout)
    with pytest.raises(SpecError, match="dropout=2"):
        build_model("tra_transformer(dropout=2) @ 8", 5, 5)
    with pytest.raises(SpecError, match="dropout=1: expected a share"):
        build_model("mlp @ 8, dropout=1", 5, 5)
