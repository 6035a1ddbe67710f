"""Drawn inputs of Threshold Relative Attention: sound ones, and what makes them wrong.

q and k are drawn from a coarse grid. Their scores are then exact in every type, so that no key lies
at the edge of the threshold by rounding.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

TENSORS = ("q", "k", "v", "gate")
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def grid(chance: random.Random, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(chance.getrandbits(32))
    return torch.randint(0, 9, shape, generator=generator) / 4 - 1


def laid_out(chance: random.Random, tensor: Tensor) -> Tensor:
    """The same numbers with other strides."""
    way = chance.randrange(4)
    if way == 0:
        return tensor.transpose(1, 2).contiguous().transpose(1, 2)
    if way == 1:
        return torch.stack([tensor, tensor], -1)[..., 0]
    if way == 2:
        return torch.cat([tensor, tensor])[: len(tensor)]
    return tensor


def drawn_call(chance: random.Random) -> dict[str, Any]:
    """The keyword arguments of a sound call."""
    batch, heads = chance.randint(1, 3), chance.choice((1, 2, 4))
    key_heads = chance.choice([h for h in (1, 2, 4) if heads % h == 0])
    queries, keys = chance.choice((1, 2, 7, 33, 40)), chance.choice((1, 2, 7, 33, 40))
    width, dtype = chance.choice((1, 4, 16, 20)), chance.choice(DTYPES)
    gate = grid(chance, batch, heads, queries) - 1  # from -2 to 0
    if chance.random() < 0.2:
        gate = torch.full_like(gate, chance.choice((0.0, -math.inf, -1e20)))
    call: dict[str, Any] = {
        "q": grid(chance, batch, heads, queries, width).to(dtype),
        "k": grid(chance, batch, key_heads, keys, width).to(dtype),
        "v": grid(chance, batch, key_heads, keys, width).to(dtype),
        "gate": gate,
    }
    call = {name: laid_out(chance, tensor) for name, tensor in call.items()}
    optional: dict[str, Callable[[], Any]] = {
        "threshold": lambda: chance.choice((0.0, -0.3, 0.37, 1e6, -math.inf, 0, -1)),
        "scale": lambda: chance.choice((None, 1.0, 0.5, 1)),
        "offset": lambda: chance.choice((None, 0, chance.randint(-50, 50), 2**30, -(2**30))),
        "lengths": lambda: torch.tensor(
            [chance.randint(0, keys) for _ in range(batch)],
            dtype=chance.choice((torch.int64, torch.int32, torch.uint8)),
        ),
        "padding": lambda: chance.choice(("right", "left")),
        "sparse": lambda: chance.random() < 0.5,
        "backend": lambda: chance.choice((None, "cpu", "reference")),
    }
    return call | {name: draw() for name, draw in optional.items() if chance.random() < 0.5}


def places(call: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Whether a query may see a key, (b, tq, tk), and whether a key is padding, (b, tk)."""
    (batch, _, queries, _), keys = call["q"].shape, call["k"].shape[2]
    offset = call.get("offset")
    place = torch.arange(queries) + (keys - queries if offset is None else offset)
    key = torch.arange(keys)
    lengths = call.get("lengths")
    lengths = torch.full((batch,), keys) if lengths is None else lengths.long()
    if call.get("padding", "right") == "right":
        real = key < lengths[:, None]
        # past keys that end in padding, a query is padding too
        alive = (place < lengths[:, None]) | (lengths == keys)[:, None]
    else:
        real = key >= keys - lengths[:, None]
        alive = torch.ones(batch, queries, dtype=torch.bool)
    sees = (key <= place[:, None]) & real[:, None] & alive[..., None]
    return sees, ~real


#: for each argument, changes that make it wrong
WRONG: dict[str, list[Callable[[dict[str, Any]], Any]]] = {
    **{
        name: [
            lambda call: None,
            lambda call: 3,
            lambda call: "q",
            lambda call: [1.0],
            lambda call, name=name: call[name].long(),
            lambda call, name=name: call[name] > 0,
            lambda call, name=name: call[name].to(torch.complex64),
            lambda call, name=name: call[name].to(torch.float8_e4m3fn),
            lambda call, name=name: call[name].to("meta"),
            lambda call, name=name: call[name].to_sparse(),
            lambda call, name=name: torch.nested.nested_tensor(list(call[name])),
            lambda call, name=name: call[name][0],
            lambda call, name=name: call[name][None],
            lambda call, name=name: call[name][:, :, :0],
            lambda call, name=name: torch.cat([call[name], call[name]]),
            lambda call, name=name: call[name].numpy(force=True)
            if call[name].dtype != torch.bfloat16 else 0,
        ]
        for name in TENSORS
    },
    "threshold": [lambda call, v=v: v for v in (None, "0", True, math.nan, math.inf, [0.0], 1j)],
    "scale": [lambda call, v=v: v for v in ("1", True, 0, -1.0, math.nan, math.inf, 10**400, {})],
    "offset": [lambda call, v=v: v for v in ("0", True, 1.5, math.nan, 2**31, -(2**31), 10**5000)],
    "lengths": [
        *[lambda call, v=v: v for v in (3, "3", [3], (1, 2), True)],
        lambda call: torch.full((len(call["q"]),), call["k"].shape[2] + 1),
        lambda call: torch.full((len(call["q"]),), -1),
        lambda call: torch.ones(len(call["q"])),
        lambda call: torch.ones(len(call["q"])).bool(),
        lambda call: torch.ones(len(call["q"]) + 1).long(),
        lambda call: torch.ones(len(call["q"]), 1).long(),
        lambda call: torch.ones(len(call["q"])).long().to("meta"),
        lambda call: torch.ones(len(call["q"])).long().to_sparse(),
    ],
    "padding": [lambda call, v=v: v for v in (None, "middle", "", 3, ["left"], b"left")],
    "normalised": [lambda call, v=v: v for v in (None, 1, "yes", torch.tensor(True))],
    "tolerance": [lambda call, v=v: v for v in ("0", True, -0.1, 1.0, math.nan, 1e-3)],
    "sparse": [lambda call, v=v: v for v in (None, 0, "no", torch.ones(2))],
    "backend": [lambda call, v=v: v for v in ("", "gpu", 3, True, ["cpu"], b"cpu")],
    "return_parts": [lambda call, v=v: v for v in (None, 1, "yes")],
}  # fmt: skip
