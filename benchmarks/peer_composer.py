"""The job of `peers.py` with Composer, in an environment of its own.

Composer 0.32.1 needs a torch below 2.7.1, so Outlast cannot stand beside it. The rows come from a
file that `python benchmarks/peers.py --rows rows.npz` writes in the environment of Outlast. Then::

    python3 -m venv composer
    composer/bin/pip install mosaicml==0.32.1 x-transformers
    composer/bin/python benchmarks/peer_composer.py rows.npz

Composer has no models of its own, so the model is that of x-transformers. Loop, schedule, clipping
and seeding are Composer's. It has no test by length: that is written out.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import numpy as np
import torch
from code_lines import code_lines


def with_composer(scheme: str, rows: dict[str, np.ndarray], seeds: int) -> dict[str, list[float]]:
    """Composer: the loop is theirs."""
    from composer import Trainer
    from composer.algorithms import GradientClipping
    from composer.models import ComposerModel
    from composer.optim import CosineAnnealingScheduler
    from torch.utils.data import DataLoader, TensorDataset
    from x_transformers import Decoder, TransformerWrapper

    vocabulary, classes = int(rows["vocabulary"]), int(rows["classes"])
    tables = {name: torch.from_numpy(table) for name, table in rows.items() if table.ndim}

    class FlipFlop(ComposerModel):
        def __init__(self) -> None:
            super().__init__()
            self.model = TransformerWrapper(
                num_tokens=vocabulary,
                max_seq_len=tables["inputs 3"].shape[-1],
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

        def forward(self, batch: list[torch.Tensor]) -> torch.Tensor:
            return self.model(batch[0])

        def loss(self, outputs: torch.Tensor, batch: list[torch.Tensor]) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(outputs.flatten(0, 1), batch[1].flatten())

    exact: dict[str, list[float]] = {"1": [], "3": []}
    for seed in range(seeds):
        torch.manual_seed(seed)
        model = FlipFlop()
        data = TensorDataset(tables["inputs"][seed], tables["targets"][seed])
        trainer = Trainer(
            model=model,
            train_dataloader=DataLoader(data, batch_size=32),
            optimizers=torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01),
            schedulers=CosineAnnealingScheduler(),
            algorithms=[GradientClipping(clipping_type="norm", clipping_threshold=1.0)],
            max_duration="1ep",
            device="cpu",
            seed=seed,
            progress_bar=False,
        )
        trainer.fit()
        model.eval()
        for multiple in ("1", "3"):
            targets = tables[f"targets {multiple}"][seed]
            with torch.no_grad():
                logits = model([tables[f"inputs {multiple}"][seed]])
            right = (logits[..., :classes].argmax(-1) == targets) | (targets < 0)
            exact[multiple].append(right.all(1).float().mean().item())
    return exact


def main() -> None:
    """Run every scheme and print what it took, as `peers.py` does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path, help="written by peers.py --rows")
    parser.add_argument("--schemes", nargs="+", default=["alibi", "rope"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with np.load(arguments.rows, allow_pickle=False) as file:
        rows = dict(file)
    for scheme in arguments.schemes:
        cpu = sum(os.times()[:4])
        exact = with_composer(scheme, rows, len(rows["inputs"]))
        row = {
            "side": "composer",
            "scheme": scheme,
            "lines": code_lines(with_composer),
            "cpu_seconds": round(sum(os.times()[:4]) - cpu, 1),
            "exact": {k: [round(x, 3) for x in v] for k, v in exact.items()},
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
