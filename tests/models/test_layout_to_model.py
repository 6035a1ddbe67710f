"""From the layout line to the module: what is built, from which seed, and what is refused."""

import pytest
import torch

import outlast
from outlast.errors import SpecError
from outlast.models import build_model
from outlast.models.build import DEFAULT_WIDTH, canonical_layout
from outlast.models.model import EMBEDDING_SCALE
from outlast.registry import presets

VOCABULARY, CLASSES = 7, 5


def build(line: str, seed: int | None = 0):
    return build_model(line, VOCABULARY, CLASSES, seed)


def weights(model) -> list[torch.Tensor]:
    return [p.detach() for p in model.parameters()]


def same(one, two) -> bool:
    return all(torch.equal(a, b) for a, b in zip(weights(one), weights(two), strict=True))


@pytest.mark.parametrize(
    ("line", "mixers"),
    [
        ("lstm @ 8", "lstm"),
        ("lstm > mlp @ 8", "lstm mlp"),
        ("2 x (lstm > mlp) @ 8", "lstm mlp lstm mlp"),
        ("2 x lstm > mlp @ 8", "lstm lstm mlp"),
        ("gru | attention(rope) > glu @ 8", "gru attention(rope) glu"),
        ("2 x (gru | (attention > mlp)) @ 8", "gru attention mlp gru attention mlp"),
        ("serial @ 8", "lstm attention mlp " * 4),
        ("parallel @ 8", "lstm attention mlp " * 4),
        ("transformer @ 8", "attention mlp " * 4),
        ("recurrent @ 8", "lstm mlp " * 4),
        ("interleaved @ 8", "lstm mlp lstm mlp attention mlp " * 2),
        ("2 x (recurrent > gru) @ 8", ("lstm mlp " * 4 + "gru ") * 2),
    ],
)
def test_sublayers_come_in_the_order_of_the_line(line, mixers):
    assert [str(s.mixer.spec) for s in build(line).sublayers()] == mixers.split()


def test_repeated_sublayers_do_not_share_weights():
    first, second = build("2 x (mlp) @ 8").sublayers()
    assert not torch.equal(first.mixer.up.weight, second.mixer.up.weight)
    assert first.mixer.up.weight.data_ptr() != second.mixer.up.weight.data_ptr()


def test_model_size_counts_every_parameter():
    width, inner = 8, 32
    outside = VOCABULARY * width + 2 * width + (width * VOCABULARY + VOCABULARY)
    lstm = 4 * width * width * 2 + 4 * width * 2
    attention = 3 * width * width + width * width + width
    mlp = width * inner + inner + inner * width + width
    model = build("2 x (lstm > attention > mlp) @ 8")
    assert model.size == outside + 2 * (lstm + attention + mlp + 3 * 2 * width)


def test_width_from_the_line_or_default():
    assert build("mlp @ 24").embedding.weight.shape == (VOCABULARY, 24)
    assert build("mlp").embedding.weight.shape == (VOCABULARY, DEFAULT_WIDTH)


@pytest.mark.parametrize(
    ("line", "scale"), [("mlp @ 64", EMBEDDING_SCALE), ("mlp @ 64, embedding=1", 1.0)]
)
def test_embedding_starts_at_the_scale_of_the_line(line, scale):
    model = build_model(line, 500, 5, seed=0)
    assert model.embedding.weight.std().item() == pytest.approx(scale, rel=0.05)


def test_embedding_can_start_uniform():
    table = build_model("mlp @ 64, embedding=uniform(0.01)", 500, 5, seed=0).embedding.weight
    assert 0.0099 < table.abs().max() <= 0.01
    assert table.std().item() == pytest.approx(0.01 / 3**0.5, rel=0.05)


def test_tra_transformer_has_the_size_of_the_paper():
    model = build_model("tra_transformer @ 256", 5, 5, seed=0)
    assert model.size == pytest.approx(2.64e6, rel=0.005)


def test_number_of_outputs_is_the_vocabulary_or_head():
    assert build_model("mlp @ 8", 12, 5).head.out_features == 12
    assert build_model("mlp @ 8, head=5", 12, 5).head.out_features == 5


