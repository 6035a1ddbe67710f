"""Delayed attention in a Trainer on two ranks (CPU, gloo): DDP and FSDP2.

One pair of processes trains all cases. The tests read what it wrote.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from forked_jobs import free_port, run_job, wait
from torch import distributed as dist
from torch.distributed.fsdp import fully_shard
from trainer_jobs import build, train
from transformers import Trainer

from outlast.hf import DelayedAttention
from outlast.hf.trainer import StepLoss

RANKS, STEPS = 2, 5
MODES = ("skip", "freeze", "ramp", "detach")
CHECKPOINTED = {"gradient_checkpointing": True}
REENTRANT = {**CHECKPOINTED, "gradient_checkpointing_kwargs": {"use_reentrant": True}}
COMPILED = {"torch_compile": True, "torch_compile_backend": "eager"}
#: by name: how, and arguments of the Trainer
#: a Trainer of transformers 5.17 puts a sharded model into DDP, so it is not tried there
SHARDED_MODES = MODES if hasattr(Trainer, "_sync_replicated_trainable_parameters") else ()
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"ddp {mode}": (mode, {}) for mode in MODES},
    **{f"checkpointed {mode}": (mode, CHECKPOINTED) for mode in MODES},
    "reentrant skip": ("skip", REENTRANT),
    "compiled skip": ("skip", COMPILED),
    "rank means skip": ("skip", {"average_tokens_across_devices": False}),
    **{f"fsdp2 {mode}": (mode, {}) for mode in SHARDED_MODES},
}
SETTINGS = {"max_steps": STEPS, "save_strategy": "no", "logging_steps": 1}
LEVEL = 3.446  # the mean over ranks falls under it, or step 3 comes first


class ShardedTrainer(Trainer):
    """A Trainer for a model that is sharded already. Accelerate shards on GPUs only."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.is_distributed_loading_by_transformers = True

    def _sync_replicated_trainable_parameters(self, model: Any) -> None:
        """All parameters are sharded."""


def train_case(name: str, folder: str, batch_size: int, **others: Any) -> dict[str, Any]:
    mode, options = CASES[name]
    # of a sharded model nobody can see where attention joins the stream: it is told
    where = "*.self_attn" if name == "fsdp2 ramp" else None
    callback = DelayedAttention(f"below({LEVEL})", mode, where=where, ramp=2, latest=3)
    settings = {**SETTINGS, "per_device_train_batch_size": batch_size, **options, **others}
    if "fsdp2" in name and batch_size < 4:
        model = build()
        for layer in model.model.layers:
            fully_shard(layer)
        trainer = train(
            folder, callback, fully_shard(model), trainer_class=ShardedTrainer, **settings
        )
    else:
        family = "olmo_hybrid" if "compiled" in name else "bamba"  # it is traced faster
        trainer = train(folder, callback, build(family=family), **settings)
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    return {
        "switched": callback.switched,
        "losses": losses,
        "weights": torch.cat([_whole(p).flatten() for p in trainer.model.parameters()]),
    }


def _whole(parameter: Any) -> torch.Tensor:
    full = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
    return full.detach().clone()


def run_rank(folder: str, rank: int) -> None:
    seen: list[float] = []
    take = StepLoss.take
    StepLoss.take = lambda self: seen.append(take(self)) or seen[-1]
    results = {}
    for name in CASES:
        seen.clear()
        results[name] = {**train_case(name, folder, 2, ddp_backend="gloo"), "seen": [*seen]}
        torch.save(results, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> list[dict]:
    folder = tmp_path_factory.mktemp("ranks")
    common = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    processes = [
        run_job(run_rank, str(folder), r, env={**common, "RANK": str(r), "LOCAL_RANK": str(r)})
        for r in range(RANKS)
    ]
    assert [wait(process) for process in processes] == [0, 0]
    return [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]


@pytest.mark.parametrize("name", CASES)
def test_ranks_switch_together_and_stay_equal(ranks, name):
    first, second = (results[name] for results in ranks)
    assert first["switched"] == second["switched"] is not None
    assert torch.equal(first["weights"], second["weights"])


@pytest.mark.parametrize("mode", MODES)
def test_ranks_train_like_one_process(ranks, mode, tmp_path):
    alone = train_case(f"ddp {mode}", str(tmp_path), 4)
    for name in CASES:
        if name.endswith(mode) and not name.startswith(("rank means", "compiled")):
            together = ranks[0][name]
            assert together["switched"] == alone["switched"], name
            torch.testing.assert_close(together["weights"], alone["weights"], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_mean_over_ranks_of_the_watched_loss_is_the_logged_one(ranks, name):
    seen = [results[name]["seen"] for results in ranks]
    assert len(seen[0]) == len(seen[1]) > 0
    means = [sum(losses) / RANKS for losses in zip(*seen, strict=True)]
    assert means == pytest.approx(ranks[0][name]["losses"][: len(means)], rel=1e-6)
    assert seen[0] != seen[1]


@pytest.mark.parametrize("mode", SHARDED_MODES)
def test_sharded_ranks_train_like_replicated_ones(ranks, mode):
    sharded, replicated = (ranks[0][f"{kind} {mode}"]["weights"] for kind in ("fsdp2", "ddp"))
    torch.testing.assert_close(sharded, replicated, rtol=1e-4, atol=1e-6)
