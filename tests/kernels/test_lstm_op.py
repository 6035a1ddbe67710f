"""The LSTM's recurrence: the reference against torch's own, and the rules of the op around it."""

import pytest
import torch
from kernel_cases import draw, lstm_inputs, same
from torch import nn
from torch.func import vmap

from outlast.kernels.lstm import lstm

pytestmark = pytest.mark.filterwarnings("error")


def gradients(outputs, inputs, seed=9):
    """Of a random weighing of all outputs, so that each of their entries counts."""
    weighed = sum((o * draw(*o.shape, seed=seed + i)).sum() for i, o in enumerate(outputs))
    return torch.autograd.grad(weighed, inputs)


@pytest.mark.parametrize(("steps", "rows", "width"), [(1, 1, 1), (7, 3, 5), (4, 2, 16)])
def test_it_is_torchs_lstm_states_and_every_gradient(steps, rows, width):
    torchs = nn.LSTM(6, width, dtype=torch.float64, batch_first=True)
    w_in, w, b_in, b = torchs.parameters()
    x = draw(rows, steps, 6).requires_grad_()
    h0, c0 = (draw(rows, width, seed=s).requires_grad_() for s in (1, 2))
    inputs = (x, w_in, w, b_in, b, h0, c0)

    wanted, (h, c) = torchs(x, (h0[None], c0[None]))
    found = lstm(x @ w_in.mT, b_in + b, w, h0, c0)
    same(found, (wanted, h[0], c[0]))
    same(gradients(found, inputs), gradients((wanted, h[0], c[0]), inputs))


@pytest.mark.parametrize("outputs", [(0, 1, 2), (0, 2), (0,), (1,), (2,)], ids=str)
@pytest.mark.parametrize("steps", [1, 3])
def test_gradients_of_every_hidden_state_and_the_last_ones(outputs, steps):
    inputs = [a.requires_grad_() for a in lstm_inputs(steps, 2, 2)]
    assert torch.autograd.gradcheck(lambda *a: [lstm(*a)[i] for i in outputs], inputs)


def test_the_op_keeps_torchs_rules():
    inputs = [a.requires_grad_() for a in lstm_inputs(3, 4, 5, 2)]
    torch.library.opcheck(torch.ops.outlast.lstm.default, inputs)
    hidden, _, last, cell, gates = torch.ops.outlast.lstm(*(a.detach() for a in inputs))
    _, _, weight, h0, c0 = (a.detach() for a in inputs)
    torch.library.opcheck(
        torch.ops.outlast.lstm_backward.default,
        (draw(*hidden.shape), draw(*last.shape), weight, h0, c0, hidden, cell, gates),
        test_utils=("test_schema", "test_faketensor"),
    )


AXES = {
    "all stacked": (0, 0, 0, 0, 0),
    "one input for all": (None, 0, 0, None, None),
    "one set of weights for all": (0, None, None, 0, 0),
    "stacked elsewhere": (2, 1, 1, 1, 0),
}


@pytest.mark.parametrize("axes", AXES.values(), ids=AXES.keys())
def test_a_stack_is_each_of_it_alone(axes):
    stacked = lstm_inputs(4, 3, 5, 3)
    given = [
        (a[0] if axis is None else a.movedim(0, axis)).requires_grad_()
        for a, axis in zip(stacked, axes, strict=True)
    ]
    rows = [
        [a if axis is None else a.select(axis, row) for a, axis in zip(given, axes, strict=True)]
        for row in range(3)
    ]
    alone = [torch.stack(parts) for parts in zip(*(lstm(*row) for row in rows), strict=True)]
    found = vmap(lstm, in_dims=axes)(*given)
    same(found, alone)
    same(gradients(found, given), gradients(alone, given))


def test_a_stack_of_stacks_is_each_of_it_alone():
    inputs = [a.requires_grad_() for a in lstm_inputs(3, 2, 4, 2, 3)]
    found = vmap(vmap(lstm))(*inputs)
    alone = [
        torch.stack([lstm(*(a[i, j] for a in inputs))[out] for i in range(2) for j in range(3)])
        for out in (0, 1, 2)
    ]
    alone = [a.unflatten(0, (2, 3)) for a in alone]
    same(found, alone)
    same(gradients(found, inputs), gradients(alone, inputs))


def test_the_state_goes_on_in_full_precision_under_autocast():
    found = lstm(*(a.to(torch.bfloat16) for a in lstm_inputs(3, 2, 4)))
    assert {f.dtype for f in found} == {torch.float32}


def test_second_derivatives_are_refused_not_wrong():
    projected, *others = lstm_inputs(3, 2, 2)
    projected.requires_grad_()
    (first,) = torch.autograd.grad(
        lstm(projected, *others)[0].pow(2).sum(), projected, create_graph=True
    )
    with pytest.raises(NotImplementedError, match="first derivatives only"):
        torch.autograd.grad(first.sum(), projected)
