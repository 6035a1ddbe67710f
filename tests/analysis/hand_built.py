"""A model whose weights are set by hand, so that one knows how it works and how it fails.

The task is `composite` with digits 0 and 1. An LSTM keeps the parity of the digits. It also brings
the key of each pair to the token of its value. Head 0 of attention looks for the value whose key is
asked for. Head 1 looks everywhere alike, and adds nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

import outlast
from outlast.models.model import Model
from outlast.tasks import Task
from outlast.tasks.composite import Composite

KEYS, LENGTH, WIDTH, HEAD_WIDTH = 16, 5, 64, 32
SCALE = WIDTH**0.5  # of a one-hot vector after its norm
#: an LSTM cell at 1 puts out this much
ON = torch.tanh(torch.tensor(1.0)).item()
#: channels: one for each token, then the key of this token, the key of the last one, the parity so
#: far, the parity at `=` alone, and what was recalled
THIS, LAST, PARITY, SHOWN, RECALLED = 20, 36, 52, 53, 54


def task_of(layout: str = "separate") -> Composite:
    line = f"composite(modulus=2, keys={KEYS}, layout={layout}, queries=1, length={LENGTH})"
    task = outlast.task(line)
    assert isinstance(task, Composite)
    return task


@torch.no_grad()
def build(
    task: Composite,
    sharpness: float = 5.0,
    shift: int = 0,
    value: float = 1.0,
    keep: float = 20.0,
    output: float = 1.0,
    answer: float = 1.0,
) -> Model:
    """The model, with what may be broken in it.

    Args:
        task: What it solves; `chained` recalls the parity instead of the digit.
        sharpness: A factor of the scores of head 0.
        shift: How many keys further head 0 looks.
        value: A factor of the values of head 0.
        keep: The logit of the forget gate of the parity; 20 keeps it for good.
        output: A factor of the parity in the output.
        answer: A factor of what was recalled in the output.
    """
    model = outlast.model(f"lstm > attention(nope, heads=2) @ {WIDTH}, norm=rms", task)
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            parameter.zero_()
    model.embedding.weight[:, : task.vocabulary] = torch.eye(task.vocabulary)
    lstm, attention = (sublayer.mixer for sublayer in model.sublayers())
    _set_lstm(lstm, task, keep)

    query, key, values = attention.qkv.weight.chunk(3)
    for number in range(KEYS):
        query[number, 2 + (number - shift) % KEYS] = sharpness
        key[number, LAST + number] = 1.0
    if task.layout == "chained":
        values[0, PARITY] = value
        values[0, :2] = -value * ON / 2
    else:
        values[0, :2] = torch.tensor([-value, value])
    attention.out.weight[RECALLED, 0] = 0.1
    sign = torch.tensor([-1.0, 1.0])
    model.head.weight[:2, RECALLED] = answer * sign
    model.head.weight[:2, SHOWN] = 10 * output * sign
    return model


def _set_lstm(lstm: torch.nn.Module, task: Composite, keep: float) -> None:
    enter, forget, cell, leave = lstm.input.bias.chunk(4)
    enter_in, forget_in, cell_in, leave_in = lstm.input.weight.chunk(4)
    enter_back, _, cell_back, _ = lstm.weight.chunk(4)
    enter.fill_(20.0), forget.fill_(-20.0), leave.fill_(20.0)
    for number in range(KEYS):
        cell_in[THIS + number, 2 + number] = 5 / SCALE
        cell_back[LAST + number, THIS + number] = 10.0
    # a digit 1 empties the cell if it is full and fills it if it is empty
    cell[PARITY], forget[PARITY], enter[PARITY] = 20.0, keep, -20.0
    forget_in[PARITY, 1], enter_in[PARITY, 1] = -40 / SCALE, 40 / SCALE
    enter_back[PARITY, PARITY] = -40 / ON
    cell[SHOWN], cell_back[SHOWN, PARITY] = -10.0, 20 / ON
    leave[SHOWN], leave_in[SHOWN, task.equals] = -20.0, 40 / SCALE


@contextmanager
def untouched(model: Model, task: Task) -> Iterator[None]:
    """Everything of the model, and torch's random state, is afterwards what it was."""
    tokens = torch.randint(task.vocabulary, (2, 9))
    model.train()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    logits: Tensor = model(tokens)[0].detach()
    random = torch.get_rng_state()
    yield
    assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert all(getattr(sublayer.mixer, "hook", None) is None for sublayer in model.sublayers())
    assert torch.equal(model(tokens)[0], logits)
