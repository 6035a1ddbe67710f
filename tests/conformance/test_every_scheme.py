"""What every scheme and all weights of attention must hold to, in their options and together."""

import pytest
import torch
from subjects import plain_specs, specs_of
from torch.func import functional_call, vmap

from outlast.errors import OutlastError, SpecError
from outlast.mixers.attention import blocks, compiled
from outlast.models import build_model
from outlast.registry import mixers, schemes, weightings
from small_attention import (
    TOKENS,
    WIDTH,
    check_each_seed_alone,
    close,
    draw,
    make,
    stacked_weights,
)
from tiny_runs import InMemory, tiny

#: worth a test beyond the default and the options that are spelt out
MORE = [
    "attention(rope(scaling=linear, factor=4), heads=2)",
    "attention(rope(scaling=ntk, factor=4), heads=2)",
    "attention(rope(scaling=yarn, factor=4, original=4), heads=2)",
    # of the length that no chunks may pass
    "attention(rope(scaling=ntk, factor=4, original=7, convention=transformers), heads=2)",
    "attention(rope(scaling=yarn, factor=4, original=7, convention=transformers), heads=2)",
    "attention(cope(positions=3), heads=2)",
    "attention(t5(buckets=4, distance=5), heads=2)",
    "attention(tra(threshold=none, distance=plain), heads=2)",
    "attention(tra(threshold=0.7, gate=none), heads=2)",
    "attention(tra(threshold=learned, sharpen=true, gate=key), heads=2)",
    "attention(heads=2, weights=topk(k=2))",
    "attention(heads=2, weights=entmax(alpha=1.3))",
    "attention(heads=2, weights=entmax(alpha=2))",
    "attention(rope, heads=2, weights=scalable)",
    "attention(alibi, heads=2, weights=doubly_normalised)",
    "attention(fire, heads=2, weights=asentmax)",
    "attention(forget, heads=2, weights=sink)",
    "attention(kerple, heads=2, weights=compositional)",
    "attention(learned(ceiling=40), heads=2, weights=entmax(alpha=learned))",
]


def buildable(spec: str) -> bool:
    try:
        mixers.build(spec, width=WIDTH)
    except SpecError:
        return False
    return True


DEFAULTS = [f"attention({scheme}, heads=2)" for scheme in plain_specs(schemes)]
OPTIONS = [f"attention({scheme}, heads=2)" for scheme in specs_of(schemes)]
SPECS = [
    *DEFAULTS,
    #: options that only go with others, such as yarn with a length, are among MORE
    *(spec for spec in OPTIONS if spec not in DEFAULTS and buildable(spec)),
    *(f"attention(heads=2, weights={weights})" for weights in specs_of(weightings)),
    *MORE,
]
every = pytest.mark.parametrize("spec", SPECS)
PLAIN = [
    *DEFAULTS,
    *(f"attention(heads=2, weights={weights})" for weights in plain_specs(weightings)),
]


@pytest.fixture(params=["whole", "row by row"])
def blocked(request, monkeypatch):
    """As it is here, where all fits into a block; and with a budget for one query at a time."""
    if request.param == "row by row":
        monkeypatch.setattr(blocks, "BUDGET", 1)


@every
def test_no_later_token_changes_an_earlier_output(spec, blocked):
    layer, x = make(spec), draw()
    before = layer(x)[0]
    for token in (1, 4, TOKENS - 1):
        other = x.clone()
        other[:, token:] = -3 * x[:, token:].roll(1, 0)
        close(layer(other)[0][:, :token], before[:, :token])


@every
@pytest.mark.parametrize("sizes", [[1] * TOKENS, [3, 4], [2, 1, 4]], ids=str)
def test_chunks_equal_the_whole(spec, sizes, blocked):
    layer, x = make(spec), draw()
    state, parts = None, []
    for chunk in x.split(sizes, 1):
        y, state = layer(chunk, state)
        parts.append(y)
    close(torch.cat(parts, 1), layer(x)[0])


@every
def test_fast_path_equals_the_reference_with_gradients(spec, blocked, monkeypatch):
    layer, x = make(spec), draw().requires_grad_()
    inputs = [x, *layer.parameters()]
    weighing = draw(seed=1)
    fast = layer(x)[0]
    actual = torch.autograd.grad((fast * weighing).sum(), inputs)
    # the whole table of scores at once, by the definition and nothing faster
    reference = blocks.Look(layer.scheme, layer.weights)
    monkeypatch.setattr(layer, "_look", lambda inputs, packed: reference(inputs))
    truth = layer(x)[0]
    wanted = torch.autograd.grad((truth * weighing).sum(), inputs)
    close(fast, truth)
    for got, want in zip(actual, wanted, strict=True):
        close(got, want)
    single, _ = make(spec).float()(x.detach().float())
    close(single.double(), truth, 1e-4)


@pytest.mark.parametrize("spec", PLAIN)
def test_compiled_path_equals_the_plain_one(spec, monkeypatch):
    """As on a GPU where tables are large, through a backend that needs no compiler."""
    layer, x = make(spec), draw().requires_grad_()
    inputs, weighing = [x, *layer.parameters()], draw(seed=1)

    def actual() -> list[torch.Tensor]:
        y = layer(x)[0]
        return [y, *torch.autograd.grad((y * weighing).sum(), inputs)]

    wanted = actual()
    for name, value in {
        "BACKEND": "aot_eager",
        "FEWEST": 1,
        "_has_compiler": lambda q: True,
    }.items():
        monkeypatch.setattr(compiled, name, value)
    compiled._program.cache_clear()
    for got, want in zip(actual(), wanted, strict=True):
        close(got, want)
    compiled._program.cache_clear()


