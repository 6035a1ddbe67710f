"""TRA models of `transformers`: one pass, caches, padding, generation, gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

import tra_families
from tra_families import CLOSE, CONFIGS, FAMILIES, SIZES, left_padded, tokens, tra_model
from transformers import AutoModelForCausalLM, DynamicCache, StaticCache

from outlast.hf.tra.attention import NORM_EPS
from outlast.kernels.heads import rms
from outlast.kernels.tra import reference
from outlast.kernels.tra.setting import Setting

STATIC_LENGTH = 20


def by_cache(model: Any, x: torch.Tensor, cache: Any, first: int = 5) -> torch.Tensor:
    parts = [model(x[:, :first], past_key_values=cache).logits]
    parts += [
        model(x[:, i : i + 1], past_key_values=cache).logits for i in range(first, x.shape[1])
    ]
    return torch.cat(parts, 1)


def caches(model: Any) -> dict[str, Any]:
    static = StaticCache(config=model.config, max_cache_len=STATIC_LENGTH)
    return {"dynamic": DynamicCache(config=model.config), "static": static}


@pytest.mark.parametrize("family", FAMILIES)
def test_layer_equals_reference(family: str) -> None:
    model = tra_model(family, tra_threshold=0.1, tra_gate_bias=1.0)
    layer = model.model.layers[0].self_attn
    x = torch.randn(2, 9, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    q, k, v = (p(x).view(2, 9, -1, 4) for p in (layer.q_proj, layer.k_proj, layer.v_proj))
    if family == "qwen3":
        with torch.no_grad():  # scales that matter
            layer.q_norm.weight.mul_(torch.tensor([1.0, 2.0, 0.5, 3.0]))
        q, k = layer.q_norm(q), layer.k_norm(k)
    q, k, v = (t.transpose(1, 2) for t in (rms(q, NORM_EPS), rms(k, NORM_EPS), v))
    gate = torch.nn.functional.logsigmoid(layer.tra_gate(x)).transpose(1, 2)
    out, _, kept = reference.attend(q, k, v, gate, None, None, Setting(0.1, 0.5, 0))
    assert 1 < kept[:, :, -1].double().mean() < 8  # some keys are dropped, and not all
    expected = layer.o_proj(out.transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(x)[0], expected, **CLOSE)


@pytest.mark.parametrize("family", FAMILIES)
def test_later_tokens_do_not_reach_earlier_ones(family: str) -> None:
    model, x = tra_model(family), tokens()
    changed = torch.cat([x[:, :8], tokens(length=4, seed=7)], 1)
    before, after = (model(t, use_cache=False).logits for t in (x, changed))
    assert torch.equal(before[:, :8], after[:, :8])
    assert not torch.allclose(before[:, 8:], after[:, 8:])


@pytest.mark.parametrize("family", FAMILIES)
def test_order_of_past_tokens_matters(family: str) -> None:
    """The gates give positions: without them the last logits would not see the order."""
    x = tokens()
    swapped = x[:, [1, 0, *range(2, 12)]]
    # in one layer alone: in two, causality itself tells the order
    model = tra_model(family)
    model.model.layers = model.model.layers[:1]
    model.config.num_hidden_layers = 1
    last = [model(t, use_cache=False).logits[:, -1] for t in (x, swapped)]
    assert not torch.allclose(*last)
    for layer in model.model.layers:
        torch.nn.init.zeros_(layer.self_attn.tra_gate.weight)
        torch.nn.init.constant_(layer.self_attn.tra_gate.bias, 100.0)  # log σ is 0: no distance
    last = [model(t, use_cache=False).logits[:, -1] for t in (x, swapped)]
    torch.testing.assert_close(*last, **CLOSE)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_cache_gives_the_logits_of_a_whole_pass(family: str, kind: str) -> None:
    model, x = tra_model(family), tokens()
    whole = model(x, use_cache=False).logits
    torch.testing.assert_close(by_cache(model, x, caches(model)[kind]), whole, **CLOSE)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the tests on the GPU generate after as much")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_next_token_by_the_fused_kernel_has_the_logits_of_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In Triton's interpreter; a long cache, with and without padding."""
    pytest.importorskip("triton")
    from outlast.kernels.tra import op, triton

    sizes = SIZES | {"hidden_size": 32, "head_dim": 16, "num_attention_heads": 2}
    sizes |= {"num_key_value_heads": 1, "num_hidden_layers": 1}
    model = tra_families.build(CONFIGS["llama"](**sizes)).float()
    x, calls = tokens(length=1030), []
    padded = torch.ones_like(x)
    padded[1, :500] = 0

    def fused(*inputs: Any, **told: Any) -> torch.Tensor:
        calls.append(told)
        return triton.decode.one_query(*inputs, **told)

    monkeypatch.setattr(triton, "one_query", fused)
    for mask in (None, padded):
        cache = DynamicCache(config=model.config)
        earlier = None if mask is None else mask[:, :-1]
        last = {"past_key_values": cache, "attention_mask": mask}
        with torch.no_grad():
            model(x[:, :-1], attention_mask=earlier, past_key_values=cache)
            wanted = model(x[:, -1:], **last).logits
            cache.crop(-1)
            with monkeypatch.context() as patch:
                patch.setattr(op, "back_end", lambda q, name="": triton)
                found = model(x[:, -1:], **last).logits
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4 * wanted.abs().max().item())
    assert len(calls) == 2


