"""The peer of many seeds at once: the same hybrid as one would write it in plain torch, one seed.

`nn.LSTM` (cuDNN's on a GPU), torch's fused attention, `nn.Linear`, `nn.LayerNorm` and the fused
AdamW. It is trained on one batch over and over, so making data costs it nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outlast.bench.graphs import captured
from outlast.bench.timing import Side
from outlast.machine import precision
from outlast.registry import tasks
from outlast.tasks import IGNORE, Batch

HEADS = 4
#: how the mixers of a block follow each other, by name; the first is measured if none is asked for
LAYOUTS = {"serial": "lstm > attention > mlp", "parallel": "lstm | attention > mlp"}


@dataclass(frozen=True)
class Size:
    """A hybrid and its batches."""

    blocks: int = 4
    width: int = 128
    batch: int = 128
    task: str = "composite"
    #: steps of a block of training
    block: int = 50
    layout: str = "serial"

    @property
    def model(self) -> str:
        """The layout line."""
        return f"{self.blocks} x ({LAYOUTS[self.layout]}) @ {self.width}"


FULL, SMALL = Size(), Size(2, 32, 16, "composite(keys=64)", 10)


class Block(nn.Module):
    """LSTM and attention, one after the other or side by side, then an MLP."""

    def __init__(self, width: int, heads: int, layout: str) -> None:
        super().__init__()
        self.heads, self.serial = heads, layout == "serial"
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        first, second, third = self.norms
        after = x + self.lstm(first(x))[0]
        x = after + self.attention(second(after if self.serial else x))
        return x + self.down(F.gelu(self.up(third(x))))

    def attention(self, x: Tensor) -> Tensor:
        """Causal, by torch's fused one."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.out(seen.transpose(1, 2).flatten(2))
        return out


class Hybrid(nn.Module):
    """Tokens (batch, tokens) to logits (batch, tokens, outputs)."""

    def __init__(
        self,
        blocks: int,
        width: int,
        heads: int,
        vocabulary: int,
        outputs: int,
        layout: str = "serial",
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(*(Block(width, heads, layout) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.blocks(self.embedding(tokens))))
        return logits


def training_step(model: nn.Module, batch: Batch) -> Side:
    """One step of AdamW with clipping, eagerly; nothing in it waits for the host."""
    weights = list(model.parameters())
    cuda = batch.inputs.is_cuda
    optimiser = torch.optim.AdamW(weights, 2e-3, weight_decay=0.01, fused=True, capturable=cuda)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        logits = model(batch.inputs).flatten(0, 1)
        F.cross_entropy(logits, batch.targets.flatten(), ignore_index=IGNORE).backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimiser.step()

    return step


def peer_batch(size: Size, device: torch.device) -> Batch:
    """What the peer trains on."""
    task = tasks.build(size.task)
    return task.sample(task.lengths, size.batch, torch.Generator(device).manual_seed(0))


def peer_step(size: Size, device: torch.device) -> Side:
    """A step of one seed of the hybrid, with an output for every token as ours has."""
    outputs = tasks.build(size.task).vocabulary
    model = Hybrid(size.blocks, size.width, HEADS, outputs, outputs, size.layout).to(device)
    return training_step(model, peer_batch(size, device))


def peer_graph(size: Size, device: torch.device) -> Side:
    """A step of the peer, replayed."""
    with precision("auto", device):
        return captured(peer_step(size, device))
