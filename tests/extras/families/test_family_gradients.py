"""Gradient attribution on hybrids of `transformers`: attention and recurrence are found."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from outlast.analysis.module_gradients import module_gradients
from outlast.hf.families import FAMILIES


@pytest.mark.parametrize("name", ["bamba", "jamba", "olmo_hybrid"])
def test_recurrent_layer_before_attention_learns_through_it(name: str) -> None:
    (family,) = (each for each in FAMILIES if each.name == name)
    if not family.is_installed:
        pytest.skip(f"this transformers has no {name}")
    model = family.build().eval()
    tokens = torch.arange(1, 9)[None]

    def loss() -> Tensor:
        result: Tensor = model(tokens, labels=tokens, use_cache=False).loss
        return result

    rows = {r["layer"]: r for r in module_gradients(model, loss) if r["part"] == "all"}
    first = next(iter(rows))
    whole = rows["all"]
    assert ".0." in first
    for row in (rows[first], whole):
        assert row["attention_norm"] > 0  # type: ignore[operator]
        assert row["direct_norm"] > 0  # type: ignore[operator]
    grads = torch.autograd.grad(
        loss(), [p for n, p in model.named_parameters() if n.startswith(first)]
    )
    norm = math.sqrt(sum(g.double().square().sum().item() for g in grads))
    assert rows[first]["norm"] == pytest.approx(norm, rel=1e-4)
    assert all(p.grad is None for p in model.parameters())