@pytest.mark.parametrize("family", FAMILIES)
def test_left_padding_changes_nothing(family: str) -> None:
    model, x = tra_model(family), tokens()
    padded, mask = left_padded(x)
    mixed, mixed_mask = padded.clone(), mask.clone()
    mixed[0, :3], mixed_mask[0, :3] = x[0, :3], 1  # a row without padding beside one with it
    whole = model(x, use_cache=False).logits
    out = model(padded, attention_mask=mask, use_cache=False).logits[:, 3:]
    torch.testing.assert_close(out, whole, **CLOSE)
    out = model(mixed, attention_mask=mixed_mask, use_cache=False).logits
    torch.testing.assert_close(out[1:, 3:], whole[1:], **CLOSE)
    alone = model(mixed[:1], use_cache=False).logits
    torch.testing.assert_close(out[:1], alone, **CLOSE)


def test_right_padding_changes_nothing_before_it() -> None:
    model, x = tra_model("llama"), tokens()
    mask = torch.ones_like(x)
    mask[0, 8:] = 0
    out = model(x, attention_mask=mask, use_cache=False).logits
    torch.testing.assert_close(out[0, :8], model(x[:1, :8]).logits[0], **CLOSE)
    torch.testing.assert_close(out[1], model(x[1:]).logits[0], **CLOSE)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("beams", [1, 3])
def test_generation_with_a_cache_is_the_same_as_without(family: str, beams: int) -> None:
    model, x = tra_model(family), tokens(length=6)
    padded, mask = left_padded(x)
    fixed: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "num_beams": beams}
    ones = torch.ones_like(x)
    without = model.generate(x, attention_mask=ones, use_cache=False, **fixed)
    assert without.shape[1] > x.shape[1] + 1
    assert torch.equal(model.generate(x, attention_mask=ones, **fixed), without)
    assert torch.equal(model.generate(padded, attention_mask=mask, **fixed)[:, 3:], without)
    fixed["cache_implementation"] = "static"
    assert torch.equal(model.generate(x, attention_mask=ones, **fixed), without)
    assert torch.equal(model.generate(padded, attention_mask=mask, **fixed)[:, 3:], without)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_generation_follows_the_whole_pass(family: str) -> None:
    model, x = tra_model(family), tokens(rows=1, length=6)
    out = model.generate(
        x, attention_mask=torch.ones_like(x), max_new_tokens=5, min_new_tokens=5, do_sample=False
    )
    logits = model(out, use_cache=False).logits
    logits[..., model.config.eos_token_id] = -torch.inf  # not before five new tokens
    assert torch.equal(logits[:, 5:-1].argmax(-1), out[:, 6:])


@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_checkpointing_gives_the_same_gradients(family: str) -> None:
    model, x = tra_model(family).train(), tokens()
    gradients = []
    for checkpointing in (False, True):
        model.zero_grad()
        if checkpointing:
            model.gradient_checkpointing_enable()
        model(x, labels=x, use_cache=False).loss.backward()
        gradients.append({n: p.grad.clone() for n, p in model.named_parameters()})
    assert all(gradients[0][n].abs().max() > 0 for n in gradients[0] if "tra_gate" in n)
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, **CLOSE)


@pytest.mark.parametrize("family", FAMILIES)
def test_training_lowers_the_loss(family: str) -> None:
    torch.manual_seed(0)
    model, x = AutoModelForCausalLM.from_config(CONFIGS[family](**SIZES)), tokens(rows=4)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(20):
        loss = model(x, labels=x, use_cache=False).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_bfloat16_stays_near_float64() -> None:
    model, x = tra_model("llama"), tokens()
    exact = model(x, use_cache=False).logits
    with torch.autocast("cpu", torch.bfloat16):
        lower = model.float()(x, use_cache=False).logits
    assert (lower - exact).abs().mean() < 0.2 * exact.abs().mean()


@pytest.mark.parametrize("family", FAMILIES)
def test_compiled_is_one_graph_and_the_same(family: str) -> None:
    torch._dynamo.reset()
    model, x = tra_model(family), tokens()
    padded, mask = left_padded(x)
    whole = model(x, use_cache=False).logits
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, use_cache=False).logits, whole, **CLOSE)
    out = compiled(padded, attention_mask=mask, use_cache=False).logits[:, 3:]
    torch.testing.assert_close(out, whole, **CLOSE)
    torch._dynamo.reset()


def test_without_threshold_every_key_is_kept() -> None:
    model, x = tra_model("llama", tra_threshold=None, tra_norm=False), tokens()
    layer = model.model.layers[0].self_attn
    states = model.model.embed_tokens(x)
    q, k, v = (p(states).view(2, 12, -1, 4) for p in (layer.q_proj, layer.k_proj, layer.v_proj))
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    k, v = (t.repeat_interleave(2, 1) for t in (k, v))
    place = torch.arange(12)
    distance = place[:, None] - place
    gate = torch.nn.functional.logsigmoid(layer.tra_gate(states)).transpose(1, 2)[..., None]
    logits = (q @ k.mT / 2 + gate * distance).masked_fill(distance < 0, -torch.inf)
    expected = layer.o_proj((logits.softmax(-1) @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(states)[0], expected, **CLOSE)
