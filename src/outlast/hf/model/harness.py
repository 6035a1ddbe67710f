"""The lm-evaluation-harness on a model of transformers, an Outlast model among them.

Its command line does not import Outlast, so it cannot load a model of the type `outlast`. Its
Python interface takes a model that is loaded already.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from os import PathLike
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from outlast.arguments import as_path, as_whole, shown
from outlast.errors import OutlastError, bad_value
from outlast.evaluation.remarks import delay_remark

log = logging.getLogger(__name__)
MOST = 2**31 - 1


def lm_eval(
    model: PreTrainedModel | str | PathLike[str],
    tasks: str | Sequence[str],
    tokenizer: Any = None,
    tasks_folder: str | PathLike[str] | None = None,
    batch_size: int = 8,
    max_length: int | None = None,
    **options: Any,
) -> dict[str, Any]:
    """The results of the lm-evaluation-harness: what its `simple_evaluate` returns.

    A warning is logged if the model was saved while `outlast.delay` held its attention back.

    Args:
        model: A model of transformers, or the folder of one, such as that of ``outlast export``.
        tasks: Names of the harness's tasks.
        tokenizer: The model's tokenizer, by default the one in its folder.
        tasks_folder: A folder with tasks of your own, as YAML files.
        batch_size: Sequences at a time.
        max_length: The most tokens of a sequence, by default the model's limit if it has one, else
            what the harness takes.
        options: For `simple_evaluate`, such as ``limit=100``.
    """
    try:
        from lm_eval import simple_evaluate
        from lm_eval.models.huggingface import HFLM
        from lm_eval.tasks import TaskManager
    except ImportError:
        raise OutlastError(
            "lm_eval needs the harness: install it with pip install lm-eval"
        ) from None
    model, tokenizer = _loaded(model, tokenizer)
    if remark := delay_remark(model):
        log.warning(remark)
    names = [tasks] if isinstance(tasks, str) else list(tasks)
    accepted = "names of the harness's tasks, or of those in tasks_folder"
    if not names:
        raise bad_value("tasks", "", accepted)
    folder = None if tasks_folder is None else as_path("tasks_folder", tasks_folder)
    if folder is not None and not folder.is_dir():
        raise bad_value("tasks_folder", shown(str(folder)), "a folder with tasks as YAML files")
    length = {} if max_length is None else {"max_length": as_whole("max_length", max_length, 2)}
    batch = as_whole("batch_size", batch_size, 1, MOST)
    prefix = _prefix(tokenizer)
    wrapped = HFLM(
        pretrained=model, tokenizer=tokenizer, batch_size=batch, prefix_token_id=prefix, **length
    )
    for own in (True, False) if folder is not None else (False,):
        # to look through the harness's own tasks takes half a minute
        paths = None if folder is None else str(folder)
        manager = TaskManager(include_path=paths, include_defaults=not own)
        unknown = [name for name in names if not manager.match_tasks([name])]
        if not unknown:
            break
    else:
        raise bad_value("tasks", ", ".join(unknown), accepted)
    results: dict[str, Any] = simple_evaluate(
        model=wrapped, tasks=names, task_manager=manager, **options
    )
    return results


def _loaded(model: Any, tokenizer: Any) -> tuple[PreTrainedModel, Any]:
    if isinstance(model, PreTrainedModel):
        if tokenizer is None:
            raise bad_value("tokenizer", None, "the model's tokenizer, as the model has no folder")
        return model.eval(), tokenizer
    folder = as_path("model", model)
    if not folder.is_dir():
        raise bad_value("model", shown(str(folder)), "a model, or a folder with one")
    if tokenizer is None:
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder)
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise bad_value(
                "tokenizer", None, f"a tokenizer, as {folder} has none: {reason}"
            ) from None
    return AutoModelForCausalLM.from_pretrained(folder).eval(), tokenizer


def _prefix(tokenizer: Any) -> int | None:
    """What stands before a text without a context; padding, if there is nothing else: our guess."""
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    tokens = [getattr(tokenizer, name, None) for name in names]
    return next((token for token in tokens if token is not None), None)
