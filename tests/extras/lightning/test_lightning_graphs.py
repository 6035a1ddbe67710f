"""Delayed attention in Lightning equals the plain run under gradient checkpointing and compilation.

All trainings accumulate the gradients of two batches.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("lightning.pytorch")
pytest.importorskip("torchdata")

from lightning_jobs import Checkpointed, Eager, Hybrid, Watch, train, weights
from torch import Tensor

from outlast.lightning import DelayedAttention

MODES = ("skip", "freeze", "ramp", "detach")
SWITCH, STEPS, BATCHES = 3, 6, 12


class Compiled(Hybrid):
    """Compiled in a hook: before the callback begins, or after it."""

    def __init__(self, hook: str, module: str, backend: Eager) -> None:
        super().__init__()
        setattr(self, hook, lambda: self.get_submodule(module).compile(backend=backend))


def around(backend: Eager) -> Any:
    return torch.compile(Hybrid(), backend=backend)


def attention_alone(backend: Eager) -> Hybrid:
    model = Hybrid()
    model.attn = torch.compile(model.attn, backend=backend)
    return model


COMPILED: dict[str, Callable[[Eager], Any]] = {
    "around the LightningModule": around,
    "attention alone": attention_alone,
    "in configure_model": lambda backend: Compiled("configure_model", "", backend),
    "after the callback began": lambda backend: Compiled("on_train_start", "", backend),
    "attention after the callback began": lambda backend: Compiled(
        "on_train_start", "attn", backend
    ),
}


@pytest.fixture(scope="module")
def train_mode(tmp_path_factory) -> Callable[..., Tensor]:
    """Train a model in a mode, and return its weights. Attention must move after the switch."""

    def trained(mode: str, model: Any = None) -> Tensor:
        callback, watch = DelayedAttention(SWITCH, mode, "attn", ramp=2), Watch()
        folder = tmp_path_factory.mktemp("training")
        train(
            folder,
            callback,
            model := Hybrid() if model is None else model,
            callbacks=(watch,),
            max_steps=STEPS,
        )
        assert callback.switched == SWITCH
        assert watch.first_move() == (1 if mode == "detach" else SWITCH + 1)
        return weights(model)

    return trained


@pytest.fixture(scope="module")
def plain(train_mode) -> dict[str, Tensor]:
    return {mode: train_mode(mode) for mode in MODES}


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_checkpointed_model_trains_like_the_plain_one(plain, train_mode, mode, use_reentrant):
    model = Checkpointed(use_reentrant)
    assert torch.equal(train_mode(mode, model), plain[mode])
    assert model.passes > BATCHES  # the backward pass has computed it again


@pytest.mark.parametrize("how", COMPILED)
@pytest.mark.parametrize("mode", MODES)
def test_compiled_model_trains_like_the_plain_one(plain, train_mode, mode, how):
    torch._dynamo.reset()
    backend = Eager()
    assert torch.equal(train_mode(mode, COMPILED[how](backend)), plain[mode])
    assert backend.attention_graphs >= 2  # for phase 1, and again for phase 2
