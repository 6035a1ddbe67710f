"""The recurrences by fla's kernels: their axes, seeds and gradients, and what is taken when.

On a CPU plain torch takes the place of the kernels. On a GPU with fla they are compared with the
loop over tokens in float64.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from outlast.kernels import libraries
from outlast.kernels.linear_recurrence import (
    decayed,
    decayed_sum,
    delta,
    delta_rule,
    fla,
    reference,
)
from outlast.testing.compare import close, randn, strict_vmap

SEEDS, ROWS, HEADS, KEYS, VALUES = 3, 2, 3, 16, 17
CASES = {"decayed_sum": decayed.in_chunks, "delta_rule": delta.in_chunks}
every = pytest.mark.parametrize("name", CASES)


def inputs(name: str, tokens: int, *seeds: int, keys: int = KEYS, values: int = VALUES):
    """Inputs of a recurrence, its state at the end: keys of length 1, betas between 0 and 2."""
    shape = (*seeds, ROWS, HEADS, tokens)
    q, k = (torch.nn.functional.normalize(randn(*shape, keys, seed=s), dim=-1) for s in (0, 1))
    beta = [2 * (2 * randn(*shape, 1, seed=3)).sigmoid()] if name == "delta_rule" else []
    log_decay = -0.1 * randn(*shape, 1, seed=4).square()
    state = randn(*shape[:-1], keys, values, seed=5)
    return [q, k, randn(*shape, values, seed=2), *beta, log_decay, state]


def turned(x: Tensor) -> Tensor:
    """Tokens before heads, or the other way; gates with an axis more, or without it."""
    x = x.transpose(1, 2)
    return x if x.dim() == 4 else x.unsqueeze(-1)


def in_torch(function):
    """What stands for the kernels of a recurrence: forward and backward."""

    def run(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        y, last = function(*(turned(x) for x in tensors[:-1]), tensors[-1])
        return turned(y), last

    def forward(*tensors: Tensor) -> tuple[Tensor, ...]:
        assert all(x.is_contiguous() for x in tensors)
        sums = tensors[-2].clone()
        return (*run(*tensors), sums)

    def backward(d_y: Tensor, d_last: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        assert all(x.is_contiguous() for x in (d_y, d_last, *tensors))
        leaves = [x.detach().requires_grad_() for x in tensors[:-1]]
        with torch.enable_grad():
            return torch.autograd.grad(run(*leaves), leaves, (d_y, d_last))

    return forward, backward


@pytest.fixture
def stand_ins(monkeypatch) -> None:
    for name, short in (("decayed_sum", "decayed"), ("delta_rule", "delta")):
        forward, backward = in_torch(CASES[name])
        monkeypatch.setattr(fla, f"{short}_forward", forward)
        monkeypatch.setattr(fla, f"{short}_backward", backward)
    monkeypatch.setattr(fla, "taken", lambda *_: True)


def loss(name: str):
    function = {"decayed_sum": decayed_sum, "delta_rule": delta_rule}[name]

    def of(*tensors: Tensor) -> Tensor:
        y, last = function(*tensors)
        return y.sin().sum() + last.cos().sum()

    return of


@pytest.mark.usefixtures("stand_ins")
@every
def test_axes_are_turned_and_values_padded_and_back(name):
    given = [x.float() for x in inputs(name, 70)]
    leaves = [x.requires_grad_() for x in given]
    got = getattr(fla, name)(*leaves)
    wanted = CASES[name](*leaves)
    above = [torch.randn_like(y) for y in wanted]
    for one, two in zip(
        (*got, *torch.autograd.grad(got, leaves, above)),
        (*wanted, *torch.autograd.grad(wanted, leaves, above)),
        strict=True,
    ):
        close(one, two, 1e-4)


@pytest.mark.usefixtures("stand_ins")
@every
def test_seeds_among_others_are_seeds_alone_with_gradients(name):
    stacked = [x.float() for x in inputs(name, 70, SEEDS)]
    numbers = tuple(range(len(stacked)))
    with strict_vmap():
        below = vmap(grad(loss(name), argnums=numbers))(*stacked)
    leaves = [x.requires_grad_() for x in stacked]
    with strict_vmap():
        above = torch.autograd.grad(vmap(loss(name))(*leaves).sum(), leaves)
    for seed in range(SEEDS):
        alone = [x[seed].detach().requires_grad_() for x in stacked]
        wanted = torch.autograd.grad(loss(name)(*alone), alone)
        for one, two, want in zip(below, above, wanted, strict=True):
            close(one[seed], want, 1e-5)
            close(two[seed], want, 1e-5)


@pytest.mark.usefixtures("stand_ins")
def test_heads_share_keys_and_one_decay_serves_all():
    q, k, v, _, state = (x.float() for x in inputs("decayed_sum", 70))
    shared = [q[:, :1], k[:, :1], v, torch.zeros(70, 1), state]
    for one, two in zip(fla.decayed_sum(*shared), decayed.in_chunks(*shared), strict=True):
        close(one, two, 1e-4)


def test_second_derivatives_are_refused(stand_ins):
    leaves = [x.float().requires_grad_() for x in inputs("delta_rule", 70)]
    first = torch.autograd.grad(loss("delta_rule")(*leaves), leaves, create_graph=True)
    with pytest.raises(NotImplementedError, match="OUTLAST_LIBRARIES=off has more"):
        torch.autograd.grad(first[0].sum(), leaves)


@pytest.mark.parametrize("tokens", [64, 70, 150])
def test_read_gradients_are_those_of_the_formula(tokens):
    """Each chunk by itself, between a state before it and one after it."""
    q, k, v, log_decay, _ = inputs("decayed_sum", tokens)
    q, k, v = (x.transpose(1, 2).requires_grad_() for x in (q, k, v))
    chunks = -(-tokens // fla.CHUNK)
    before = randn(ROWS, chunks, HEADS, KEYS, VALUES, seed=6).requires_grad_()
    above, d_after = randn(*v.shape, seed=7), randn(*before.shape, seed=8)
    steps = log_decay.squeeze(-1).transpose(1, 2)
    sums = torch.cat([part.cumsum(1) for part in steps.split(fla.CHUNK, 1)], 1).requires_grad_()
    total = torch.zeros(())
    cut = (x.split(fla.CHUNK, 1) for x in (q, k, v, sums, above))
    for n, parts in enumerate(zip(*cut, strict=True)):
        query, key, value, g, d_y = (x.transpose(1, 2) for x in parts)
        g = g.unsqueeze(-1)
        pairs = (g - g.mT).tril().exp().tril()
        y = ((query @ key.mT) * pairs) @ value + g.exp() * query @ before[:, n]
        last = g[:, :, -1:]
        after = last.exp() * before[:, n] + (key * (last - g).exp()).mT @ value
        total = total + (y * d_y).sum() + (after * d_after[:, n]).sum()
    wanted = torch.autograd.grad(total, (q, k, sums))
    plain = [x.detach() for x in (q, k, v, above, before)]
    powers = sums.detach() / math.log(2)
    d_values = randn(*v.shape, seed=9)
    dq, dk, d_reads, d_sums = fla._read_gradients(*plain, d_after, powers, plain[0], d_values)
    for one, two in zip((dq, dk, d_sums), wanted, strict=True):
        close(one, two, 1e-9)
    of_token = before.detach().repeat_interleave(fla.CHUNK, 1)[:, :tokens]
    close(d_reads, -torch.einsum("bthe,bthde->bthd", d_values, of_token), 1e-9)


def test_plain_torch_is_taken_unless_asked_for_and_possible(monkeypatch):
    q, _, v, *_ = inputs("decayed_sum", 70)
    q, v = q.float(), v.float()
    monkeypatch.setattr(libraries, "installed", lambda _: True)
    for switch in ("auto", "off", "on"):
        monkeypatch.setenv(libraries.SWITCH, switch)
        with torch.no_grad():
            assert not fla.taken(q, q, v)  # on a CPU


# ---- on a GPU ------------------------------------------------------------------------------------


@pytest.fixture
def few_choices(monkeypatch):
    """One choice of block sizes for each kernel: to time them all takes minutes."""
    pytest.importorskip("fla.ops.gated_delta_rule")
    pytest.importorskip("fla.ops.simple_gla")
    import gc

    from triton.runtime.autotuner import Autotuner

    for tuner in [each for each in gc.get_objects() if Autotuner in type(each).__mro__]:
        good = [c for c in tuner.configs if c.num_warps in (2, 4) and c.num_stages in (2, 3)]
        monkeypatch.setattr(tuner, "configs", (good or tuner.configs)[:1])


def distance(one: Tensor, two: Tensor) -> float:
    return float((one.double() - two).norm() / two.norm())


@pytest.mark.gpu
@pytest.mark.usefixtures("few_choices")
@pytest.mark.parametrize(
    ("keys", "values", "chunk"), [(32, 32, 64), (64, 65, 64), (128, 128, 64), (64, 64, 32)]
)
@every
def test_on_a_gpu_kernels_match_the_reference_with_gradients(
    name, keys, values, chunk, monkeypatch
):
    """Some kernels of fla were wrong on a Hopper GPU in chunks of 64 alone (its issue 984)."""
    monkeypatch.setenv(libraries.SWITCH, "on")
    monkeypatch.setattr(fla, "CHUNK", chunk)
    exact = [x.cuda() for x in inputs(name, 300, SEEDS, keys=keys, values=values)]
    wanted_leaves = [x.requires_grad_() for x in exact]
    wanted = vmap(getattr(reference, name))(*wanted_leaves)
    above = [randn(*y.shape, seed=9).cuda() for y in wanted]
    truth = [*wanted, *torch.autograd.grad(wanted, wanted_leaves, above)]
    function = {"decayed_sum": decayed_sum, "delta_rule": delta_rule}[name]

    def run(*tensors: Tensor, stacked: bool) -> list[Tensor]:
        leaves = [x.detach().float().requires_grad_() for x in tensors]
        with torch.autocast("cuda", torch.bfloat16):
            assert fla.taken(*leaves[:3])
            got = vmap(function)(*leaves) if stacked else function(*leaves)
        ups = [a if stacked else a[0] for a in above]
        ups = [a.to(y.dtype) for a, y in zip(ups, got, strict=True)]
        return [*got, *torch.autograd.grad(got, leaves, ups)]

    together = run(*exact, stacked=True)
    assert together[0].dtype == torch.bfloat16
    assert together[1].dtype == torch.float32
    alone = run(*(x[0] for x in exact), stacked=False)
    names = ["y", "last", "q", "k", "v", *["beta"] * (name == "delta_rule"), "log_decay", "state"]
    off = {
        n: (distance(many, want), distance(one, want[0]))
        for n, many, one, want in zip(names, together, alone, truth, strict=True)
    }
    assert max(max(pair) for pair in off.values()) < 2e-2, off


@pytest.mark.gpu
@pytest.mark.usefixtures("few_choices")
@every
def test_on_a_gpu_kernels_go_into_a_graph(name, monkeypatch):
    from outlast.bench.graphs import captured

    monkeypatch.setenv(libraries.SWITCH, "on")
    leaves = [x.float().cuda().requires_grad_() for x in inputs(name, 300, SEEDS, keys=32)]

    def step() -> tuple[Tensor, ...]:
        with torch.autocast("cuda", torch.bfloat16):
            total = vmap(loss(name))(*leaves)
        return torch.autograd.grad(total.sum(), leaves)

    wanted = [x.clone() for x in step()]
    for one, two in zip(captured(step)(), wanted, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-2, atol=1e-2)
