"""Analyses of models of transformers."""

import pytest
import torch

import outlast
from outlast.analysis.ablation import pathway_ablation
from outlast.analysis.foreign import watch_foreign
from outlast.analysis.interventions import silent
from outlast.errors import SpecError
from outlast.methods.delay.discovery import find_attention, find_recurrence

transformers = pytest.importorskip("transformers")

TASK = outlast.task("modsum(length=6)")


#: Gemma 2 has a norm between attention and the residual stream
FAMILIES = ("LlamaForCausalLM", "Gemma2ForCausalLM")
SIZES = {
    "vocab_size": TASK.vocabulary,
    "initializer_range": 0.5,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest) -> torch.nn.Module:
    torch.manual_seed(0)
    kind = getattr(transformers, request.param)
    return kind(kind.config_class(**SIZES)).eval()


def test_rows_are_those_that_the_model_gives_out(model: torch.nn.Module) -> None:
    tokens = torch.randint(TASK.modulus, (2, 7))
    implementation, config = model.config._attn_implementation, model.config.to_dict()
    with torch.no_grad():
        expected = model(tokens).logits
    seen = watch_foreign(model, tokens, torch.tensor([[3, 6], [0, -1]]))
    assert model.config._attn_implementation == implementation
    assert model.config.to_dict() == config
    torch.testing.assert_close(seen.logits, expected)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        tables = model(tokens, output_attentions=True).attentions
    assert len(seen.weights) == len(tables) == 2
    for rows, table in zip(seen.weights.values(), tables, strict=True):
        torch.testing.assert_close(rows[0], table[0][:, [3, 6]])
        torch.testing.assert_close(rows[1, :, 0], table[1][:, 0])
        assert not rows[1, :, 1].any()


def test_attention_is_taken_out_and_put_back(model: torch.nn.Module) -> None:
    tokens = torch.randint(TASK.modulus, (2, 7))
    with torch.no_grad():
        before = model(tokens).logits
    rows = pathway_ablation(model, TASK, (1,), 32)
    names = {row["ablation"] for row in rows}
    assert names == {"whole", "attention off", "layer off", "head off", "items shuffled"}
    assert len({(r["layer"], r["head"]) for r in rows if r["ablation"] == "head off"}) == 2 * 4
    shares = {row["ablation"]: row for row in rows if row["part"] == "running"}
    assert shares["head off"]["unchanged"] < 1
    assert shares["whole"]["unchanged"] == 1
    assert shares["attention off"]["unchanged"] < 1
    expected = outlast.evaluate(model, TASK, (1,), 32)[0]["answers"]["running"]
    assert shares["whole"]["answers"] == expected
    with torch.no_grad():
        assert torch.equal(model(tokens).logits, before)
    assert not any("forward" in vars(module) for module in model.modules())
    assert not hasattr(model.config, "delayed_attention")


def test_without_attention_each_token_stands_alone(model: torch.nn.Module) -> None:
    tokens = torch.randint(1, TASK.modulus, (2, 7))
    other = torch.cat([torch.zeros_like(tokens[:, :1]), tokens[:, 1:]], 1)
    with torch.no_grad(), silent(model, find_attention(model, needs_recurrence=False)):
        assert torch.equal(model(tokens).logits[:, 1:], model(other).logits[:, 1:])
    with torch.no_grad():
        assert not torch.equal(model(tokens).logits[:, 1:], model(other).logits[:, 1:])


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("bamba", "mamba"), ("olmo_hybrid", "linear_attn"), ("recurrent_gemma", "temporal_block"),
        ("zamba2", "mamba"), ("falcon_h1", "mamba"), ("qwen3_next", "linear_attn"),
    ],
)  # fmt: skip
def test_recurrence_of_a_hybrid_is_taken_out(name: str, part: str) -> None:
    from outlast.hf.families import family

    torch.manual_seed(0)
    model = family(name).build().eval()
    recurrence = find_recurrence(model)
    assert recurrence
    assert {name.split(".")[-1] for name in recurrence} == {part}
    tokens = torch.randint(1, 9, (2, 7))
    with torch.no_grad():
        before = model(tokens).logits
        with silent(model, {**find_attention(model, needs_recurrence=False), **recurrence}):
            alone = model(tokens).logits
        other = tokens.clone()
        other[:, 0] = 0
        with silent(model, {**find_attention(model, needs_recurrence=False), **recurrence}):
            torch.testing.assert_close(model(other).logits[:, 1:], alone[:, 1:])
        assert torch.equal(model(tokens).logits, before)
    assert not torch.equal(alone, before)


def test_a_family_whose_attention_is_not_found_is_refused_with_what_is_accepted() -> None:
    sizes = {"vocab_size": TASK.vocabulary, "n_positions": 16, "n_embd": 16}
    ends = {"bos_token_id": None, "eos_token_id": None}
    config = transformers.GPT2Config(**sizes, **ends, n_layer=2, n_head=2)
    model = transformers.GPT2LMHeadModel(config).eval()
    with pytest.raises(SpecError, match=r'name its modules, as in attention=\["\*\.attn"\]'):
        pathway_ablation(model, TASK, (1,), 4)
    names = ["transformer.h.0.attn", "transformer.h.1.attn"]
    rows = pathway_ablation(model, TASK, (1,), 4, attention=["*.attn"])
    assert {row["layer"] for row in rows if row["ablation"] == "layer off"} == set(names)
    tokens = torch.randint(TASK.modulus, (2, 7))
    seen = watch_foreign(model, tokens, torch.tensor([[3, 6], [0, -1]]), ["*.attn"])
    assert list(seen.weights) == names
