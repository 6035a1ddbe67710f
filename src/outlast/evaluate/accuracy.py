"""What counts as right: by answer, by part of the task, and jointly."""

from __future__ import annotations

from torch import Tensor

from outlast.tasks import Batch, Task


def exact_by_part(
    logits: Tensor, batch: Batch, task: Task
) -> tuple[dict[str, Tensor], dict[str, tuple[Tensor, Tensor]]]:
    """For each part, which sequences (batch,) have every answer right, ``joint`` over all asked
    parts; and for each part how many answers are right, and of how many.

    logits (batch, tokens, classes or more): only the task's classes are considered.
    """
    guess = logits[..., : task.classes].argmax(-1)
    wrong = guess != batch.targets
    exact: dict[str, Tensor] = {}
    answers: dict[str, tuple[Tensor, Tensor]] = {}
    for index, part in enumerate(task.parts):
        mask = batch.part == index
        exact[part] = ~(wrong & mask).any(1)
        answers[part] = ((~wrong & mask).sum(), mask.sum())
    joint = exact[task.asked[0]].clone()
    for part in task.asked[1:]:
        joint &= exact[part]
    return {"joint": joint, **exact}, answers
