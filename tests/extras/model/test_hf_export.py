"""What `outlast export` writes is what transformers reads."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("transformers")

from outlast_models import model_of, task
from transformers import AutoModelForCausalLM, AutoTokenizer

import outlast
from outlast.cli import main
from outlast.hf import OutlastForCausalLM
from outlast.registry import tasks
from outlast.workflow.export import write_model
from outlast.workflow.tokenizer import tokenizer_files
from tiny_runs import tiny, trained

#: tasks whose tokens are words
WORDED = (
    "addition(hints=true)", "composite", "copy", "count", "dyck", "entangled_parity", "flipflop",
    "hierarchical_flipflop", "majority", "modsum", "needle", "parity", "permutation",
    "recall", "recall(fillers=2)", "regular", "reverse", "sort", "set_complement",
    "composite(group=S3, keys=25)", "regular(language=cycle_navigation)",
)  # fmt: skip


def test_exported_seed_has_the_logits_of_the_loaded_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = tiny("dat(switch=5)", model="2 x (lstm > attention(tra, heads=2) > mlp) @ 16", steps=10)
    trained(run, tmp_path / "run")
    assert main(["export", "run", "model", "--seed", "1"]) == 0
    loaded, info = AutoModelForCausalLM.from_pretrained("model", output_loading_info=True)
    assert not any(info.values())
    wanted, tokens = outlast.load("run", 1), torch.randint(36, (4, 30))
    assert torch.equal(loaded(tokens).logits, wanted(tokens)[0])
    assert loaded.config.layer_types == ["hybrid", "hybrid"]


def test_export_writes_what_save_pretrained_writes(tmp_path: Path) -> None:
    model, mine, theirs = model_of(), tmp_path / "mine", tmp_path / "theirs"
    mine.mkdir()
    write_model(mine, model, task())
    OutlastForCausalLM.from_model(model, task()).save_pretrained(theirs)
    config, wanted = (json.loads((f / "config.json").read_text()) for f in (mine, theirs))
    assert wanted.pop("transformers_version")
    assert wanted.pop("use_cache")  # a default
    assert config == wanted
    assert (mine / "model.safetensors").stat().st_size == (
        theirs / "model.safetensors"
    ).stat().st_size


@pytest.mark.parametrize("name", WORDED)
def test_tokenizer_reads_and_writes_every_token(name: str, tmp_path: Path) -> None:
    built = tasks.build(name)
    write_model(tmp_path, outlast.model("lstm @ 8", built, seed=0), built)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    (tokens,) = built.sample(built.lengths[1], 1, torch.Generator().manual_seed(0)).inputs.tolist()
    for ids in (tokens, list(range(built.vocabulary))):
        text = " ".join(map(built.word, ids))
        assert tokenizer(text)["input_ids"] == ids
        assert tokenizer.decode(ids) == text
    assert len(tokenizer) == built.vocabulary


def test_bytes_of_a_text_are_its_tokens(tmp_path: Path) -> None:
    text_task = tasks.build("text(length=64)")
    write_model(tmp_path, outlast.model("lstm @ 8", text_task, seed=0), text_task)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    text = "".join(map(chr, range(1, 400))) + " Größe · ¶\n\n  naïve 漢字 🙂\t"
    ids = tokenizer(text)["input_ids"]
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (text_task.boundary,) * 2
    assert tokenizer.pad_token_id == text_task.pad


def test_text_in_tokens_of_another_tokenizer_has_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    text_task = tasks.build("text(length=64)")
    monkeypatch.setattr(text_task, "corpus", SimpleNamespace(tokenizer=object()))
    assert tokenizer_files(text_task) == {}


def test_tokenizer_refuses_a_word_that_is_no_token(tmp_path: Path) -> None:
    write_model(tmp_path, model_of(), task())
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    with pytest.raises(Exception, match="WordLevel error"):
        tokenizer("0 1 k0 nonsense")


def test_padded_texts_are_continued_as_alone(tmp_path: Path) -> None:
    write_model(tmp_path, model_of(), task())
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, padding_side="left")
    model, texts = AutoModelForCausalLM.from_pretrained(tmp_path), ["0 1 k3 k7 =", "1 k2"]
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    together = model.generate(**batch, max_new_tokens=6, do_sample=False)
    for row, text in zip(together, texts, strict=True):
        tokens = tokenizer(text, return_tensors="pt").input_ids
        assert row[-6:].tolist() == model.model.generate(tokens, 6)[0, -6:].tolist()
