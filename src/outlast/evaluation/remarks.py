"""What a reader of results must know beside the accuracies, in words."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from outlast.methods.delay import held_back
from outlast.methods.delay.sublayer import HeldSublayer
from outlast.runs.records import ResultRow


def delay_remark(model: object) -> str | None:
    """What to say of a model that was saved while its attention was held back, and is on here.

    None for other models, and for one whose `outlast.delay` is at work.
    """
    if not isinstance(model, nn.Module) or any(map(HeldSublayer.of, model.modules())):
        return None
    saved = held_back(model)
    return None if saved is None else f"{saved}; it is measured as it is, with attention on"


def nan_remarks(rows: Sequence[ResultRow]) -> list[str]:
    """Where logits decide nothing: one sentence for each test and length.

    ``length 8: the logits of 3 % of the answers are NaN or all -inf (seed 2); they count as wrong``
    """
    shares: dict[tuple[str, float, bool], dict[int | None, float]] = {}
    for row in rows:
        if row.get("nan"):
            key = (row["variant"] or "", row["length"], row.get("bits") is not None)
            shares.setdefault(key, {})[row.get("seed")] = row["nan"]
    return [_sentence(*key, by_seed) for key, by_seed in shares.items()]


def _sentence(variant: str, length: float, of_text: bool, by_seed: dict[int | None, float]) -> str:
    seeds = [str(seed) for seed in by_seed if seed is not None]
    which = f" (seed{'s' * (len(seeds) > 1)} {', '.join(seeds)})" if seeds else ""
    bound = "up to " if len(set(by_seed.values())) > 1 else ""
    asked, outcome = "answers are NaN or all -inf", "they count as wrong"
    if of_text:
        asked, outcome = "tokens are NaN", "parts with one of them have no result"
    return (
        f"length {length:g}{f', {variant}' if variant else ''}: the logits of {bound}"
        f"{100 * max(by_seed.values()):.3g} % of the {asked}{which}; {outcome}"
    )
