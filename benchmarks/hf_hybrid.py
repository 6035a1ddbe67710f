"""Delayed attention in a Hugging Face hybrid: joint training, DAT and the control, seed by seed.

    python benchmarks/hf_hybrid.py --family olmo_hybrid --training dat --seeds 0 1 2 --out dat.json

Two layers of `transformers`, a recurrence and attention, of width 64 and without positions, learn
the composite task with modulus 2 on up to 10 items. OLMo-Hybrid has them one after the other; its
recurrence has negative eigenvalues, which a sum modulo 2 needs. Falcon-H1 has them side by side.

- ``joint``: all losses and attention from the first step.
- ``dat``: `outlast.delay` skips attention, and the recall loss is off, until the smoothed loss of
  the running sum is below 0.05, at latest at half of training.
- ``control``: the losses in that order, attention always on.

Writes for each seed the step of the switch, and the share of sequences right at 1, 3 and 6 times
the training length: all answers, and by part.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import outlast
from outlast.methods.triggers import smooth
from outlast.runs.folder import write_json
from outlast.tasks import Batch

try:
    import transformers
except ImportError as error:
    sys.exit(f"error: transformers cannot be imported ({error}); pip install 'outlast[hf]'")

TASK = "composite(modulus=2, keys=64, queries=4, length=10)"
WIDTH, BATCH, RATE, LEVEL, LADDER = 64, 64, 1e-3, 0.05, (1, 3, 6)
COMMON = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_attention_heads": 2}
FAMILIES: dict[str, dict[str, Any]] = {
    "olmo_hybrid": {
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "rope_parameters": None,
    },
    "falcon_h1": {
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "mamba_d_ssm": WIDTH,
        "mamba_n_heads": 4,
        "mamba_d_head": 16,
        "mamba_d_state": 32,
        "mamba_n_groups": 1,
        "mamba_chunk_size": 16,
    },
}
TRAININGS = ("joint", "dat", "control")


def build(family: str, vocabulary: int, pad: int) -> Any:
    """A tiny model of a family; padding has an embedding of zeros."""
    config = transformers.AutoConfig.for_model(
        family,
        vocab_size=vocabulary,
        pad_token_id=pad,
        use_cache=False,
        **COMMON,
        **FAMILIES[family],
    )
    return transformers.AutoModelForCausalLM.from_config(config)


def part_losses(logits: Tensor, batch: Batch, parts: tuple[str, ...]) -> dict[str, Tensor]:
    """The mean cross-entropy of the answers of each part."""
    losses = functional.cross_entropy(
        logits.transpose(1, 2).float(), batch.targets, reduction="none"
    )
    return {part: losses[batch.part == index].mean() for index, part in enumerate(parts)}


def train(family: str, training: str, seed: int, steps: int, device: str) -> dict[str, Any]:
    """Train one seed and test it."""
    torch.manual_seed(seed)
    task = outlast.task(TASK)
    model = build(family, task.vocabulary, task.pad).to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    delayed = None
    if training == "dat":
        delayed = outlast.delay(
            model, switch=f"below({LEVEL})", steps=steps, latest=0.5, mode="skip"
        )
    switched, level = (0, None) if training == "joint" else (None, None)
    begin = time.perf_counter()
    batches = task.stream(batch=BATCH, seed=seed, device=device)
    for step, batch in zip(range(1, steps + 1), batches, strict=False):
        warm = min(1.0, step / 200) * min(1.0, 10 * (1 - (step - 1) / steps))
        for group in optimiser.param_groups:
            group["lr"] = RATE * warm
        losses = part_losses(model(batch.inputs).logits, batch, task.parts)
        weights = {"recall": float(switched is not None)}
        loss = torch.stack([weights.get(part, 1.0) * each for part, each in losses.items()]).sum()
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if switched is None:
            running = float(losses["running"])
            level = smooth(level, [running])
            if delayed is not None:
                delayed.step(running)
                done = delayed.switched
            else:
                done = level < LEVEL or step >= steps // 2
            switched = step if done else None
    seconds = time.perf_counter() - begin
    if delayed is not None:
        delayed.remove()
    rows = outlast.evaluate(model, task, ladder=LADDER, sequences=512, device=device)
    right = {f"{row['multiple']:g}": row["exact"] for row in rows}
    return {"seed": seed, "switched": switched, "seconds": round(seconds, 1), "right": right}


def main() -> None:
    """Train every seed, write a file and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", choices=list(FAMILIES), default="olmo_hybrid")
    parser.add_argument("--training", choices=TRAININGS, default="dat")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results = []
    for seed in options.seeds:
        results.append(train(options.family, options.training, seed, options.steps, options.device))
        print(options.family, options.training, results[-1], flush=True)
        if options.out:
            write_json(options.out, {**vars(options), "out": str(options.out), "results": results})


if __name__ == "__main__":
    main()
