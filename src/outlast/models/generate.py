"""Tokens after tokens: the model reads its own outputs, with its state carried along."""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Real
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from outlast.arguments import as_whole, shown
from outlast.errors import OutlastError, bad_value, incompatible
from outlast.models.arguments import check_tokens

#: far more tokens than memory holds, and the largest seed that torch takes
MOST_TOKENS, MOST_SEED = 2**31 - 1, 2**64 - 1
#: the largest temperature; the tokens are then equally likely to six digits or so
MOST_TEMPERATURE = 1e6


class LanguageModel(Protocol):
    """What generation needs of a model."""

    @property
    def embedding(self) -> nn.Embedding: ...

    @property
    def head(self) -> nn.Linear: ...

    @property
    def ceiling(self) -> int | None: ...

    def positions(self, tokens: int) -> Tensor | None: ...

    def __call__(
        self,
        tokens: Tensor,
        state: Any = None,
        *,
        positions: Tensor | None = None,
        total: int | None = None,
    ) -> tuple[Tensor, Any]: ...


@torch.no_grad()
def generate(
    model: LanguageModel,
    tokens: Tensor,
    n: int,
    temperature: float = 0.0,
    top_k: int | None = None,
    seed: int | torch.Generator = 0,
) -> Tensor:
    """`Model.generate`."""
    vocabulary = model.embedding.num_embeddings
    check_outputs(model)
    check_tokens(tokens, model.embedding.weight.device)
    n = as_whole("n", n, 1, MOST_TOKENS - tokens.shape[1])
    if model.ceiling is not None and tokens.shape[1] + n - 1 > model.ceiling:
        accepted = f"at most {model.ceiling + 1 - tokens.shape[1]} after {tokens.shape[1]} tokens"
        raise bad_value("n", n, f"{accepted}: the model takes {model.ceiling} tokens")
    temperature = _read_temperature(temperature)
    if top_k is not None:
        top_k = as_whole("top_k", top_k, 1, vocabulary)
        if not temperature:
            reason = "without a temperature the likeliest token is taken; give temperature=1"
            raise incompatible(f"top_k={top_k}", "temperature=0", reason)
    generator = _read_seed(seed, tokens.device)
    positions = model.positions(tokens.shape[1] + n)
    sequence, new, state, start = tokens, tokens, None, 0
    for _ in range(n):
        stop = start + new.shape[1]
        part = None if positions is None else positions[start:stop]
        logits, state = model(new, state, positions=part)
        new = _pick(logits[:, -1], temperature, top_k, generator)[:, None].to(tokens.dtype)
        sequence, start = torch.cat([sequence, new], 1), stop
    return sequence


@torch.no_grad()
def in_chunks(model: LanguageModel, tokens: Tensor, size: int) -> Iterator[Tensor]:
    """`Model.in_chunks`."""
    check_tokens(tokens, model.embedding.weight.device)
    size, total = as_whole("size", size, 1, MOST_TOKENS), tokens.shape[1]
    positions, state = model.positions(total), None
    for start in range(0, total, size):
        stop = min(start + size, total)
        part = None if positions is None else positions[start:stop]
        logits, state = model(tokens[:, start:stop], state, positions=part, total=total)
        yield logits


def check_outputs(model: LanguageModel) -> None:
    """Refuse a model whose outputs are not its tokens: they cannot be read again."""
    vocabulary, outputs = model.embedding.num_embeddings, model.head.out_features
    if outputs != vocabulary:
        accepted = f"an output for each of the {vocabulary} tokens, to generate them"
        raise bad_value("head", outputs, f"{accepted}; leave head= out of the model's line")


def _pick(
    logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator
) -> Tensor:
    """A token for each row of logits (batch, tokens)."""
    if logits.isnan().any():
        raise OutlastError("the model's logits are NaN: there is no likeliest token")
    if not temperature:
        return logits.argmax(-1)
    logits = logits.double() / temperature
    if top_k is not None:
        least = logits.topk(top_k).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    return torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]


def _read_temperature(value: object) -> float:
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    smallest = 1 / MOST_TEMPERATURE
    if not is_number or not (value == 0 or smallest <= value <= MOST_TEMPERATURE):  # type: ignore[operator]
        accepted = f"0 (the likeliest token) or a number from {smallest:g} to {MOST_TEMPERATURE:g}"
        raise bad_value("temperature", shown(value), accepted)
    return float(value)  # type: ignore[arg-type]


def _read_seed(seed: object, device: torch.device) -> torch.Generator:
    if not isinstance(seed, torch.Generator):
        return torch.Generator(device).manual_seed(as_whole("seed", seed, 0, MOST_SEED))
    if seed.device.type != device.type:  # a generator's GPU may have no number
        accepted = f"a whole number, or a generator on the model's device, {device}"
        raise bad_value("seed", f"a generator on {seed.device}", accepted)
    return seed
