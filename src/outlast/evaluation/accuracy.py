"""What counts as right: by answer, by part of the task, and jointly."""

from __future__ import annotations

from torch import Tensor

from outlast.errors import OutlastError
from outlast.tasks import Batch, Task


def exact_by_part(
    logits: Tensor, batch: Batch, task: Task
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Which sequences (batch,) have every answer right, and how many answers are right, by part.

    The first also has ``joint``: every answer of every asked part right.

    logits (batch, tokens, classes or more): only the task's classes are considered.
    """
    wanted = (*batch.inputs.shape, task.classes)
    if logits.ndim != 3 or logits.shape[:2] != wanted[:2] or logits.shape[2] < task.classes:
        raise OutlastError(
            f"the model's output is of shape {tuple(logits.shape)}: expected {wanted} or more "
            f"in the last axis, a score for each answer at each token"
        )
    guess = logits[..., : task.classes].argmax(-1)
    wrong = guess != batch.targets
    exact: dict[str, Tensor] = {}
    answers: dict[str, Tensor] = {}
    for index, part in enumerate(task.parts):
        mask = batch.part == index
        exact[part] = ~(wrong & mask).any(1)
        answers[part] = (~wrong & mask).sum()
    joint = exact[task.asked[0]].clone()
    for part in task.asked[1:]:
        joint &= exact[part]
    return {"joint": joint, **exact}, answers
