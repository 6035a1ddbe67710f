"""Delayed attention in a Hugging Face hybrid: joint training, DAT and the control, seed by seed.

    python benchmarks/hf_hybrid.py --family olmo_hybrid --training dat --seeds 0 1 2 --out dat.json

Two layers of `transformers`, a recurrence and attention, of width 64 and without positions, learn
the composite task with modulus 2 on up to 10 items. OLMo-Hybrid has them one after the other; its
recurrence has negative eigenvalues, which a sum modulo 2 needs. Falcon-H1 has them side by side.

- ``joint``: all losses and attention from the first step.
- ``dat``: `outlast.delay` skips attention, and the recall loss is off, until the smoothed loss of
  the running sum is below 0.05, at latest at half of training.
- ``control``: the losses in that order, attention always on.
- ``dat-full``: as ``dat``, but the recall loss is on from the first step.
- ``dat-keys``: as ``dat``, and before the switch a second output is trained to name, at each digit,
  the key before it. Recall needs that: attention finds the digit by its key.

Writes for each seed the step of the switch, the share of sequences right at 1, 3 and 6 times the
training length (all answers, and by part), and ``keys``: how often a linear probe of what enters
the last layer names the key before a digit, at the switch and at the end.
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
TRAININGS = ("joint", "dat", "control", "dat-full", "dat-keys")
RIDGE = 1e-2


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


def keys_before_digits(task: Any, tokens: Tensor) -> Tensor:
    """The key before each digit, -1 elsewhere; digits come first among the tokens, then keys."""
    before = torch.cat([torch.full_like(tokens[:, :1], task.pad), tokens[:, :-1]], 1)
    digit = tokens < task.modulus
    key = (before >= task.modulus) & (before < task.modulus + task.keys)
    return torch.where(digit & key, before - task.modulus, -1)


@torch.no_grad()
def probe_keys(model: Any, task: Any, device: str) -> float:
    """How often a ridge regression on the last layer's input names the key before a digit."""
    features, labels = [], []
    for seed in (10_001, 10_002):  # fitted on the first, tested on the second
        batch = next(iter(task.stream(batch=512, seed=seed, device=device)))
        hidden = model(batch.inputs, output_hidden_states=True).hidden_states[-2]
        key = keys_before_digits(task, batch.inputs)
        found = hidden[key >= 0].double()
        features.append(torch.cat([found, torch.ones_like(found[:, :1])], 1))
        labels.append(key[key >= 0])
    (known, fresh), (answers, expected) = features, labels
    gram = known.T @ known / len(known)
    gram += RIDGE * gram.diagonal().mean() * torch.eye(len(gram), device=gram.device)
    one_hot = functional.one_hot(answers, task.keys).double()
    weights = torch.linalg.solve(gram, known.T @ one_hot / len(known))
    return float(((fresh @ weights).argmax(1) == expected).double().mean())


def train(family: str, training: str, seed: int, steps: int, device: str) -> dict[str, Any]:
    """Train one seed and test it."""
    torch.manual_seed(seed)
    task = outlast.task(TASK)
    model = build(family, task.vocabulary, task.pad).to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    delayed = None
    if training.startswith("dat"):
        delayed = outlast.delay(
            model, switch=f"below({LEVEL})", steps=steps, latest=0.5, mode="skip"
        )
    head = torch.nn.Linear(WIDTH, task.keys, device=device) if training == "dat-keys" else None
    if head is not None:
        optimiser.add_param_group({"params": head.parameters()})
    switched, level = (0, None) if training == "joint" else (None, None)
    keys = {"switch": probe_keys(model, task, device) if training == "joint" else None}
    begin = time.perf_counter()
    batches = task.stream(batch=BATCH, seed=seed, device=device)
    for step, batch in zip(range(1, steps + 1), batches, strict=False):
        warm = min(1.0, step / 200) * min(1.0, 10 * (1 - (step - 1) / steps))
        for group in optimiser.param_groups:
            group["lr"] = RATE * warm
        naming = head is not None and switched is None
        output = model(batch.inputs, output_hidden_states=naming)
        losses = part_losses(output.logits, batch, task.parts)
        if switched is None and training != "dat-full":
            losses["recall"] = 0.0 * losses["recall"]
        loss = torch.stack(list(losses.values())).sum()
        if naming:
            scores = head(output.hidden_states[-2]).transpose(1, 2)
            expected = keys_before_digits(task, batch.inputs)
            loss = loss + functional.cross_entropy(scores, expected, ignore_index=-1)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if switched is None:
            running = float(losses["running"].detach())
            if delayed is not None:
                delayed.step(running)
                done = delayed.switched
            else:
                level = smooth(level, [running])
                done = level < LEVEL or step >= steps // 2
            if done:
                switched, keys["switch"] = step, probe_keys(model, task, device)
    seconds = time.perf_counter() - begin
    if delayed is not None:
        delayed.remove()
    rows = outlast.evaluate(model, task, ladder=LADDER, sequences=512, device=device)
    right = {f"{row['multiple']:g}": row["exact"] for row in rows}
    keys["end"] = probe_keys(model, task, device)
    return {
        "seed": seed,
        "switched": switched,
        "keys": keys,
        "seconds": round(seconds, 1),
        "right": right,
    }


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