@every
@pytest.mark.filterwarnings("error")
def test_stacked_seeds_equal_each_seed_alone(spec, blocked, no_vmap_fallback):
    copies = [make(spec, seed) for seed in range(2)]
    stacked = stacked_weights(copies)
    x = torch.stack([draw(seed=s) for s in range(2)])
    together = vmap(lambda weights, x: functional_call(copies[0], weights, (x,))[0])(stacked, x)
    check_each_seed_alone(together, stacked, copies, lambda seed: copies[seed](x[seed])[0])


@every
def test_permuting_the_batch_permutes_the_output(spec):
    layer, x = make(spec), draw()
    order = torch.tensor([2, 0, 1])
    close(layer(x[order])[0], layer(x)[0][order])


@every
@pytest.mark.parametrize("kind", ["large", "nothing", "all the same"])
def test_gradients_are_finite(spec, kind, blocked):
    layer = make(spec).float()
    x = {
        "large": 100 * draw(),
        "nothing": 0 * draw(),
        "all the same": draw()[:, :1].expand(-1, 7, -1),
    }
    inputs = x[kind].float().requires_grad_()
    y = layer(inputs)[0]
    assert y.isfinite().all()
    for grad in torch.autograd.grad(y.square().sum(), [inputs, *layer.parameters()]):
        assert grad.isfinite().all()


@torch.no_grad()
@every
def test_long_input_works_or_names_the_ceiling(spec, monkeypatch):
    monkeypatch.setattr(blocks, "BUDGET", 2**16)  # several blocks
    layer = make(spec).float()
    end = 700 if layer.ceiling is None else layer.ceiling
    assert layer(draw(end, 1).float())[0].isfinite().all()
    if layer.ceiling is not None:
        with pytest.raises(OutlastError, match=rf"at most {end} tokens, got {end + 1}"):
            layer(draw(end + 1, 1).float())


@every
def test_spec_of_a_layer_builds_the_same_layer(spec):
    layer = make(spec)
    for line in (layer.spec, mixers.canonical(spec), mixers.canonical(spec, full=True)):
        again = mixers.build(str(line), width=WIDTH)
        assert again.spec == layer.spec
        assert again.scheme.spec == layer.scheme.spec
        assert again.weights.spec == layer.weights.spec


@pytest.mark.parametrize(
    "line", ["tra_transformer({}, heads=2)", "2 x (attention({}, heads=2) > mlp)"]
)
@pytest.mark.parametrize("scheme", plain_specs(schemes))
def test_scheme_works_in_tra_transformer_and_in_a_plain_block(scheme, line):
    model = build_model(f"{line.format(scheme)} @ 8", 5, 3, seed=0)
    logits, _ = model(torch.randint(5, (2, TOKENS), generator=torch.Generator().manual_seed(0)))
    grads = torch.autograd.grad(logits.square().sum(), list(model.parameters()))
    assert all(g.isfinite().all() for g in grads)


@pytest.mark.parametrize("scheme", plain_specs(schemes))
def test_uses_queries_is_true_to_the_scheme(scheme):
    layer, x = make(f"attention({scheme}, heads=2)"), draw(rows=2)
    before = layer(x)[0]
    with torch.no_grad():
        layer.qkv.weight[:WIDTH] *= -0.5
    assert layer.scheme.uses_queries != torch.allclose(layer(x)[0], before)


@pytest.mark.parametrize("scheme", plain_specs(schemes))
def test_scheme_and_weights_combine_or_are_refused(scheme):
    for weights in plain_specs(weightings):
        spec = f"attention({scheme}, heads=2, weights={weights})"
        if schemes.build(scheme, width=WIDTH, heads=2).weighs and weights != "softmax":
            with pytest.raises(SpecError, match="this scheme makes its own weights"):
                mixers.build(spec, width=WIDTH)
            continue
        uses_queries = schemes.build(scheme, width=WIDTH, heads=2).uses_queries
        if weightings.build(weights, width=WIDTH, heads=2).sharpens and not uses_queries:
            with pytest.raises(SpecError, match="these weights scale queries"):
                mixers.build(spec, width=WIDTH)
            continue
        layer, x = make(spec), draw(rows=2)
        first, state = layer(x[:, :3])
        whole = layer(x)[0]
        close(torch.cat([first, layer(x[:, 3:], state)[0]], 1), whole)
        grads = torch.autograd.grad(whole.square().sum(), list(layer.parameters()))
        assert all(g.isfinite().all() for g in grads)


@pytest.mark.parametrize("method", [(), ("random_positions(range=32)",)], ids=["plain", "drawn"])
@pytest.mark.parametrize("scheme", plain_specs(schemes))
def test_scheme_trains_with_finite_losses(scheme, method):
    """Seeds stacked in one table, by the library's own step: also where a weight is one number."""
    if scheme == "learned":
        scheme = "learned(ceiling=32)"
    run = tiny(
        *method,
        model=f"attention({scheme}, heads=2, dropout=0.1) > mlp @ 8",
        steps=4,
        steps_per_block=2,
        probe_every=0,
        checkpoint_every=2,
    )
    training = InMemory(run)
    before = {n: t.clone() for n, t in training.run.test_weights().items()}
    training.steps(4)
    after = training.run.test_weights()
    assert all(torch.isfinite(torch.tensor(training.losses(seed))).all() for seed in run.seeds)
    assert all(t.isfinite().all() for t in after.values())
    assert not any(torch.equal(before[name], after[name]) for name in before)
