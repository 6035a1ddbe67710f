"""A trained seed as a folder for transformers: whole or not at all, and never over other files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import outlast
from outlast.errors import OutlastError, RunFolderError, SpecError
from outlast.registry import tasks
from outlast.runs.folder import RUN
from outlast.workflow import export as exporting
from outlast.workflow.export import export
from outlast.workflow.tokenizer import token_words, tokenizer_files
from tiny_runs import create, halt, tiny, trained

FILES = {
    "README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
}  # fmt: skip


#: tasks whose tokens are words
WORDED = (
    "addition(hints=true)", "composite", "copy", "count", "dyck", "entangled_parity", "flipflop",
    "hierarchical_flipflop", "majority", "modsum", "needle", "parity", "permutation",
    "recall", "recall(fillers=2)", "regular", "reverse", "sort", "set_complement",
    "composite(group=S3, keys=25)", "regular(language=cycle_navigation)",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two seeds with every output a token."""
    home = tmp_path_factory.mktemp("export")
    model = "lstm | attention(heads=2) > mlp @ 16"
    return trained(tiny(model=model, seeds=(4, 7), steps=10, probe_every=0), home / "run")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("seed", [None, 4, 7])
def test_weights_are_those_of_the_seed(folder: Path, tmp_path: Path, seed: int | None) -> None:
    assert export(folder, tmp_path / "model", seed) == tmp_path / "model"
    assert set(contents(tmp_path / "model")) == FILES
    weights = load_file(tmp_path / "model" / "model.safetensors")
    wanted = outlast.load(folder, 4 if seed is None else seed).state_dict()
    assert weights.keys() == {f"model.{name}" for name in wanted}
    assert all(torch.equal(weights[f"model.{n}"], w) for n, w in wanted.items())
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_config_can_build_the_model_again(folder: Path, tmp_path: Path) -> None:
    export(folder, tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    model = outlast.model(config["line"], config["task"])
    assert model.state_dict().keys() == outlast.load(folder).state_dict().keys()
    assert (config["model_type"], config["layer_types"]) == ("outlast", ["hybrid"])
    assert config["vocab_size"] == 36


def test_unfinished_first_phase_is_named_and_its_gates_are_in_the_config(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = create(tiny("dat(switch=20)", probe_every=0), tmp_path / "run")
    halt(run)  # after its first checkpoint
    loaded = outlast.load(run)
    assert f"{run} is unfinished: these are the weights of step" in caplog.text
    gates = [float(sublayer.gate) for sublayer in loaded.sublayers()]
    assert 0.0 in gates
    export(run, tmp_path / "model")
    assert json.loads((tmp_path / "model" / "config.json").read_text())["gates"] == gates


def test_card_names_model_task_seed_and_tokens(folder: Path, tmp_path: Path) -> None:
    export(folder, tmp_path / "model", 7)
    card = (tmp_path / "model" / "README.md").read_text()
    task = tasks.build(json.loads((tmp_path / "model" / "config.json").read_text())["task"])
    layers = r"default, forget_bias=none, input_bias=none) \| attention("
    for words in ("run, seed 7", str(task.spec), layers):
        assert words in card
    for token in range(task.vocabulary):
        assert f"{token:>6}  {task.word(token)}\n" in card


@pytest.mark.parametrize("name", WORDED)
def test_every_token_of_a_task_is_a_word_of_its_own(name: str) -> None:
    task = tasks.build(name)
    vocabulary = tokenizer_files(task)["tokenizer.json"]["model"]["vocab"]
    assert {token: word for word, token in vocabulary.items()} == dict(enumerate(token_words(task)))


def test_tokens_that_share_a_word_get_no_tokenizer() -> None:
    task = outlast.task("parity")
    for word in ("same", "a b", ""):
        task.word = lambda token, word=word: word if token < 2 else str(token)  # type: ignore[method-assign]
        assert tokenizer_files(task) == {}


def test_exported_model_is_replaced_only_with_overwrite(folder: Path, tmp_path: Path) -> None:
    out = export(folder, tmp_path / "model", 4)
    before = contents(out)
    with pytest.raises(RunFolderError, match=r"exported model already: .*--overwrite"):
        export(folder, out, 7)
    assert contents(out) == before
    export(folder, out, 7, overwrite=True)
    assert contents(out) != before
    assert set(contents(out)) == FILES


def test_other_files_are_never_replaced(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    for name, text in (("notes.txt", "mine"), ("config.json", '{"model_type": "llama"}')):
        other.mkdir()
        (other / name).write_text(text)
        with pytest.raises(RunFolderError, match="holds something else"):
            export(folder, other, overwrite=True)
        assert contents(other) == {name: text.encode()}
        shutil.rmtree(other)
    with pytest.raises(RunFolderError, match="holds something else"):
        export(folder, folder, overwrite=True)
    assert (folder / RUN).is_file()


def test_empty_folder_is_no_hindrance(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    export(folder, tmp_path / "empty")
    assert set(contents(tmp_path / "empty")) == FILES


@pytest.mark.parametrize("overwrite", [False, True])
def test_error_while_writing_leaves_what_was_there(
    folder: Path, tmp_path: Path, overwrite: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "model"
    before = contents(export(folder, out, 4)) if overwrite else None

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exporting, "write_text", full)
    with pytest.raises(RunFolderError, match=r"cannot write .*model: No space left on device"):
        export(folder, out, 7, overwrite)
    assert (contents(out) if out.exists() else None) == before
    assert {path.name for path in tmp_path.iterdir()} <= {"model"}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"seed": 3}, OutlastError, "seed=3: .* has the seeds 4, 7"),
        ({"seed": -1}, SpecError, "seed=-1"),
        ({"seed": "4"}, SpecError, "seed='4'"),
        ({"out": 3}, SpecError, r"out=3 \(int\): expected a path"),
        ({"overwrite": "yes"}, SpecError, "overwrite='yes': expected True or False"),
        ({"folder": "missing"}, RunFolderError, "missing has no run.json"),
    ],
)
def test_bad_argument_is_named_and_leaves_nothing(
    arguments: dict[str, Any], error: type[Exception], message: str, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        export(**{"folder": folder, "out": tmp_path / "model", **arguments})
    assert list(tmp_path.iterdir()) == []
