"""`outlast.lightning.DelayedAttention` in a Lightning Trainer."""

import logging
import signal
from pathlib import Path

import pytest
import torch

pytest.importorskip("lightning.pytorch")
pytest.importorskip("torchdata")

import lightning as L
from forked_jobs import run_job, wait
from lightning_jobs import Hybrid, Watch, killed_at, loader, train

from outlast.errors import OutlastError, SpecError
from outlast.lightning import DelayedAttention

#: all switch at step 6. Lightning restores no random state, so there is no dropout here.
CASES = {
    "skip": {"mode": "skip", "switch": "below(1e-9)", "latest": 6},
    "freeze": {"mode": "freeze", "switch": 6},
    "ramp": {"mode": "ramp", "switch": 0.6, "ramp": 4},
    "detach": {"mode": "detach", "switch": 6},
}
#: checkpoints are made after steps 3, 6 and 9; a kill comes after the callbacks of its step
KILLS = {"phase 1": 5, "step of the switch": 6, "after the switch": 8, "end": 10}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> dict[str, dict]:
    results = {}
    for case, arguments in CASES.items():
        folder = tmp_path_factory.mktemp(case)
        assert wait(run_job(killed_at, str(folder), None, arguments, False)) == 0
        results[case] = torch.load(folder / "result.pt")
    return results


@pytest.mark.parametrize("kill", KILLS)
@pytest.mark.parametrize("case", CASES)
def test_killed_and_resumed_training_equals_an_uninterrupted_one(
    uninterrupted, tmp_path: Path, case: str, kill: str
):
    killed = run_job(killed_at, str(tmp_path), KILLS[kill], CASES[case], False)
    assert wait(killed) == -signal.SIGKILL
    assert not (tmp_path / "result.pt").exists()
    assert wait(run_job(killed_at, str(tmp_path), None, CASES[case], True)) == 0
    resumed, whole = torch.load(tmp_path / "result.pt"), uninterrupted[case]
    assert resumed["switched"] == whole["switched"] == 6
    for name, weight in whole["weights"].items():
        assert torch.equal(weight, resumed["weights"][name]), name


@pytest.mark.parametrize(
    ("given", "switched"),
    [
        ({"switch": 2}, 2),
        ({"switch": 0.5}, 5),
        ({"switch": "below(9)"}, 1),
        ({"switch": "below(1e-9)", "latest": 3}, 3),
        ({"switch": "plateau"}, None),
        ({"switch": "below(9)", "metric": "val_loss"}, 4),
        ({"switch": "above(0.1)", "metric": "val_loss"}, 4),
        ({"switch": "above(99)", "metric": "val_loss"}, None),
    ],
)
def test_attention_is_let_in_at_the_step_that_the_switch_says(tmp_path, given, switched):
    callback, watch = DelayedAttention(where="attn", **given), Watch()
    train(tmp_path, callback, validate=True, callbacks=(watch,), val_check_interval=8)
    assert callback.switched == switched
    assert watch.first_move() == (None if switched is None else switched + 1)


def test_watched_loss_is_the_mean_over_the_batches_of_a_step(tmp_path, monkeypatch):
    callback, seen = DelayedAttention("below(1e-9)", where="attn"), []
    step = callback._delay.step
    monkeypatch.setattr(callback._delay, "step", lambda loss: seen.append(loss) or step(loss))
    model = train(tmp_path, callback, batches=loader(3), accumulate_grad_batches=3, max_steps=6)
    # 14 batches an epoch: the last step of an epoch has two
    parts, losses, expected = [3, 3, 3, 3, 2, 3], iter(model.losses), []
    for part in parts:
        expected.append(sum(next(losses) for _ in range(part)) / part)
    assert seen == pytest.approx(expected, rel=1e-6)


