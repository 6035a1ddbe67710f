"""Text with a tokenizer of Hugging Face and from `datasets`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import outlast
from outlast.errors import OutlastError
from outlast.tasks.text import Text
from small_text import document, write_text

tokenizers = pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("text")
    folder = write_text(home / "text", 16, 3000)
    (folder / "accents.txt").write_text("Le café d'été coûte 10 €. " * 100, encoding="utf-8")
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()
    )
    inner.train([str(file) for file in sorted(folder.glob("*.txt"))], trainer)
    inner.save(str(home / "tokenizer.json"))
    return home


@pytest.fixture(scope="module")
def task(home: Path) -> Text:
    return Text(str(home / "text"), str(home / "tokenizer.json"), length=16, reach=8, test=0.3)


def test_bytes_of_the_tokens_add_up_to_the_document(task: Text) -> None:
    for packed in (task.corpus.train, task.corpus.test):
        edges = zip(packed.starts[:-1], packed.starts[1:], packed.documents, strict=True)
        for start, stop, text in edges:
            assert packed.sizes[start:stop].sum() == len(text)
    assert len(task.corpus.test) < 0.7 * sum(map(len, task.corpus.test.documents))


def test_bits_are_per_byte_and_not_per_token(task: Text) -> None:
    outputs = task.vocabulary
    (row,) = outlast.evaluate(lambda t: torch.zeros(*t.shape, outputs), task, (2,), 40)
    targets = 40 * task.window
    expected = targets * np.log2(outputs) / row["bytes"]["all"]
    assert row["bits"]["all"] == pytest.approx(expected, rel=1e-5)
    assert row["bytes"]["all"] > 1.5 * targets


def test_folder_of_a_tokenizer_is_the_same(home: Path, task: Text) -> None:
    assert Text(str(home / "text"), str(home), length=16, test=0.3).checksum == task.checksum
    assert Text(str(home / "text"), length=16, test=0.3).checksum != task.checksum


def test_words_are_distinct(task: Text) -> None:
    words = [task.word(token) for token in range(task.vocabulary)]
    assert len(set(words)) == task.vocabulary
    assert not any(" " in word for word in words)


def test_text_that_is_not_utf8_is_a_clear_error(tmp_path: Path, home: Path) -> None:
    for number in range(2):
        (tmp_path / f"{number}.txt").write_bytes(b"caf\xe9 %d" % number * 50)
    with pytest.raises(OutlastError, match=r"expected text in UTF-8.*tokenizer=bytes takes any"):
        Text(str(tmp_path), str(home / "tokenizer.json"), length=8)
    assert Text(str(tmp_path), length=8).checksum


def test_damaged_tokenizer_is_a_clear_error(tmp_path: Path, home: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(OutlastError, match=r"expected a tokenizer\.json of Hugging Face"):
        Text(str(home / "text"), str(tmp_path))


def test_unknown_name_of_a_tokenizer_is_a_clear_error(home: Path) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(OutlastError, match=r"tokenizer=no/such: expected bytes, a tokenizer\.json"):
        Text(str(home / "text"), "no/such")


def test_rows_of_a_data_set_are_documents(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    texts = [document(number, 600) for number in range(12)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    task = Text(f"hf:json:{file}", length=16, test=0.3)
    documents = {*task.corpus.train.documents, *task.corpus.test.documents}
    assert documents == {text.encode() for text in texts}
    file.write_text(json.dumps({"words": "none"}) + "\n")
    with pytest.raises(OutlastError, match="rows with a column 'text'; there are: words"):
        Text(f"hf:json:{file}", files="other", length=16)
    with pytest.raises(OutlastError, match="datasets cannot open it"):
        Text(f"hf:json:{tmp_path / 'none.jsonl'}", length=16)


def test_model_of_transformers_is_measured_in_bits(task: Text) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=task.corpus.tokenizer.size,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    rows = outlast.evaluate(model, task, (1, 4), 8)
    uniform = 8 * task.window * np.log2(config.vocab_size) / rows[0]["bytes"]["all"]
    assert [row["bits"]["all"] for row in rows] == pytest.approx([uniform] * 2, rel=0.05)
    assert rows[0]["logits_from"]
