"""The chunked recurrences against their definitions, token by token in float64."""

import pytest
import torch
from torch import Tensor

from outlast.kernels.linear_recurrence import (
    decayed_sum,
    delta_rule,
    linear_scan,
    running_maximum,
)
from outlast.testing.compare import close, randn

ROWS, HEADS, KEYS, VALUES = 2, 3, 4, 5
#: one token, less than a chunk, chunks with and without padding
TOKENS = (1, 7, 32, 33, 150)


def steps(reference, state, *inputs: Tensor) -> tuple[Tensor, Tensor]:
    """The recurrence that `reference(state, *tokens)` is a step of, token by token."""
    outputs = []
    for tokens in zip(*(x.unbind(2) for x in inputs), strict=True):
        y, state = reference(state, *tokens)
        outputs.append(y)
    return torch.stack(outputs, 2), state


def decayed_step(state, q, k, v, log_decay):
    state = log_decay.exp()[..., None] * state + torch.einsum("bhd,bhe->bhde", k, v)
    return torch.einsum("bhd,bhde->bhe", q, state), state


def delta_step(state, q, k, v, beta, log_decay):
    eye = torch.eye(k.shape[-1], dtype=k.dtype)
    transition = eye - beta[..., None] * torch.einsum("bhd,bhe->bhde", k, k)
    state = log_decay.exp()[..., None] * (transition @ state)
    state = state + beta[..., None] * torch.einsum("bhd,bhe->bhde", k, v)
    return torch.einsum("bhd,bhde->bhe", q, state), state


def inputs(name: str, tokens: int, strongest: float = 1.0) -> tuple[list[Tensor], Tensor]:
    """Random inputs of a recurrence, and its state: keys of length 1, betas between 0 and 2."""
    q, k = (randn(ROWS, HEADS, tokens, KEYS, seed=s) for s in (0, 1))
    v = randn(ROWS, HEADS, tokens, VALUES, seed=2)
    k = torch.nn.functional.normalize(k, dim=-1)
    beta = 2 * (2 * randn(ROWS, HEADS, tokens, 1, seed=3)).sigmoid()
    log_decay = -strongest * randn(ROWS, HEADS, tokens, 1, seed=4).square()
    more = [beta] if name == "delta" else []
    return [q, k, v, *more, log_decay], randn(ROWS, HEADS, KEYS, VALUES, seed=5)


CASES = {"decayed": (decayed_sum, decayed_step), "delta": (delta_rule, delta_step)}


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("name", CASES)
def test_chunked_recurrence_equals_token_by_token_with_gradients(name, tokens):
    chunked, step = CASES[name]
    given, state = inputs(name, tokens)
    leaves = [x.requires_grad_() for x in (*given, state)]
    got, wanted = chunked(*given, state), steps(step, state, *given)
    for one, two in zip(got, wanted, strict=True):
        close(one, two, 1e-10)
    upstream = [randn(*y.shape, seed=9) for y in wanted]
    for one, two in zip(
        torch.autograd.grad(got, leaves, upstream),
        torch.autograd.grad(wanted, leaves, upstream),
        strict=True,
    ):
        close(one, two, 1e-10)


@pytest.mark.parametrize("strongest", [0.0, 1.0, 1000.0])
@pytest.mark.parametrize("name", CASES)
def test_chunked_recurrence_in_float32_keeps_its_digits_at_any_decay(name, strongest):
    chunked, step = CASES[name]
    given, state = inputs(name, 300, strongest)
    wanted = steps(step, state, *given)
    got = chunked(*(x.float() for x in given), state.float())
    for one, two in zip(got, wanted, strict=True):
        assert one.dtype == torch.float32
        close(one.double(), two, 2e-5, atol=2e-5 * float(two.abs().max()))


@pytest.mark.parametrize("name", CASES)
def test_chunked_recurrence_is_float32_inside_under_autocast(name):
    chunked, _ = CASES[name]
    given, state = inputs(name, 70)
    single = [x.float() for x in (*given, state)]
    with torch.autocast("cpu", torch.bfloat16):
        lowered = chunked(*single)
    for one, two in zip(lowered, chunked(*single), strict=True):
        assert torch.equal(one, two)


def test_heads_share_keys_and_queries_by_broadcasting():
    (q, k, v, log_decay), state = inputs("decayed", 70)
    q, k = q[:, :1], k[:, :1]
    wanted = decayed_sum(
        q.expand(-1, HEADS, -1, -1), k.expand(-1, HEADS, -1, -1), v, log_decay, state
    )
    for one, two in zip(decayed_sum(q, k, v, log_decay, state), wanted, strict=True):
        close(one, two, 1e-12)


@pytest.mark.parametrize("tokens", TOKENS)
def test_scans_equal_token_by_token(tokens):
    decay, x, state = (
        randn(2, tokens, 3).sigmoid(),
        randn(2, tokens, 3, seed=1),
        randn(2, 3, seed=2),
    )
    h, rows = state, []
    for a, b in zip(decay.unbind(1), x.unbind(1), strict=True):
        h = a * h + b
        rows.append(h)
    close(linear_scan(decay, x, state), torch.stack(rows, 1), 1e-12)
    log_decay, x, state = decay.log()[..., None], x[..., None], state[:, None, None, :1]
    log_decay, x = (y.transpose(1, 2) for y in (log_decay, x))
    m, rows = state.expand(2, 3, 1, 1).squeeze(2), []
    for a, b in zip(log_decay.unbind(2), x.unbind(2), strict=True):
        m = torch.maximum(a + m, b)
        rows.append(m)
    close(running_maximum(log_decay, x, state), torch.stack(rows, 2), 1e-12)
