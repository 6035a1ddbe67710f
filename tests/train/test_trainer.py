"""Training: what is written down, what stops it, in which precision; and opening what it left."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import outlast
import outlast.train.trainer as fleet_module
from outlast.errors import OutlastError, TrainingError
from outlast.machine import pick_device
from outlast.runs.checkpoint import load_checkpoint
from outlast.runs.records import read_metrics, read_run
from outlast.train.run_state import Progress
from outlast.train.step import Stepper
from outlast.train.trainer import Trainer
from outlast.workflow.create import canonical
from outlast.workflow.evaluate import evaluate_run
from outlast.workflow.load import load, open_run
from tiny_runs import CPU, SETTINGS, InMemory, checkpoint, create, tiny, trained

# ---- what is written down ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tiny("dat(switch=15)"), tmp_path_factory.mktemp("plain") / "run")


def test_a_line_for_each_seed_and_look(plain: Path) -> None:
    lines = read_metrics(plain)
    looks = [(line["step"], line["seed"]) for line in lines if "accuracy" in line]
    assert looks == [(step, seed) for step in range(5, 31, 5) for seed in (0, 1)]
    probes = [line for line in lines if "probe" in line]
    assert [(p["step"], p["seed"]) for p in probes] == [
        (s, n) for s in (10, 20, 30) for n in (0, 1)
    ]
    assert all(set(p["probe"]) == {"1", "3"} for p in probes)
    events = [line for line in lines if "event" in line]
    assert [(e["step"], e["event"], e["method"]) for e in events] == [(15, "switch", "dat")] * 2
    for line in lines:
        if "accuracy" in line:
            assert set(line["loss"]) == {"state", "recall", "running"}
            assert all(0 <= v <= 1 for v in line["accuracy"].values())


def test_the_record_says_what_a_reader_wants_to_know(plain: Path) -> None:
    record = read_run(plain)
    assert record["parts"] == ["state", "recall", "running"]
    assert record["auxiliary"] == ["running"]
    assert record["length"] == 4
    assert record["parameters"] == outlast.model(record["model"], record["task"]).size
    assert record["chance"]["state"] == pytest.approx(0.5)
    assert record["chance"]["joint"] == pytest.approx(0.5**3)
    assert record["versions"]["torch"] == torch.__version__.split("+")[0] or record["versions"]


def test_onlookers_are_told(tmp_path: Path) -> None:
    begin(tiny("dat(switch=15)"), tmp_path / "run", CPU)
    seen: list[Progress] = []
    go_on(tmp_path / "run", CPU, seen.append)
    assert [p.step for p in seen] == list(range(5, 31, 5))
    assert [p.waiting for p in seen] == [2, 2, 0, 0, 0, 0]
    assert seen[-1].seconds_left == 0
    assert set(seen[-1].probe) == {"1", "3"}


def test_what_is_left_is_told_without_the_first_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the start; the first block's end, for its report and for what comes; two more blocks
    clock = iter([0.0, 100.0, 100.0, 101.0, 102.0])
    monkeypatch.setattr(fleet_module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    create(tiny(steps=15, steps_per_block=5, checkpoint_every=5), tmp_path / "run")
    seen: list[Progress] = []
    go_on(tmp_path / "run", CPU, seen.append)
    assert [p.seconds_left for p in seen] == [200.0, 1.0, 0.0]


def test_a_method_is_given_once() -> None:
    with pytest.raises(OutlastError, match=r"method=dat \+ dat\(mode=ramp\): .* dat is twice"):
        canonical(tiny("dat", "dat(mode=ramp)"))


def test_after_the_end_there_is_no_block() -> None:
    run = InMemory(tiny(steps=5, steps_per_block=5, checkpoint_every=5)).steps(5)
    with pytest.raises(TrainingError, match="all runs are at their end"):
        run.trainer.block()


def test_training_learns(tmp_path: Path) -> None:
    """The parity of two bits, in a moment: gradients go where they should."""
    run = tiny(task="parity(length=2)", model="lstm > mlp @ 16", steps=150, lr=1e-2, probe_every=0)
    first, *_, last = read_metrics(trained(run, tmp_path / "run"))
    assert first["loss"]["state"] > 0.5
    assert last["loss"]["state"] < 0.1


def test_steps_that_fill_no_block(tmp_path: Path) -> None:
    folder = trained(
        tiny(steps=17, steps_per_block=10, checkpoint_every=10, probe_every=10), tmp_path / "run"
    )
    assert [x["step"] for x in read_metrics(folder) if "accuracy" in x] == [10, 10, 17, 17]
    assert json.loads(checkpoint(folder)[1])["step"] == 17


# ---- precision and device ----------------------------------------------------------------------


def test_bf16_trains_on_finite_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = trained(tiny("dat(switch=10)", precision="bf16", steps=20), tmp_path / "half")
    other = trained(tiny("dat(switch=10)", precision="fp32", steps=20), tmp_path / "full")
    half, full = read_metrics(folder), read_metrics(other)
    losses = [v for line in half if "accuracy" in line for v in line["loss"].values()]
    assert losses
    assert all(0 < v < 5 for v in losses)
    assert half != full
    for one, two in zip(half, full, strict=True):
        if "accuracy" in one:
            assert one["loss"] == pytest.approx(two["loss"], abs=0.05)
    assert all(t.dtype == torch.float32 for t in load_checkpoint(folder)[0].values())


def test_autocast_is_what_bf16_means(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = []
    step = Stepper._step

    def look(self: Stepper, *args: Any) -> None:
        run = self.stack.run
        self.stack.run = lambda *a, **k: (
            seen.append(torch.is_autocast_enabled("cpu")),
            run(*a, **k),
        )[1]  # type: ignore[method-assign]
        step(self, *args)
        self.stack.run = run  # type: ignore[method-assign]

    monkeypatch.setattr(Stepper, "_step", look)
    for name, expected in (("bf16", True), ("fp32", False), ("auto", False)):
        seen.clear()
        trained(
            tiny(precision=name, steps=2, steps_per_block=2, probe_every=0, checkpoint_every=2),
            tmp_path / name,
        )
        assert seen == [expected] * 2


def test_the_precision_of_others_is_given_back(tmp_path: Path) -> None:
    before = torch.get_float32_matmul_precision()
    trained(
        tiny(precision="tf32", steps=2, steps_per_block=2, probe_every=0, checkpoint_every=2),
        tmp_path / "run",
    )
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize("name", ["gpu", "meta", "mps", "cuda:99", "cpu:x", ""])
def test_a_device_that_is_not_there(name: str) -> None:
    with pytest.raises(OutlastError, match=f"device={name}: "):
        pick_device(name)


def test_devices() -> None:
    assert pick_device("cpu").type == "cpu"
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


# ---- opening a run -----------------------------------------------------------------------------


def tokens(folder: Path, length: int = 6) -> Tensor:
    task = outlast.task(read_run(folder)["task"])
    return task.sample(length, 16, torch.Generator().manual_seed(5)).inputs


@pytest.mark.parametrize(
    "methods",
    [
        (),
        ("ema(0.9)",),
        ("dat(switch=10)",),
        ("dat(switch=below(0.000001), otherwise=wait)",),
        ("dat(mode=ramp, switch=10, ramp=40)", "ema(0.5)"),
        ("dat(mode=detach, switch=below(0.000001), otherwise=wait)",),
    ],
    ids=" + ".join,
)
def test_a_loaded_model_is_its_seed_of_the_stack(methods: tuple[str, ...], tmp_path: Path) -> None:
    folder = trained(tiny(*methods, seeds=(4, 2), steps=20), tmp_path / "run")
    inputs = tokens(folder)
    with torch.no_grad():
        together = open_run(folder, CPU).tester()(inputs)
        for row, seed in enumerate((4, 2)):
            logits, _ = load(folder, seed)(inputs)
            torch.testing.assert_close(logits, together[row], rtol=1e-5, atol=1e-5)
        assert torch.equal(load(folder)(inputs)[0], load(folder, 4)(inputs)[0])
    assert not torch.allclose(together[0], together[1], atol=1e-2)


def test_attention_that_was_never_let_in_stays_out(tmp_path: Path) -> None:
    never = "dat(switch=below(0.000001), otherwise=wait)"
    folder = trained(tiny(never, steps=20), tmp_path / "run")
    model = load(folder, 0)
    inputs = tokens(folder)
    with torch.no_grad():
        closed, _ = model(inputs)
        for sublayer in model.sublayers():
            if sublayer.pathway == "attention":
                assert sublayer.gate.item() == 0
                sublayer.set_gate(1.0)
        opened, _ = model(inputs)
    assert not torch.allclose(closed, opened, atol=1e-3)


def test_a_ramp_half_way_up_is_loaded_so(tmp_path: Path) -> None:
    folder = trained(tiny("dat(mode=ramp, switch=10, ramp=40)", steps=20), tmp_path / "run")
    gates = {s.pathway: s.gate.item() for s in load(folder).sublayers()}
    assert gates["attention"] == pytest.approx(11 / 40)  # the gate of the step that would be next
    assert gates["recurrent"] == 1


def test_the_average_is_loaded_corrected_for_its_start(tmp_path: Path) -> None:
    """By hand: the average of weights w1..wn with decay d, its weights summing to one."""
    folder, decay = tmp_path / "run", 0.5
    run = canonical(
        tiny(f"ema({decay})", steps=3, steps_per_block=1, probe_every=0, checkpoint_every=1)
    )
    create(run, folder)
    fleet, seen = Trainer([(run, folder)], CPU), []
    fleet.train(lambda trainer, _: seen.append(trainer.stack.table.clone()))
    (trainer,) = fleet.trainers
    shares = torch.tensor([0.125, 0.25, 0.5])
    expected = sum(w * s for w, s in zip(seen, shares / shares.sum(), strict=True))
    for row, seed in enumerate(run.seeds):
        model = dict(load(folder, seed).named_parameters())
        for name, columns in trainer.stack.slices.items():
            torch.testing.assert_close(
                model[name].flatten(), expected[row, columns], rtol=1e-5, atol=1e-6
            )


def test_without_an_average_the_last_weights_are_loaded(plain: Path) -> None:
    saved, _ = load_checkpoint(plain)
    model = load(plain, 1)
    for name, weights in model.named_parameters():
        assert torch.equal(weights, saved[f"weights.{name}"][1])
    assert not model.training


def test_a_seed_that_is_not_there(plain: Path) -> None:
    with pytest.raises(OutlastError, match=r"seed=9: .* has the seeds 0, 1"):
        load(plain, 9)


def test_opening_changes_nothing(plain: Path) -> None:
    before = {p.name: p.read_bytes() for p in plain.iterdir()}
    load(plain, 1)
    open_run(plain, CPU)
    assert {p.name: p.read_bytes() for p in plain.iterdir()} == before


def test_a_loaded_model_scores_what_the_run_scored(plain: Path) -> None:
    rows = evaluate_run(plain, (1, 3), 64)
    record = read_run(plain)
    for seed in (0, 1):
        own = outlast.evaluate(load(plain, seed), record["task"], (1, 3), 64)
        assert [r["exact"] for r in own] == [r["exact"] for r in rows if r["seed"] == seed]


# ---- the first step does not wait for a compiler -----------------------------------------------


def test_training_does_not_load_the_compiler(tmp_path: Path) -> None:
    """It would take longer than a small run; see kernels/lstm/op.py."""
    import subprocess

    code = (
        "import sys; from pathlib import Path; import torch\n"
        "from outlast.train.session import begin, go_on\n"
        "from outlast.runs.spec import RunSpec, Settings\n"
        "settings = Settings(steps=2, batch_size=2, steps_per_block=2, probe_every=2, checkpoint_every=2)\n"
        "run = RunSpec(sys.argv[2], sys.argv[3], ('dat(switch=1)', 'ema'), (0, 1), settings)\n"
        "begin(run, Path(sys.argv[1]), torch.device('cpu'))\n"
        "go_on(Path(sys.argv[1]), torch.device('cpu'))\n"
        "print(sorted({'torch._dynamo', 'sympy', 'matplotlib'} & sys.modules.keys()))\n"
    )
    run = tiny()
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run"), run.task, run.model],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_the_settings_here_have_looks_between_checkpoints() -> None:
    assert SETTINGS.block < SETTINGS.checkpoint < SETTINGS.steps
