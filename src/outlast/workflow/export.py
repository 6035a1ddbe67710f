"""From a run folder to a folder that `transformers` loads: config, weights, tokenizer, card.

Nothing of transformers is needed to write it. To load it, ``import outlast.hf``.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from outlast.arguments import as_path, check_flag
from outlast.errors import RunFolderError
from outlast.models import Model
from outlast.models.build import canonical_layout
from outlast.registry import tasks
from outlast.runs.folder import require_new_name, why, write_atomically, write_json, write_text
from outlast.runs.records import read_run
from outlast.specs import Node, Parallel, Repeat, Serial
from outlast.tasks import Task
from outlast.version import __version__
from outlast.workflow.load import load
from outlast.workflow.model_card import model_card
from outlast.workflow.tokenizer import tokenizer_files

MODEL_TYPE, ARCHITECTURE = "outlast", "OutlastForCausalLM"
CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
#: the module of ours inside the one of transformers
PREFIX = "model."


def export(
    folder: str | Path, out: str | Path, seed: int | None = None, overwrite: bool = False
) -> Path:
    """Write the trained model of one seed for transformers; returns the new folder.

    The folder holds ``config.json``, ``model.safetensors``, a ``README.md`` with the table of
    tokens, and a tokenizer if each token of the task is a word. It appears whole or not at all.

    Args:
        folder: The run folder.
        out: The folder to make.
        seed: One of the run's seeds, by default the first.
        overwrite: Replace a model that was exported to the folder before.
    """
    folder, out = as_path("folder", folder), as_path("out", out)
    check_flag("overwrite", overwrite)
    _require_free(out, overwrite)
    record = read_run(folder)
    model, task = load(folder, seed), tasks.build(record.task)
    chosen = record.seeds[0] if seed is None else int(seed)
    _replace_folder(out, lambda new: write_model(new, model, task, run=(folder.name, chosen)))
    return out


def write_model(
    folder: Path, model: Model, task: Task | None, run: tuple[str, int] | None = None
) -> None:
    """Write the files of a model into a folder. `run` is the run that it is from, and its seed."""
    values = model_config(model, task)
    write_json(folder / CONFIG, {"architectures": [ARCHITECTURE], **values})
    weights = {PREFIX + n: w.detach().contiguous() for n, w in model.state_dict().items()}
    write_atomically(
        folder / WEIGHTS, lambda file: save_file(weights, file, metadata={"format": "pt"})
    )
    files = {} if task is None else tokenizer_files(task)
    for name, content in files.items():
        write_json(folder / name, content)
    write_text(folder / CARD, model_card(values, model.size, task, run, bool(files)))


def model_config(model: Model, task: Task | None = None) -> dict[str, Any]:
    """What ``config.json`` says of a model: its line, and its sizes in the words of transformers.

    `gates` has a gate for each sublayer, or is None if all are open. `span` is the range of
    positions that were drawn in training.
    """
    gates = [float(sublayer.gate) for sublayer in model.sublayers()]
    types = layer_types(model)
    config: dict[str, Any] = {
        "model_type": MODEL_TYPE,
        "outlast_version": __version__,
        "line": str(canonical_layout(model.layout, full=True)),
        "task": None if task is None else str(getattr(task, "spec", "")) or None,
        "vocab_size": model.embedding.num_embeddings,
        "classes": model.head.out_features if task is None else task.classes,
        "hidden_size": model.layout.width,
        "num_hidden_layers": 1 if types is None else len(types),
        "layer_types": types,
        "gates": None if set(gates) == {1.0} else gates,
        "span": model.span,
        "dtype": str(model.embedding.weight.dtype).removeprefix("torch."),
        "tie_word_embeddings": False,
    }
    if model.ceiling is not None:
        config["max_position_embeddings"] = model.ceiling
    return config


def layer_types(model: Model) -> list[str] | None:
    """The kind of each block in the words of transformers; None without recurrence and attention.

    A block is one copy of what ``n x (...)`` repeats, or what stands between two repeats. Blocks
    that work token by token (`mlp`) belong to the block before them, or else to the one after.
    """
    pathways = iter([sublayer.pathway for sublayer in model.sublayers()])
    blocks = [{next(pathways) for _ in range(size)} for size in _block_sizes(model.layout.node)]
    types = [
        "hybrid" if len(kinds) == 2 else "linear_attention" if "recurrent" in kinds
        else "full_attention"
        for kinds in (block - {"pointwise"} for block in blocks) if kinds
    ]  # fmt: skip
    return types or None


def _block_sizes(node: Node) -> list[int]:
    """How many sublayers each block has."""
    match node:
        case Repeat(times, inner):
            return _block_sizes(inner) * times
        case Parallel(nodes):
            return [sum(sum(_block_sizes(inner)) for inner in nodes)]
        case Serial(nodes):
            sizes, loose = [], 0
            for inner in nodes:
                if isinstance(inner, Repeat | Serial):
                    sizes += [loose, *_block_sizes(inner)]
                    loose = 0
                else:
                    loose += sum(_block_sizes(inner))
            return [size for size in [*sizes, loose] if size]
    return [1]


# ---- the folder ----------------------------------------------------------------------------------


def _require_free(out: Path, overwrite: bool) -> None:
    """Raise if a folder is in the way; only an empty one or an exported model may be replaced."""
    require_new_name(out)
    try:
        if not out.exists() or (out.is_dir() and not any(out.iterdir())):
            return
        mine = (out / CONFIG).is_file() and _model_type(out / CONFIG) == MODEL_TYPE
    except OSError as error:
        raise RunFolderError(f"cannot use {out} for a model: {why(error)}") from None
    if not mine:
        raise RunFolderError(f"{out} holds something else than an exported model: choose another")
    if not overwrite:
        raise RunFolderError(
            f"{out} holds an exported model already: replace it with --overwrite "
            f"(overwrite=True), or choose another folder"
        )


def _model_type(path: Path) -> object:
    try:
        config = json.loads(path.read_text("utf-8"))
    except ValueError:
        return None
    return config.get("model_type") if isinstance(config, dict) else None


def _replace_folder(out: Path, write: Callable[[Path], None]) -> None:
    """Write a folder beside, then rename it. What was there before goes only then."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        home = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".tmp", dir=out.parent))
        try:
            new, old = home / "new", home / "old"
            new.mkdir()
            write(new)
            if out.exists():
                out.rename(old)
            try:
                new.rename(out)
            except OSError:
                if old.exists():
                    old.rename(out)
                raise
        finally:
            shutil.rmtree(home, ignore_errors=True)
    except OSError as error:
        raise RunFolderError(f"cannot write {out}: {why(error)}") from error
