"""Delayed attention in hybrids of `transformers`: four families of different structure.

The other families are checked by ``python -m outlast.hf.families``.
"""

import copy
import json
import logging
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

import transformers
from torch._dynamo.testing import CompileCounter

import outlast
from outlast.errors import OutlastError, SpecError
from outlast.hf import families
from outlast.hf.families import FAMILIES, document, family
from outlast.hf.family_checks import CHECKS, Result, delayed, ramp_shares, tokens
from outlast.methods.delay import handle, held_back

TABLE = Path(__file__).parents[3] / "docs" / "families.md"
#: attention beside Mamba; a norm after attention; one name for attention and recurrence; no
#: `layer_types` in the config
TESTED = ("bamba", "olmo_hybrid", "kimi_linear", "recurrent_gemma")
#: the cache of these differs from a whole pass, with or without Outlast
KNOWN = {("bamba", "chunks = whole"), ("recurrent_gemma", "chunks = whole")}

for one in FAMILIES:  # a floor: all but the newest are in transformers 5.17
    assert one.is_installed or one.name in ("bailing_hybrid",), one.name


@pytest.fixture(autouse=True)
def quiet():
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def olmo():
    return family("olmo_hybrid").build()


def train(model, delay, steps: int, call=None) -> torch.optim.Optimizer:
    call = model if call is None else call
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.5)
    for _ in range(steps):
        loss = call(input_ids=tokens(), labels=tokens(), use_cache=False).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        delay.step(loss)
    return optimiser


# ---- the checks of the table -------------------------------------------------------------------


@pytest.mark.parametrize("column", CHECKS)
@pytest.mark.parametrize("name", TESTED)
def test_family_passes_the_check_of_the_table(name, column):
    result = CHECKS[column](family(name).build)
    assert result.passed == ((name, column) not in KNOWN), result.detail


def test_structures_differ_in_where_the_gate_sits():
    assert delayed(olmo()).gated == [f"model.layers.{i}.post_attention_layernorm" for i in (1, 3)]
    zamba = delayed(family("zamba2").build(), mode="ramp")
    assert zamba.gated == ["model.layers.1.linear", "model.layers.3.linear"]
    assert "gate after [model.layers.1.linear, model.layers.3.linear]" in repr(zamba)
    for name in ("falcon_h1", "minimax"):
        handle = delayed(family(name).build(), mode="ramp")
        assert handle.gated == handle.modules


@pytest.mark.parametrize("name", ["olmo_hybrid", "zamba2"])
def test_gate_before_a_norm_would_not_scale(name, monkeypatch):
    shares = ramp_shares(family(name).build)
    assert shares[0.5] == pytest.approx(0.5, abs=0.05)
    assert shares[0.1] == pytest.approx(0.1, abs=0.05)
    monkeypatch.setattr(handle, "find_flow", lambda *args, **kwargs: None)
    assert all(share > 0.9 for share in ramp_shares(family(name).build).values())


# ---- what is refused ---------------------------------------------------------------------------


def llama(**settings):
    config = transformers.LlamaConfig(**{**families.COMMON, **settings})
    return transformers.AutoModelForCausalLM.from_config(config)


def test_transformer_without_recurrence_is_refused_unless_told():
    with pytest.raises(SpecError, match=r"LlamaForCausalLM: no recurrence found.*recurrence=False"):
        outlast.delay(llama())
    assert len(outlast.delay(llama(), recurrence=False).modules) == 4


@pytest.mark.parametrize("name", ["lfm2", "zaya"])
def test_convolution_is_no_recurrence(name):
    with pytest.raises(SpecError, match="no recurrence found"):
        outlast.delay(family(name).build())


def test_model_without_attention_is_refused():
    config = transformers.MambaConfig(vocab_size=8, hidden_size=16, num_hidden_layers=1)
    with pytest.raises(SpecError, match="MambaForCausalLM: no attention found"):
        outlast.delay(transformers.AutoModelForCausalLM.from_config(config))


def test_config_that_does_not_fit_the_model_is_refused():
    model = olmo()
    model.config.layer_types[0] = "full_attention"
    with pytest.raises(SpecError, match=r"attention in 3 layers \(0, 1, 3\), but 2 attention"):
        outlast.delay(model)