def test_checkpoint_says_what_is_held_back_and_has_nothing_else(tmp_path):
    train(tmp_path, DelayedAttention(6, "ramp", where="attn", ramp=3))
    held = {}
    for path in tmp_path.glob("*.ckpt"):
        saved = torch.load(path, weights_only=True)
        held[saved["global_step"]] = saved["callbacks"]["DelayedAttention"]["held_back"]
        assert saved["state_dict"].keys() == Hybrid().state_dict().keys()
    assert held == {3: ["attn"], 6: ["attn"], 9: []}


def test_model_is_restored_after_training_and_after_an_error(tmp_path, caplog):
    model = Hybrid()
    with caplog.at_level(logging.WARNING, "outlast"):
        train(tmp_path, DelayedAttention(99, where="attn"), model)
    assert "forward" not in vars(model.attn)
    assert "switch=99: training ends at step" in caplog.text
    assert "ended in phase 1" in caplog.text
    model.configure_optimizers = lambda: torch.optim.SGD(model.parameters(), lr=1e-2)
    model.training_step = lambda tokens: 1 / 0
    with pytest.raises(ZeroDivisionError):
        train(tmp_path, DelayedAttention(3, where="attn"), model)
    assert "forward" not in vars(model.attn)


def test_checkpoint_made_without_the_callback_is_refused(tmp_path):
    train(tmp_path, None, max_steps=3)
    (checkpoint,) = tmp_path.glob("*.ckpt")
    with pytest.raises(OutlastError, match=r"\(step 3\) was written without DelayedAttention"):
        train(tmp_path, DelayedAttention(6, where="attn"), resume=str(checkpoint))


def test_checkpoint_made_after_training_can_be_resumed(tmp_path):
    class SaveLater(L.Callback):
        def teardown(self, trainer, pl_module, stage):
            trainer.save_checkpoint(tmp_path / "late.ckpt")

    train(tmp_path, DelayedAttention(2, where="attn"), callbacks=(SaveLater(),), max_steps=4)
    callback = DelayedAttention(2, where="attn")
    train(tmp_path, callback, resume=str(tmp_path / "late.ckpt"), max_steps=6)
    assert callback.switched == 2


def test_two_callbacks_are_refused(tmp_path):
    two = DelayedAttention(4), DelayedAttention(5)
    with pytest.raises(RuntimeError, match="more than one stateful callback"):
        train(tmp_path, two[0], callbacks=two[1:])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "Hybrid: no attention found"),
        ({"where": "atn"}, "no module of the model matches"),
        ({"where": "attn", "mode": "skp"}, "mode='skp': expected skip | freeze"),
        ({"where": "attn", "switch": "belw(1)"}, "no trigger 'belw'"),
        ({"where": "attn", "switch": -1}, "switch=-1"),
        ({"metric": 3}, "metric=3"),
        ({"metric": "val_loss", "switch": 3}, "because metric= is given"),
        ({"where": "attn", "metric": "accuracy"}, "validation does not log it; it logs val_loss"),
    ],
)
def test_bad_arguments_are_clear_errors(tmp_path, given, message):
    with pytest.raises(SpecError, match=message):
        train(tmp_path, DelayedAttention(**given), validate=True, max_steps=20)


def test_metric_without_validation_is_refused_before_training(tmp_path):
    callback = DelayedAttention("below(0.1)", metric="val_loss", where="attn")
    with pytest.raises(SpecError, match="metric=val_loss: there is no validation while training"):
        train(tmp_path, callback)


def test_share_of_an_endless_training_is_refused(tmp_path):
    with pytest.raises(SpecError, match="needs steps="):
        train(tmp_path, DelayedAttention(0.5, where="attn"), max_steps=-1, max_epochs=-1)


def test_training_step_without_a_loss_is_refused_by_a_loss_trigger(tmp_path):
    model = Hybrid()
    model.automatic_optimization = False
    model.training_step = lambda tokens: model.optimizers().step()
    with pytest.raises(OutlastError, match="returned no loss"):
        train(
            tmp_path, DelayedAttention("below(1)", where="attn"), model, accumulate_grad_batches=1
        )
