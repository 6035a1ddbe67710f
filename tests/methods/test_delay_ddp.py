"""Delayed attention under DistributedDataParallel: two ranks equal each other and one process.

Two processes with gloo run the whole table of cases once. The tests read what they wrote.
"""

import subprocess
import sys
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import outlast
from outlast.errors import SpecError
from outlast.methods import triggers

WIDTH, STEPS, RANKS = 4, 8, 2
SWITCHES = {
    "step": {"switch": 4},
    "share": {"switch": 0.5, "steps": STEPS},
    "below": {"switch": "below(4)"},
    "plateau": {"switch": "plateau(patience=1)"},
    "latest": {"switch": "below(1e-9)", "latest": 4},
}
#: what the loop reports at each step. The ranks reach a level and a plateau at different steps.
LOSSES = ([9.0, 9.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], [9.0, 9.0, 9.0, 1.0, 1.0, 1.0, 1.0, 1.0])
SWITCHED = {"step": 4, "share": 4, "below": 4, "plateau": 5, "latest": 4}


class Case(NamedTuple):
    mode: str
    trigger: str
    wrapped: str
    ddp: str = "plain"


DDP = {
    "plain": {},
    "unused": {"find_unused_parameters": True},
    "views": {"gradient_as_bucket_view": True},
    "closure": {},
    "checkpoint": {},
    "static": {"static_graph": True},
}
OPTIONS = ("unused", "views", "closure", "checkpoint")
MODES = ("skip", "freeze", "ramp", "detach")
CASES = [
    *[Case(*parts) for parts in product(MODES, SWITCHES, ("before", "after"))],
    *[Case(m, "step", w, d) for m, w, d in product(MODES, ("before", "after"), OPTIONS)],
]
STATIC = [Case(mode, "step", "before", "static") for mode in MODES]
cases = pytest.mark.parametrize("case", CASES, ids="-".join)


class Attn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class Layer(nn.Module):
    """The norm feeds attention alone, so skipped attention leaves it without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attn, self.mlp = nn.LayerNorm(WIDTH), Attn(), nn.Linear(WIDTH, WIDTH)

    checkpointed = False

    def forward(self, x: Tensor) -> Tensor:
        if self.checkpointed:
            return checkpoint(self._forward, x, use_reentrant=False)
        return self._forward(x)

    def _forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm(x))
        return x + self.mlp(x).tanh()


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Layer(), Layer(), nn.Linear(WIDTH, 1)).double()


def data(step: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(10 * step + rank)
    return torch.randn(3, 5, WIDTH, dtype=torch.float64, generator=generator)


def weights(net: nn.Module, kind: str) -> Tensor:
    return torch.cat([p.detach().flatten() for n, p in net.named_parameters() if kind in n])


def train(case: Case, ranks: list[int]) -> dict[str, object]:
    """Train on the batches of these ranks, under DDP if there is one rank only."""
    net = build()
    net[0].checkpointed = net[1].checkpointed = case.ddp == "checkpoint"
    arguments = {"mode": case.mode, "ramp": 2, **SWITCHES[case.trigger]}
    model, distributed = net, len(ranks) == 1
    if distributed and case.wrapped == "before":
        model = DistributedDataParallel(net, **DDP[case.ddp])
    delayed = outlast.delay(model, "*.attn", **arguments)
    if distributed and case.wrapped == "after":
        model = DistributedDataParallel(net, **DDP[case.ddp])
    optimiser = torch.optim.AdamW(net.parameters(), lr=0.05, weight_decay=0.1)
    begin = {kind: weights(net, kind) for kind in ("attn", "norm")}

    def backward(step: int) -> None:
        optimiser.zero_grad()
        torch.stack([(model(data(step, r)) - 1).square().mean() for r in ranks]).mean().backward()

    for step in range(STEPS):
        if case.ddp == "closure":
            optimiser.step(partial(backward, step))
        else:
            backward(step)
            optimiser.step()
        if delayed.switched is None:
            held = {kind: weights(net, kind) for kind in begin}
        delayed.step(sum(LOSSES[r][step] for r in ranks) / len(ranks))
    return {
        "switched": delayed.switched,
        "weights": weights(net, ""),
        "unmoved": [k for k in begin if torch.equal(begin[k], held[k])],
        "learned": not torch.equal(held["attn"], weights(net, "attn")),
    }


def run_rank(rank: int, folder: Path) -> None:
    """All cases on one rank of two."""
    torch.set_num_threads(1)
    triggers.SMOOTHING = 1.0
    store = dist.FileStore(str(folder / "store"), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    results: dict[Case, object] = {}
    for case in STATIC:
        with pytest.raises(SpecError, match="without static_graph") as refused:
            train(case, [rank])
        results[case] = str(refused.value)
    for case in CASES:
        try:
            results[case] = train(case, [rank])
        except RuntimeError as error:  # all later cases would hang
            results[case] = str(error)
            break
    torch.save({"-".join(case): result for case, result in results.items()}, folder / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> list[dict]:
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, str(Path(__file__)), str(folder)]
    processes = [
        subprocess.Popen([*command, str(rank)], stderr=subprocess.PIPE, text=True)
        for rank in range(RANKS)
    ]
    try:
        errors = [process.communicate(timeout=600)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], errors
    return [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]


@cases
def test_ranks_stay_bit_equal_and_switch_together(ranks, case):
    first, second = (results["-".join(case)] for results in ranks)
    assert isinstance(first, dict), first
    assert first["switched"] == second["switched"] == SWITCHED[case.trigger]
    assert torch.equal(first["weights"], second["weights"])
    assert first["learned"]


@cases
def test_ddp_trains_like_one_process(ranks, case, monkeypatch):
    monkeypatch.setattr(triggers, "SMOOTHING", 1.0)
    under_ddp, alone = ranks[0]["-".join(case)], train(case, list(range(RANKS)))
    assert under_ddp["unmoved"] == alone["unmoved"]
    expected = {"skip": ["attn", "norm"], "ramp": ["attn", "norm"], "freeze": ["attn"]}
    assert alone["unmoved"] == expected.get(case.mode, ["norm"])
    assert under_ddp["switched"] == alone["switched"]
    torch.testing.assert_close(under_ddp["weights"], alone["weights"], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("case", STATIC, ids="-".join)
def test_static_graph_is_refused_on_both_ranks(ranks, case):
    for results in ranks:
        assert "wrap the model with DistributedDataParallel(model)" in results["-".join(case)]


if __name__ == "__main__":
    run_rank(int(sys.argv[2]), Path(sys.argv[1]))