def test_ramp_on_a_model_without_data_is_refused():
    with torch.device("meta"):
        model = olmo()
    with pytest.raises(SpecError, match=r"mode=ramp.*has no data yet"):
        outlast.delay(model, mode="ramp")
    assert outlast.delay(model).modules


# ---- training ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["skip", "ramp", "freeze", "detach"])
def test_compiled_model_has_one_graph_for_each_phase(mode):
    torch._dynamo.reset()
    model, counter = olmo(), CompileCounter()
    plain = copy.deepcopy(model)
    arguments = {"mode": mode, "switch": 2, "ramp": 4}
    train(model, delayed(model, **arguments), 8, torch.compile(model, backend=counter))
    assert counter.frame_count == (3 if mode == "ramp" else 2)
    train(plain, delayed(plain, **arguments), 8)
    one, two = (net(input_ids=tokens(), use_cache=False).logits for net in (model, plain))
    torch.testing.assert_close(one, two, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("mode", ["skip", "ramp", "freeze"])
@pytest.mark.parametrize("checkpointing", [False, True], ids=["plain", "gradient checkpointing"])
def test_weight_decay_does_not_move_what_is_held_back(mode, checkpointing):
    model = olmo()
    if checkpointing:
        model.gradient_checkpointing_enable()
    model.train()
    before = copy.deepcopy(model.state_dict())
    delay = delayed(model, mode=mode, switch=3, ramp=2)
    optimiser = train(model, delay, 3)
    parts = ("self_attn",) if mode == "freeze" else ("self_attn", "1.post_att", "3.post_att")
    for name, parameter in model.named_parameters():
        held = any(part in name for part in parts)
        assert torch.equal(parameter, before[name]) == held, name
        assert (parameter in optimiser.state) != held, name
    train(model, delay, 2)
    moved = [not torch.equal(p, before[n]) for n, p in model.named_parameters()]
    assert all(moved)


def test_gradient_checkpointing_trains_the_same_weights():
    models = [olmo(), olmo()]
    models[1].gradient_checkpointing_enable()
    for model in models:
        model.train()
        train(model, delayed(model, mode="ramp", switch=2, ramp=2), 5)
    for one, two in zip(*[m.parameters() for m in models], strict=True):
        torch.testing.assert_close(one, two)


# ---- saving ------------------------------------------------------------------------------------


def test_model_saved_in_phase_one_says_so_and_continues(tmp_path, caplog):
    model = olmo()
    delay = delayed(model, mode="ramp", switch=2, ramp=2)
    delay.step(1.0)
    model.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())["delayed_attention"]
    assert saved["modules"] == delay.modules
    assert saved["mode"] == "ramp"
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert "saved in phase 1, after 1 steps" in held_back(loaded)
    caplog.set_level(logging.WARNING, "outlast")
    again = delayed(loaded, mode="ramp", switch=2, ramp=2)
    assert "was saved in phase 1, after 1 steps" in caplog.text
    again.load_state_dict(saved)
    assert again.step(1.0), "the second step switches"
    assert "while attention was opening" in held_back(loaded)
    again.step(1.0)
    assert held_back(loaded) is None
    assert "delayed_attention" not in loaded.config.to_json_string()


def test_removed_delay_leaves_nothing_in_the_config():
    model = olmo()
    delay = delayed(model)
    assert held_back(model) is not None
    delay.remove()
    assert held_back(model) is None


# ---- the document ------------------------------------------------------------------------------


def test_committed_table_names_every_family_and_check():
    rows = [line for line in TABLE.read_text().splitlines() if line.startswith("| ")]
    header, *body = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert header == ["family", *CHECKS]
    assert [row[0] for row in body] == [one.name for one in FAMILIES]
    for row in body:
        failed = {(row[0], c) for c, cell in zip(header, row, strict=True) if "**no**" in cell}
        if row[0] in TESTED:
            assert failed == {known for known in KNOWN if known[0] == row[0]}


def test_document_gives_the_reason_and_names_absent_families():
    passed = dict.fromkeys(CHECKS, Result(True))
    text = document({"one": {**passed, "resumes": Result(False, "because")}, "two": None}, "today")
    assert "| one | yes | yes | yes | **no** [1] |" in text
    assert "1. one, resumes: because" in text
    assert "| two | not installed |" in text


def test_unknown_family_is_refused():
    with pytest.raises(OutlastError, match="family=nope: expected one of jamba"):
        families.main(["nope"])
