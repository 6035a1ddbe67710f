"""Delayed attention in Lightning on two ranks (CPU, gloo): DDP and FSDP2.

One pair of processes trains all cases. The tests read what it wrote.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lightning.pytorch")
pytest.importorskip("torchdata")

from forked_jobs import free_port, run_job, wait
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning_jobs import (
    Checkpointed,
    Eager,
    Hybrid,
    Sharded,
    ShardedCheckpointed,
    Watch,
    loader,
    train,
    weights,
)
from torch import distributed as dist

from outlast.lightning import DelayedAttention

RANKS, STEPS, BATCHES_OF_A_STEP = 2, 5, 2
LEVEL, LATEST = 1.38, 3
MODES = ("skip", "freeze", "ramp", "detach")


def compiled(model: Hybrid) -> Hybrid:
    model.backend = Eager()
    model.compile(backend=model.backend)
    return model


#: by name: the model
KINDS = {
    "ddp": Hybrid,
    "fsdp2": Sharded,
    "ddp checkpointed": lambda: Checkpointed(False),
    "ddp reentrant": lambda: Checkpointed(True),
    "ddp compiled": lambda: compiled(Hybrid()),
    "fsdp2 checkpointed": lambda: ShardedCheckpointed(False),
    "fsdp2 reentrant": lambda: ShardedCheckpointed(True),
    "fsdp2 compiled": lambda: compiled(Sharded()),
}
#: by name: kind and mode
CASES = {
    f"{kind} {mode}": (kind, mode)
    for kind in KINDS
    for mode in (MODES if kind in ("ddp", "fsdp2") else ("skip",))
}
#: by name: mode, and whether each rank saves its shards
RESUMED = {
    "resumed skip": ("skip", True),
    "resumed freeze": ("freeze", True),
    "resumed from one file": ("skip", False),
}


def train_case(folder: str, mode: str, model: Hybrid, **others: Any) -> dict[str, Any]:
    switch, watch = f"below({LEVEL})", Watch()
    callback = DelayedAttention(switch, mode, "attn", latest=LATEST, ramp=2)
    train(folder, callback, model, callbacks=(watch,), max_steps=STEPS, **others)
    result = {"switched": callback.switched, "moved": watch.first_move()}
    if hasattr(model, "backend"):
        assert model.backend.attention_graphs >= 2
    return {**result, "weights": weights(model), "losses": model.losses}


def settings(rank: int, sharded: bool = False, by_rank: bool = True) -> dict[str, Any]:
    """Arguments of a training on two ranks. `by_rank`: each rank saves its shards."""
    fsdp2 = {"data_parallel_size": RANKS, "save_distributed_checkpoint": by_rank}
    return {
        "batches": loader(2, rank, RANKS),
        "use_distributed_sampler": False,
        "devices": RANKS,
        "strategy": ModelParallelStrategy(tensor_parallel_size=1, **fsdp2) if sharded else "ddp",
    }


def train_and_resume(folder: str, rank: int, mode: str, by_rank: bool) -> dict[str, Any]:
    """A sharded training, and the same one from its checkpoint in phase 1."""
    trained = {}
    for name, checkpoint in (("whole", None), ("resumed", f"{folder}/step=3.ckpt")):
        callback, model = DelayedAttention(4, mode, "attn"), Sharded()
        given = {**settings(rank, True, by_rank), "max_steps": 6, "resume": checkpoint}
        train(folder if checkpoint is None else f"{folder} again", callback, model, **given)
        assert callback.switched == 4
        trained[name] = weights(model)
    return trained


def run_rank(folder: str, rank: int) -> None:
    results: dict[str, Any] = {}
    for name, (kind, mode) in CASES.items():
        given = settings(rank, sharded=kind.startswith("fsdp2"))
        results[name] = train_case(f"{folder}/{name}", mode, KINDS[kind](), **given)
    for name, how in RESUMED.items():
        results[name] = train_and_resume(f"{folder}/{name}", rank, *how)
    torch.save(results, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> list[dict]:
    folder = tmp_path_factory.mktemp("ranks")
    common = {"NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": str(RANKS)}
    common["MASTER_PORT"] = free_port()
    jobs = [
        run_job(run_rank, str(folder), rank, env={**common, "LOCAL_RANK": str(rank)})
        for rank in range(RANKS)
    ]
    assert [wait(job) for job in jobs] == [0, 0]
    return [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> dict[str, dict]:
    """One process that sees the batches of both ranks as one."""
    return {mode: train_case(str(tmp_path_factory.mktemp(mode)), mode, Hybrid()) for mode in MODES}


@pytest.mark.parametrize("name", CASES)
def test_ranks_switch_together_and_stay_equal(ranks, name):
    first, second = (results[name] for results in ranks)
    assert first["switched"] == second["switched"] is not None
    assert torch.equal(first["weights"], second["weights"])
    assert first["moved"] == (1 if name.endswith("detach") else first["switched"] + 1)


@pytest.mark.parametrize("name", CASES)
def test_ranks_train_like_one_process(ranks, alone, name):
    together, whole = ranks[0][name], alone[CASES[name][1]]
    assert together["switched"] == whole["switched"]
    torch.testing.assert_close(together["weights"], whole["weights"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_sharded_checkpointed_and_compiled_ranks_train_like_plain_ddp(ranks, name):
    plain = ranks[0][f"ddp {CASES[name][1]}"]["weights"]
    torch.testing.assert_close(ranks[0][name]["weights"], plain, rtol=1e-5, atol=1e-6)


def first_step_below(losses: list[float]) -> int:
    batches = BATCHES_OF_A_STEP
    means = [sum(losses[i : i + batches]) / batches for i in range(0, len(losses), batches)]
    return next((i for i, mean in enumerate(means[:LATEST], 1) if mean < LEVEL), LATEST)


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_trigger_sees_the_mean_loss_over_ranks(ranks, kind):
    of_ranks = [results[f"{kind} skip"]["losses"] for results in ranks]
    mean = [sum(losses) / RANKS for losses in zip(*of_ranks, strict=True)]
    assert ranks[0][f"{kind} skip"]["switched"] == first_step_below(mean)
    assert first_step_below(mean) != first_step_below(of_ranks[0])


@pytest.mark.parametrize("name", RESUMED)
def test_sharded_training_resumed_in_phase_1_equals_an_uninterrupted_one(ranks, name):
    for results in ranks:
        assert torch.equal(results[name]["whole"], results[name]["resumed"])
