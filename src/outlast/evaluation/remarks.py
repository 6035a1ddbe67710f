"""What a reader of results must know beside the accuracies, in words."""

from __future__ import annotations

from collections.abc import Sequence

from outlast.runs.records import ResultRow


def nan_remarks(rows: Sequence[ResultRow]) -> list[str]:
    """Where the logits of answers decide nothing: one sentence for each test and length.

    ``length 8: the logits of 3 % of the answers are NaN or all -inf (seed 2); they count as wrong``
    """
    shares: dict[tuple[str, float], dict[int | None, float]] = {}
    for row in rows:
        if row.get("nan"):
            key = (row["variant"] or "", row["length"])
            shares.setdefault(key, {})[row.get("seed")] = row["nan"]
    return [_sentence(variant, length, by_seed) for (variant, length), by_seed in shares.items()]


def _sentence(variant: str, length: float, by_seed: dict[int | None, float]) -> str:
    seeds = [str(seed) for seed in by_seed if seed is not None]
    which = f" (seed{'s' * (len(seeds) > 1)} {', '.join(seeds)})" if seeds else ""
    bound = "up to " if len(set(by_seed.values())) > 1 else ""
    return (
        f"length {length:g}{f', {variant}' if variant else ''}: the logits of {bound}"
        f"{100 * max(by_seed.values()):.3g} % of the answers are NaN or all -inf{which}; "
        "they count as wrong"
    )
