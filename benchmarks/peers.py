"""The same job with Outlast, x-transformers and transformers: `python benchmarks/peers.py`.

A small causal Transformer with ALiBi or RoPE learns flip-flop on short rows. It is tested on rows
of 1 and 3 times that length: the share of rows with every read right. Three seeds.

Each side is written as its own README suggests. What a side does not have is written out for it:
the two others have no tasks, no seeds and no test by length. The lines of each side are counted
from its functions below, without empty lines, comments and docstrings. All are trained on the same
sampler, with the same sizes and number of steps, by AdamW on one thread of the CPU.

The time of Outlast includes its test: 2,048 rows of three kinds at each of six lengths. That of its
training alone is given beside it. That of the others includes 512 rows at each of two lengths.

Composer does the same job in `peer_composer.py`, in an environment of its own.

Needs `pip install x-transformers transformers`. Numbers go to standard output, as one JSON line for
each side.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from code_lines import code_lines

import outlast

Result = dict[str, list[float]]
#: the logits of a model for tokens
Call = Callable[[Any, torch.Tensor], torch.Tensor]


class Clock(outlast.Listener):
    """The CPU time at which training was over and the test began."""

    trained: float | None = None

    def testing(self, folder: Path) -> None:
        self.trained = cpu_seconds()


CLOCK = Clock()


def cpu_seconds() -> float:
    """CPU time of this process and of those that it started."""
    return sum(os.times()[:4])


def with_outlast(scheme: str, length: int, steps: int, seeds: int) -> Result:
    """Outlast: seeds are trained together, and the test by length is part of the library."""
    with tempfile.TemporaryDirectory() as folder:
        rows = outlast.fit(
            f"flipflop(length={length})",
            f"2 x (attention({scheme}, heads=2) > mlp) @ 32",
            f"{folder}/run",
            seeds=range(seeds),
            steps=steps,
            batch_size=32,
            lr=3e-3,
            callbacks=[CLOCK],
        )
    exact: Result = {"1": [], "3": []}
    for row in rows:
        if row["variant"] is None and row["multiple"] in (1, 3) and row["exact"]:
            exact[f"{row['multiple']:g}"].append(row["exact"]["joint"])
    return exact


def with_x_transformers(scheme: str, length: int, steps: int, seeds: int) -> Result:
    """x-transformers: the model is theirs."""
    from x_transformers import Decoder, TransformerWrapper

    task = outlast.task(f"flipflop(length={length})")

    def build() -> torch.nn.Module:
        return TransformerWrapper(
            num_tokens=task.vocabulary,
            max_seq_len=3 * length,
            use_abs_pos_emb=False,
            attn_layers=Decoder(
                dim=32,
                depth=2,
                heads=2,
                attn_dim_head=16,
                alibi_pos_bias=scheme == "alibi",
                rotary_pos_emb=scheme == "rope",
            ),
        )

    return by_hand(task, build, lambda model, inputs: model(inputs), length, steps, seeds)


def with_transformers(scheme: str, length: int, steps: int, seeds: int) -> Result:
    """Hugging Face transformers: the models are theirs. BLOOM has ALiBi, and Llama has RoPE."""
    from transformers import BloomConfig, BloomForCausalLM, LlamaConfig, LlamaForCausalLM

    task = outlast.task(f"flipflop(length={length})")

    def build() -> torch.nn.Module:
        sizes = {
            "vocab_size": task.vocabulary,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
        }
        if scheme == "alibi":
            return BloomForCausalLM(BloomConfig(**sizes))
        return LlamaForCausalLM(LlamaConfig(**sizes, intermediate_size=128))

    return by_hand(task, build, lambda model, inputs: model(inputs).logits, length, steps, seeds)


def by_hand(
    task: Any, build: Callable[[], Any], call: Call, length: int, steps: int, seeds: int
) -> Result:
    """What neither of the two has: seeds, a loop and a test by length. The task is Outlast's."""
    exact: Result = {"1": [], "3": []}
    for seed in range(seeds):
        torch.manual_seed(seed)
        model = build()
        optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        for batch, _ in zip(task.stream(batch=32, seed=seed), range(steps), strict=False):
            logits = call(model, batch.inputs).flatten(0, 1)
            loss = torch.nn.functional.cross_entropy(logits, batch.targets.flatten())
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            schedule.step()
        model.eval()
        generator = torch.Generator().manual_seed(1000 + seed)
        for multiple in (1, 3):
            batch = task.sample(multiple * length, 512, generator)
            with torch.no_grad():
                answers = call(model, batch.inputs)[..., : task.classes].argmax(-1)
            right = (answers == batch.targets) | (batch.targets < 0)
            exact[str(multiple)].append(right.all(1).float().mean().item())
    return exact


SIDES: dict[str, Callable[[str, int, int, int], Result]] = {
    "outlast": with_outlast,
    "x-transformers": with_x_transformers,
    "transformers": with_transformers,
}


def lines_of(side: str) -> int:
    """The lines that a user of a side writes."""
    return code_lines(SIDES[side]) + (0 if side == "outlast" else code_lines(by_hand))


def write_rows(path: Path, length: int, steps: int, seeds: int) -> None:
    """Write the rows of `by_hand`, as tables of all seeds, for `peer_composer.py`."""
    task = outlast.task(f"flipflop(length={length})")
    tables: dict[str, list[torch.Tensor]] = {}
    for seed in range(seeds):
        stream = task.stream(batch=32, seed=seed)
        batches = [batch for batch, _ in zip(stream, range(steps), strict=False)]
        generator = torch.Generator().manual_seed(1000 + seed)
        tests = {f" {m}": [task.sample(m * length, 512, generator)] for m in (1, 3)}
        for name, drawn in {"": batches, **tests}.items():
            tables.setdefault(f"inputs{name}", []).append(torch.cat([b.inputs for b in drawn]))
            tables.setdefault(f"targets{name}", []).append(torch.cat([b.targets for b in drawn]))
    stacked = {name: torch.stack(rows).numpy() for name, rows in tables.items()}
    np.savez_compressed(path, vocabulary=task.vocabulary, classes=task.classes, **stacked)


def main() -> None:
    """Run every side on every scheme and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schemes", nargs="+", default=["alibi", "rope"])
    parser.add_argument("--sides", nargs="+", default=list(SIDES), choices=list(SIDES))
    parser.add_argument("--length", type=int, default=16)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rows", type=Path, help="write the rows for peer_composer.py, and leave")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.rows:
        write_rows(arguments.rows, arguments.length, arguments.steps, arguments.seeds)
        return
    rows = []
    for scheme in arguments.schemes:
        for side in arguments.sides:
            started, cpu = time.perf_counter(), cpu_seconds()
            CLOCK.trained = None
            exact = SIDES[side](scheme, arguments.length, arguments.steps, arguments.seeds)
            row = {
                "side": side,
                "scheme": scheme,
                "lines": lines_of(side),
                "seconds": round(time.perf_counter() - started, 1),
                "cpu_seconds": round(cpu_seconds() - cpu, 1),
                "training_cpu_seconds": CLOCK.trained and round(CLOCK.trained - cpu, 1),
                "exact": {k: [round(x, 3) for x in v] for k, v in exact.items()},
            }
            rows.append(row)
            print(json.dumps(row), flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