@pytest.mark.parametrize(
    ("line", "canonical"),
    [
        ("lstm", "lstm @ 128"),
        ("2x(attention(nope,4)>mlp(4))@8", "2 x (attention > mlp) @ 8"),
        ("attention(scheme=rope)", "attention(rope) @ 128"),
        ("recurrent @ 8", "4 x (lstm > mlp) @ 8"),
        ("2 x (recurrent | mlp)", "2 x (4 x (lstm > mlp) | mlp) @ 128"),
        ("lstm @ 8, embedding=0.5", "lstm @ 8, embedding=0.5"),
        ("lstm @ 8, embedding=1", "lstm @ 8"),
        ("lstm @ 8, residual=plain, norm=layer", "lstm @ 8"),
        ("lstm @ 8, residual=normalised, norm=rms", "lstm @ 8, norm=rms, residual=normalised"),
        (
            "tra_transformer @ 8",
            "4 x (attention(tra) > glu(expand=2.0)) @ 8, embedding=uniform(0.01), norm=rms, "
            "residual=normalised",
        ),
        (
            "tra_transformer(rope, heads=2) @ 8, embedding=1, residual=plain",
            "4 x (attention(rope, heads=2) > glu(expand=2.0)) @ 8, norm=rms",
        ),
        ("lstm @ 8, head=40", "lstm @ 8, head=40"),
    ],
)
def test_canonical_line_of_a_layout(line, canonical):
    assert str(canonical_layout(line)) == canonical
    assert str(canonical_layout(canonical)) == canonical
    assert str(build(line).layout) == canonical


@pytest.mark.parametrize("preset", presets.names())
def test_preset_builds_the_model_of_its_line(preset):
    line = str(canonical_layout(f"{preset} @ 8"))
    assert same(build(f"{preset} @ 8"), build(line))


# ---- seeds -------------------------------------------------------------------------------------


def test_weights_depend_on_the_seed_alone():
    line = "lstm > attention(learned) > mlp @ 8"
    torch.manual_seed(1)
    one = build(line, seed=3)
    torch.manual_seed(2)
    assert same(one, build(line, seed=3))
    assert not same(one, build(line, seed=4))


def test_seeded_build_keeps_the_global_random_state():
    before = torch.get_rng_state()
    build("lstm(init=orthogonal) > attention(learned) > mlp @ 8", seed=3)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.gpu
def test_seeded_build_keeps_the_random_state_of_the_gpu():
    before = torch.cuda.get_rng_state()
    build("lstm > mlp @ 8", seed=3)
    assert torch.equal(before, torch.cuda.get_rng_state())


def test_unseeded_build_uses_the_global_random_state():
    torch.manual_seed(5)
    one, two = build("mlp @ 8", seed=None), build("mlp @ 8", seed=None)
    torch.manual_seed(5)
    assert same(one, build("mlp @ 8", seed=None))
    assert not same(one, two)


# ---- what a model says of itself ---------------------------------------------------------------


def test_every_parameter_has_a_pathway():
    model = build("gru | attention(weights=scalable) > mlp @ 8")
    pathways = model.pathways()
    assert set(pathways) == {name for name, _ in model.named_parameters()}
    by_pathway = {p: {n for n in pathways if pathways[n] == p} for p in set(pathways.values())}
    inside = {
        s.pathway: {id(p) for p in s.parameters()} for s in model.sublayers()
    }  # the norm goes with its mixer
    parameters = dict(model.named_parameters())
    for pathway in ("recurrent", "attention"):
        assert {id(parameters[n]) for n in by_pathway[pathway]} == inside[pathway]
    outside = {"embedding.weight", "norm.weight", "norm.bias", "head.weight", "head.bias"}
    assert outside <= by_pathway["pointwise"]
    assert len(by_pathway["pointwise"]) == len(outside) + len(inside["pointwise"])


def test_model_ceiling_is_the_lowest_of_its_mixers():
    line = "attention(learned(ceiling=20)) > attention(learned(ceiling=9)) > lstm @ 8"
    assert build(line).ceiling == 9
    assert build("attention(rope) > lstm @ 8").ceiling is None


def test_outlast_model_takes_a_task_or_its_spec():
    task = outlast.task("modsum(modulus=3)")
    for task_or_spec in (task, "modsum(modulus=3)"):
        model = outlast.model("lstm > mlp @ 8", task_or_spec, seed=1)
        assert model.embedding.num_embeddings == task.vocabulary
        assert model.head.out_features == task.vocabulary


@pytest.mark.parametrize("line", ["lstm @ 8", "gru @ 8", "attention > mlp @ 8"])
@pytest.mark.parametrize("shape", [(2, 0), (0, 2), (0, 0), (3,), (1, 2, 3)])
def test_input_that_is_no_batch_of_sequences_is_refused(line, shape):
    tokens = torch.zeros(shape, dtype=torch.long)
    says = rf"tokens=a tensor of shape \({'x'.join(map(str, shape))}\).*\(batch, tokens\)"
    with pytest.raises(SpecError, match=says):
        build(line)(tokens)
