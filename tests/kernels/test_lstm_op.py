"""What is particular to the LSTM's recurrence on the CPU."""

import pytest
import torch
from torch.func import vmap

from kernel_cases import draw, lstm_inputs, same
from outlast.kernels.lstm import lstm

pytestmark = pytest.mark.filterwarnings("error")


def gradients(outputs, inputs, seed=9):
    """Of a random weighing of all outputs, so that each of their entries counts."""
    weighed = sum((o * draw(*o.shape, seed=seed + i)).sum() for i, o in enumerate(outputs))
    return torch.autograd.grad(weighed, inputs)


@pytest.mark.parametrize("outputs", [(0, 1, 2), (0, 2), (0,), (1,), (2,)], ids=str)
@pytest.mark.parametrize("steps", [1, 3])
def test_gradients_match_small_steps_whichever_results_are_used(outputs, steps):
    inputs = [a.requires_grad_() for a in lstm_inputs(steps, 2, 2)]
    assert torch.autograd.gradcheck(lambda *a: [lstm(*a)[i] for i in outputs], inputs)


def test_stack_of_stacks_matches_each_alone():
    inputs = [a.requires_grad_() for a in lstm_inputs(3, 2, 4, 2, 3)]
    actual = vmap(vmap(lstm))(*inputs)
    alone = [
        torch.stack([lstm(*(a[i, j] for a in inputs))[out] for i in range(2) for j in range(3)])
        for out in (0, 1, 2)
    ]
    alone = [a.unflatten(0, (2, 3)) for a in alone]
    same(actual, alone)
    same(gradients(actual, inputs), gradients(alone, inputs))


def test_state_of_bfloat16_inputs_is_float32():
    results = lstm(*(a.to(torch.bfloat16) for a in lstm_inputs(3, 2, 4)))
    assert {r.dtype for r in results} == {torch.float32}
