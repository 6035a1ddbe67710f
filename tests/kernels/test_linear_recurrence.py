"""The chunked recurrences against their reference, token by token in float64."""

import pytest
import torch
from torch import Tensor

from outlast.kernels.linear_recurrence import (
    decayed_sum,
    delta_rule,
    linear_scan,
    reference,
    running_maximum,
)
from outlast.testing.compare import close, randn

ROWS, HEADS, KEYS, VALUES = 2, 3, 4, 5
#: one token, less than a chunk, chunks with and without padding
TOKENS = (1, 7, 32, 33, 150)


def inputs(name: str, tokens: int, strongest: float = 1.0) -> tuple[list[Tensor], Tensor]:
    """Random inputs of a recurrence, and its state: keys of length 1, betas between 0 and 2."""
    q, k = (randn(ROWS, HEADS, tokens, KEYS, seed=s) for s in (0, 1))
    v = randn(ROWS, HEADS, tokens, VALUES, seed=2)
    k = torch.nn.functional.normalize(k, dim=-1)
    beta = 2 * (2 * randn(ROWS, HEADS, tokens, 1, seed=3)).sigmoid()
    log_decay = -strongest * randn(ROWS, HEADS, tokens, 1, seed=4).square()
    more = [beta] if name == "delta" else []
    return [q, k, v, *more, log_decay], randn(ROWS, HEADS, KEYS, VALUES, seed=5)


CASES = {
    "decayed": (decayed_sum, reference.decayed_sum),
    "delta": (delta_rule, reference.delta_rule),
}


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("name", CASES)
def test_chunked_recurrence_equals_token_by_token_with_gradients(name, tokens):
    chunked, by_token = CASES[name]
    given, state = inputs(name, tokens)
    leaves = [x.requires_grad_() for x in (*given, state)]
    got, wanted = chunked(*given, state), by_token(*given, state)
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
    chunked, by_token = CASES[name]
    given, state = inputs(name, 300, strongest)
    wanted = by_token(*given, state)
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
    leaves = [each.requires_grad_() for each in (decay, x, state)]
    got, wanted = linear_scan(decay, x, state), reference.linear_scan(decay, x, state)
    upstream = randn(*x.shape, seed=3)
    close(got, wanted, 1e-12)
    for one, two in zip(
        torch.autograd.grad(got, leaves, upstream),
        torch.autograd.grad(wanted, leaves, upstream),
        strict=True,
    ):
        close(one, two, 1e-12)


@pytest.mark.parametrize("tokens", TOKENS)
def test_running_maximum_equals_token_by_token(tokens):
    log_decay = -randn(ROWS, HEADS, tokens, 1).square()
    x, state = randn(ROWS, HEADS, tokens, 1, seed=1), randn(ROWS, HEADS, 1, 1, seed=2)
    wanted = reference.running_maximum(log_decay, x, state)
    close(running_maximum(log_decay, x, state), wanted, 1e-12)


def test_reference_of_the_delta_rule_is_its_formula_for_one_token():
    """With the matrix I - b k k^T written out."""
    (q, k, v, beta, log_decay), state = inputs("delta", 1)
    transition = torch.eye(KEYS, dtype=k.dtype) - beta * k.mT @ k
    wanted = log_decay.exp() * transition @ state + beta * k.mT @ v
    y, last = reference.delta_rule(q, k, v, beta, log_decay, state)
    close(last, wanted, 1e-12)
    close(y, q @ wanted, 1e-12)


def test_scan_has_second_derivatives():
    inputs = [randn(1, 20, 2).sigmoid(), randn(1, 20, 2, seed=1), randn(1, 2, seed=2)]
    assert torch.autograd.gradgradcheck(linear_scan, [each.requires_grad_() for each in inputs])
