"""Broken seeds change no sound one, for every registered mixer, scheme and weights.

Sound and broken seeds are stacked and trained by the library's own step. The weights of the broken
seeds are NaN, infinite or huge: all of them, or a few. The sound seeds must be, bit for bit, what
they are where all seeds are sound. This holds in training, and in a test on longer sequences.
"""

from __future__ import annotations

import math
from typing import Literal

import pytest
import torch
from test_every_scheme import PLAIN, SPECS
from test_every_seed import MODELS
from torch import Tensor

from outlast.mixers.attention import blocks
from outlast.train.run_state import RunState
from outlast.train.seeds import SeedState
from outlast.train.step import Stepper
from outlast.workflow.create import canonical
from small_attention import WIDTH
from tiny_runs import CPU, tiny

#: by seed, what is put in place of weights, and in every which of them
BREAKS = {
    1: (math.nan, 1), 2: (math.inf, 1), 3: (1e38, 1),
    5: (math.nan, 29), 6: (math.inf, 29), 7: (1e38, 29),
}  # fmt: skip
SEEDS, SOUND = range(9), [0, 4, 8]
STEPS = 2
ATTENTION = [f"{spec} @ {WIDTH}" for spec in SPECS]
PLAIN_ATTENTION = [f"{spec} @ {WIDTH}" for spec in PLAIN]
OTHERS = [model for model in MODELS if not model.startswith("attention")]


def assert_broken_seeds_change_no_other(model: str, by_length: bool = False) -> None:
    run = canonical(
        tiny(
            task="parity(length=4)", model=model, seeds=tuple(SEEDS), by_length=by_length,
            steps=STEPS, steps_per_block=STEPS, batch_size=2, warmup=0, probe_every=0,
        )
    )  # fmt: skip
    seeds = SeedState.create([run], CPU)
    plan, data = RunState(run, seeds).next_block()
    stepper = Stepper(seeds, seeds.model.task.parts, bf16=False, by_length=by_length)
    start = seeds.read()

    def results() -> tuple[list[Tensor], Tensor]:
        """State, metrics and logits of a test by the sound seeds, and all losses."""
        metrics = stepper.run(data, plan)
        with torch.no_grad():
            logits = seeds.model.run(data.inputs[0].repeat(1, 1, 3))
        tables = [table[SOUND].clone() for table in seeds.tables()]
        return [*tables, metrics[:, SOUND], logits[SOUND]], metrics[:, :, 0]

    wanted, _ = results()
    seeds.write(start)
    with torch.no_grad():
        for row, (value, every) in BREAKS.items():
            weights = seeds.model.table[row, ::every]
            weights.copy_(torch.full_like(weights, value).copysign(weights))
    actual, losses = results()
    assert not losses[:, [1, 2, 3]].isfinite().all(), "nothing is broken: this shows nothing"
    for one, other in zip(actual, wanted, strict=True):
        assert other.isfinite().all()
        assert torch.equal(one, other)


@pytest.mark.parametrize("model", OTHERS + ATTENTION)
@pytest.mark.parametrize("lengths", ["padded", "by length"])
def test_broken_seed_changes_no_other(model: str, lengths: Literal["padded", "by length"]) -> None:
    assert_broken_seeds_change_no_other(model, lengths == "by length")


@pytest.mark.parametrize("model", PLAIN_ATTENTION)
def test_broken_seed_changes_no_other_row_by_row(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "BUDGET", 1)
    assert_broken_seeds_change_no_other(model)
