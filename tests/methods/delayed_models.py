"""Small models that know nothing of Outlast, and a plain training loop."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

WIDTH = 8


class Attn(nn.Module):
    """One tensor to its like."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        q, k, v = self.qkv(x).chunk(3, -1)
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class TupleAttn(Attn):
    """A tensor and something beside it, as many attention modules return."""

    def forward(self, x: Tensor) -> tuple[Tensor, str]:
        return super().forward(x), "weights"


class Output(NamedTuple):
    hidden: Tensor
    cache: str


class NamedAttn(Attn):
    def forward(self, x: Tensor) -> Output:
        return Output(super().forward(x), "cache")


def first(output: Tensor | tuple) -> Tensor:
    return output if isinstance(output, Tensor) else output[0]


class Layer(nn.Module):
    def __init__(self, attention: type[Attn]) -> None:
        super().__init__()
        self.attn, self.mlp = attention(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + first(self.attn(x))
        return x + self.mlp(x)


def model(attention: type[Attn] = Attn) -> nn.Module:
    return nn.Sequential(Layer(attention), Layer(attention), nn.Linear(WIDTH, 1)).double()


X = torch.randn(4, 5, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
kinds = pytest.mark.parametrize("attention", [Attn, TupleAttn, NamedAttn])


def attention_weights(net: nn.Module) -> list[Tensor]:
    return [p for n, p in net.named_parameters() if "attn" in n]


def train(net: nn.Module, delayed, steps: int) -> list[bool]:
    """A plain loop; what `step` gave, step by step."""
    optimiser = torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.1)
    switched = []
    for _ in range(steps):
        loss = net(X).pow(2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        switched.append(delayed.step(loss))
    return switched


def moved(net: nn.Module, before: nn.Module) -> tuple[bool, bool]:
    """Whether any weight of attention, and every other weight, is not where it was."""
    was = dict(before.named_parameters())
    pairs = [("attn" in n, not torch.equal(p, was[n])) for n, p in net.named_parameters()]
    return any(m for attn, m in pairs if attn), all(m for attn, m in pairs if not attn)
