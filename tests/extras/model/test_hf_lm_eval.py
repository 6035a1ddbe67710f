"""The lm-evaluation-harness on an exported model, with tasks of one's own and no network."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from outlast_models import model_of, task
from transformers import AutoTokenizer

import outlast.hf
from outlast.errors import OutlastError, SpecError
from outlast.hf import OutlastForCausalLM
from outlast.workflow.export import write_model

CHOICES = """task: which_answer
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{text}}}}"
doc_to_choice: ["0", "1"]
doc_to_target: "{{{{answer}}}}"
metric_list: [{{metric: acc}}]
"""
ROLLING = """task: whole_text
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list: [{{metric: word_perplexity}}]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported model, and two tasks of ten texts."""
    home = tmp_path_factory.mktemp("harness")
    write_model(home, model_of(), task())
    generator = torch.Generator().manual_seed(1)
    data, tasks = home / "data.jsonl", home / "tasks"
    rows = []
    for number in range(10):
        tokens = torch.randint(11, (3 + number % 4,), generator=generator).tolist()
        rows.append({"text": " ".join(map(task().word, tokens)), "answer": number % 2})
    data.write_text("\n".join(map(json.dumps, rows)))
    tasks.mkdir()
    (tasks / "choices.yaml").write_text(CHOICES.format(data=data))
    (tasks / "rolling.yaml").write_text(ROLLING.format(data=data))
    return home


@torch.no_grad()
def likelihoods(tokens: list[int]) -> torch.Tensor:
    """The log-likelihood of each token after the first."""
    logits = model_of()(torch.tensor([tokens[:-1]]))[0][0].log_softmax(-1)
    return logits.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]


def test_harness_measures_what_the_model_says(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lm_eval")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    rows = [json.loads(line) for line in (folder / "data.jsonl").read_text().splitlines()]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    results = outlast.hf.lm_eval(
        folder, ["which_answer", "whole_text"], tasks_folder=folder / "tasks", batch_size=4,
        max_length=64, bootstrap_iters=0,
    )["results"]  # fmt: skip
    right, total = 0, 0.0
    for row in rows:
        tokens = tokenizer(row["text"])["input_ids"]
        choice = max((0, 1), key=lambda answer: likelihoods([*tokens, answer])[-1].item())
        right += choice == row["answer"]
        total += likelihoods([tokenizer.pad_token_id, *tokens]).sum().item()
    words = sum(len(row["text"].split()) for row in rows)
    assert results["which_answer"]["acc,none"] == right / len(rows)
    perplexity = results["whole_text"]["word_perplexity,none"]
    assert perplexity == pytest.approx(torch.tensor(-total / words).exp().item(), rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "missing"}, "model='missing': expected a model, or a folder with one"),
        ({"tasks": ["no_such_task"]}, "tasks=no_such_task: expected names"),
        ({"tasks": []}, "tasks=: expected names"),
        ({"tasks_folder": "missing"}, "tasks_folder='missing': expected a folder"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"model": OutlastForCausalLM.from_model(model_of())}, "tokenizer=None: expected the"),
    ],
)
def test_bad_argument_is_named(
    arguments: dict[str, Any], message: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = pytest.importorskip("lm_eval.tasks")
    whole = harness.TaskManager

    def without_defaults(include_path: str, include_defaults: bool) -> Any:
        """To look through the harness's own tasks takes half a minute."""
        return whole(include_path=include_path, include_defaults=False)

    monkeypatch.setattr(harness, "TaskManager", without_defaults)
    call = {"model": folder, "tasks": "which_answer", "tasks_folder": folder / "tasks"}
    with pytest.raises(SpecError, match=message):
        outlast.hf.lm_eval(**{**call, **arguments})


def test_missing_harness_is_an_error_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(OutlastError, match="pip install lm-eval"):
        outlast.hf.lm_eval(folder, "which_answer")
