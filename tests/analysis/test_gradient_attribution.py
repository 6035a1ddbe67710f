"""Gradient attribution on models whose answer is known, and over the training of a run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import outlast
from outlast.analysis.gradients import gradient_attribution
from outlast.analysis.module_gradients import find_recurrent, module_gradients
from outlast.analysis.run_gradients import Final, _at_step, run_gradients
from outlast.analysis.sequences import NothingToSeeError
from outlast.errors import SpecError
from outlast.models import Model
from outlast.runs.analyses import Row
from outlast.streams import stream_seed
from outlast.tasks import Task
from outlast.workflow.load import open_run
from tiny_runs import CPU, in_threes, trained

TASK = "composite(modulus=2, keys=8, queries=1, length=4)"
WIDTH = 16
COUNTS = {"batch_size": 8, "batches": 2}


@pytest.fixture(scope="module")
def task() -> Task:
    return outlast.task(TASK)


def build(line: str = "lstm > attention(heads=2)") -> Model:
    return outlast.model(f"{line} @ {WIDTH}", TASK, seed=0)


def row(rows: list[Row], **wanted: Any) -> dict[str, Any]:
    """The one row with these values, of all layers and of the trained loss unless they say."""
    wanted = {"layer": "all", "part": "all"} | wanted
    (found,) = (r for r in rows if all(r[name] == value for name, value in wanted.items()))
    return found


# ---- models whose answer is known ----------------------------------------------------------------


def test_attention_that_adds_nothing_has_no_part_in_the_gradient(task: Task) -> None:
    model = build()
    with torch.no_grad():
        model.sublayers()[1].mixer.out.weight.zero_()
    rows = gradient_attribution(model, task, **COUNTS)
    assert {r["attention_norm"] for r in rows} == {0.0}
    assert {r["cosine"] for r in rows} == {None}
    assert all(r["direct_norm"] == r["norm"] > 0 for r in rows)


def test_recurrence_that_only_attention_reads_has_no_direct_part(task: Task) -> None:
    model, half = build(), WIDTH // 2
    first, second = model.sublayers()
    model.norm = nn.Identity()  # type: ignore[assignment]
    with torch.no_grad():  # attention writes one half of the stream, and only that half is read
        model.head.weight[:, half:] = 0
        second.mixer.out.weight[half:] = 0
    stop_first_half(first, half)
    rows = gradient_attribution(model, task, **COUNTS)
    assert {r["direct_norm"] for r in rows} == {0.0}
    assert all(r["attention_norm"] == r["norm"] > 0 for r in rows)


def stop_first_half(sublayer: nn.Module, half: int) -> None:
    """Let a sublayer write the second half of the stream alone."""
    mask = (torch.arange(WIDTH) >= half).float()
    sublayer.register_forward_hook(lambda _, inputs, output: (output[0] * mask, output[1]))


def test_recurrence_after_attention_has_a_direct_part_alone(task: Task) -> None:
    rows = gradient_attribution(build("lstm > attention(heads=2) > lstm"), task, **COUNTS)
    assert row(rows, layer="3.lstm")["attention_norm"] == 0.0
    assert row(rows, layer="1.lstm")["attention_norm"] > 0.0
    norms = [row(rows, layer=layer)["attention_norm"] for layer in ("1.lstm", "all")]
    assert norms[0] == norms[1]


def test_a_short_convolution_is_no_recurrence(task: Task) -> None:
    rows = gradient_attribution(build("lstm > conv > attention(heads=2)"), task, **COUNTS)
    assert {r["layer"] for r in rows} == {"1.lstm", "all"}
    assert list(find_recurrent(build("lstm > conv"))) == ["body.nodes.0.mixer"]


def test_both_parts_add_up_to_the_gradient_of_the_loss(task: Task) -> None:
    model = build()
    rows = gradient_attribution(model, task, **COUNTS)
    for part in (*task.parts, "all"):
        found = row(rows, part=part)
        squares = found["direct_norm"] ** 2 + found["attention_norm"] ** 2
        squares += 2 * found["cosine"] * found["direct_norm"] * found["attention_norm"]
        assert math.isclose(squares, found["norm"] ** 2, rel_tol=1e-6)
    losses = [row(rows, part=part)["loss"] for part in task.parts]
    assert math.isclose(sum(losses), row(rows)["loss"], rel_tol=1e-9)


def test_cosine_is_1_if_the_final_weights_lie_down_the_attention_part(task: Task) -> None:
    model, final = build(), build()
    names = {f"body.nodes.0.{n}" for n, _ in model.sublayers()[0].named_parameters()}

    def gradient(upstream: float) -> dict[str, Tensor]:
        model.sublayers()[1].set_upstream_grad(upstream)
        total = torch.zeros(())
        for number in range(COUNTS["batches"]):
            generator = torch.Generator().manual_seed(stream_seed("gradients", number))
            batch = task.sample(task.lengths, COUNTS["batch_size"], generator)
            logits = model(batch.inputs)[0]
            for index in range(len(task.parts)):
                here = batch.part == index
                total = total + nn.functional.cross_entropy(logits[here], batch.targets[here])
        named = {n: p for n, p in model.named_parameters() if n in names}
        return dict(zip(named, torch.autograd.grad(total, list(named.values())), strict=True))

    direct, whole = gradient(0.0), gradient(1.0)
    with torch.no_grad():
        for name, weight in final.named_parameters():
            if name in names:
                weight -= whole[name] - direct[name]
    found = row(gradient_attribution(model, task, final, **COUNTS))
    assert math.isclose(found["attention_to_final"], 1.0, abs_tol=1e-4)
    assert math.isclose(found["direct_to_final"], found["cosine"], abs_tol=1e-4)


def test_numbers_that_are_not_finite_are_none(task: Task) -> None:
    model = build()
    with torch.no_grad():
        model.sublayers()[0].mixer.weight[0, 0] = torch.nan
    rows = gradient_attribution(model, task, build(), **COUNTS)
    for name in ("loss", "norm", "direct_norm", "cosine", "direct_to_final"):
        assert {r[name] for r in rows} == {None}, name
    rows = gradient_attribution(build(), task, model, **COUNTS)
    assert {r["direct_to_final"] for r in rows} == {None}
    assert all(r["cosine"] is not None for r in rows)


def test_model_is_left_as_it_was(task: Task) -> None:
    model = build()
    model.sublayers()[1].set_upstream_grad(0.5)
    model.embedding.weight.requires_grad_(False)
    model.sublayers()[0].mixer.weight.requires_grad_(False)
    before = {n: t.clone() for n, t in model.state_dict().items()}
    asked = [p.requires_grad for p in model.parameters()]
    random = torch.random.get_rng_state()
    gradient_attribution(model, task, **COUNTS)
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert [p.requires_grad for p in model.parameters()] == asked
    assert all(p.grad is None for p in model.parameters())
    sublayer = model.sublayers()[1]
    assert (sublayer.upstream_grad_mode, float(sublayer.upstream_grad)) == ("between", 0.5)
    assert model.training
    assert torch.equal(torch.random.get_rng_state(), random)


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("lstm", "attention"),
        ("attention", "recurrent"),
        ("conv > attention", "recurrent"),
    ],
)
def test_model_without_one_of_both_is_refused(task: Task, line: str, missing: str) -> None:
    with pytest.raises(NothingToSeeError, match=f"it has no {missing} layer"):
        gradient_attribution(build(line), task)


# ---- runs ----------------------------------------------------------------------------------------

RUN = {"task": TASK, "model": f"lstm > attention(heads=2) @ {WIDTH}", "steps": 12, "batch_size": 4}
KEEP = {"keep_checkpoints": "every=6", "checkpoint_every": 12}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("gradients")
    for name, methods in (
        ("joint", ()),
        ("dat", ("dat(switch=9, rewarm=0)", "ema(0.9)")),
        ("detach", ("dat(mode=detach, switch=9)",)),
    ):
        trained(in_threes(*methods, **RUN, **KEEP), home / name)
    return home


def table(home: Path, name: str, **options: Any) -> list[Row]:
    return run_gradients(home / name, batches=1, **options)


def test_run_has_rows_for_every_seed_step_layer_and_part(home: Path) -> None:
    files = {p: p.read_bytes() for p in (home / "dat").rglob("*") if p.is_file()}
    rows = table(home, "dat")
    assert {p: p.read_bytes() for p in (home / "dat").rglob("*") if p.is_file()} == files
    keys = [(r["seed"], r["step"], r["layer"], r["part"]) for r in rows]
    assert len(set(keys)) == len(keys) == 2 * 4 * 2 * 4
    assert {r["step"]: r["phase"] for r in rows} == {0: 1, 6: 1, 9: 2, 12: 2}
    weights = {(r["phase"], r["part"]): r["weight"] for r in rows if r["part"] != "all"}
    assert weights[1, "recall"] == 0.0
    assert weights[2, "recall"] == weights[1, "state"] == 1.0


@pytest.mark.parametrize("name", ["dat", "detach"])
def test_first_phase_of_dat_has_no_attention_part(home: Path, name: str) -> None:
    for found in table(home, name):
        assert (found["attention_norm"] == 0.0) == (found["phase"] == 1), found
        assert isinstance(found["direct_norm"], float)
        assert found["direct_norm"] > 0


def test_joint_training_has_an_attention_part_from_the_start(home: Path) -> None:
    rows = table(home, "joint", steps=[0, 12], seeds=[1])
    assert {(r["seed"], r["phase"], r["attempt"]) for r in rows} == {(1, None, 0)}
    assert all(r["attention_norm"] > 0 for r in rows)  # type: ignore[operator]
    assert row(rows, step=12)["attention_to_final"] is None, "it is there already"
    assert row(rows, step=12)["direct_to_final"] is None
    assert row(rows, step=0)["direct_to_final"] > 0.1, "training went down the gradient"


def test_another_run_of_the_same_seeds_can_be_the_solution(home: Path) -> None:
    for step in (0, 12):
        ours, theirs = (
            row(table(home, "joint", toward=toward, steps=[step], seeds=[0]))
            for toward in (None, home / "dat")
        )
        for name in ("attention_to_final", "direct_to_final"):
            assert (ours[name] is None) == (step == 12), "it is there already"
            assert isinstance(theirs[name], float)
            assert theirs[name] != ours[name]
        assert theirs["cosine"] == ours["cosine"]
    trained(in_threes(**(RUN | {"task": "parity(length=4)"})), home / "other")
    with pytest.raises(SpecError, match=r"toward=.*expected a run of the model, the task and the"):
        table(home, "joint", toward=home / "other")
    with pytest.raises(SpecError, match=r"seeds=.*expected some of those"):
        table(home, "joint", seeds=[5])


def test_no_way_leads_from_a_discarded_start_to_the_final_weights(home: Path) -> None:
    """Phase 1 never converges here: every seed starts anew after 5 steps, from other weights."""
    retry = "dat(switch=below(0.000001), latest=5, otherwise=retry, rewarm=0)"
    trained(in_threes(retry, **RUN, **KEEP), home / "retry")
    rows = table(home, "retry")
    attempts = {r["step"]: r["attempt"] for r in rows}
    assert attempts[0] == 0 < attempts[6] == attempts[12]
    for found in rows:
        assert (found["direct_to_final"] is None) == (found["step"] in (0, 12)), found["step"]
        assert isinstance(found["direct_norm"], float)
    for one, other in (("joint", "retry"), ("retry", "joint")):
        found = row(table(home, one, steps=[12], seeds=[0], toward=home / other))
        assert found["direct_to_final"] is None, "they started from other weights"


def test_seeds_together_have_the_rows_that_they_have_alone(home: Path) -> None:
    """As on a GPU. At the switch of DAT the two phases lie side by side."""
    both = open_run(home / "dat", CPU, [0, 1], step=9, averaged=False)
    final = open_run(home / "dat", CPU, [0, 1], averaged=False).model
    both.controls[1].gate["attention"] = 0.0
    weights = Final(final.named(final.table), [0, 0])
    rows = _at_step(both, weights, RUN["batch_size"], 1)  # type: ignore[arg-type]
    alone = table(home, "dat", steps=[9], seeds=[0])
    for mine, theirs in zip([r for r in rows if r["seed"] == 0], alone, strict=True):
        assert mine.keys() == theirs.keys()
        for name, value in theirs.items():
            near = pytest.approx(value, rel=1e-4) if isinstance(value, float) else value
            assert mine[name] == near, name
    assert {r["attention_norm"] for r in rows if r["seed"] == 1} == {0.0}


# ---- models of others ----------------------------------------------------------------------------


class Plain(nn.Module):
    """A recurrence, attention over it, and an output that reads attention and maybe more."""

    def __init__(self, skip: float) -> None:
        super().__init__()
        self.skip = skip
        self.lstm = nn.LSTM(4, 8, batch_first=True)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.lstm(x)
        read, _ = self.attention(hidden, key=hidden, value=hidden)
        return self.out(read + self.skip * hidden)


def plain(skip: float) -> tuple[Plain, Any]:
    torch.manual_seed(0)
    model, x = Plain(skip), torch.randn(2, 5, 4)
    return model, lambda: {"first": model(x)[:, 0].square().mean(), "all of it": model(x).std()}


def test_plain_module_with_attention_as_its_only_path_has_no_direct_part() -> None:
    model, loss = plain(skip=0.0)
    rows = module_gradients(model, loss)
    assert {r["part"] for r in rows} == {"first", "all of it", "all"}
    assert {r["direct_norm"] for r in rows} == {0.0}
    assert all(r["attention_norm"] == r["norm"] > 0 for r in rows)
    assert not model.attention._forward_pre_hooks
    assert all(p.grad is None for p in model.parameters())


def test_plain_module_with_silent_attention_has_no_attention_part_in_spite_of_dropout() -> None:
    model, loss = plain(skip=1.0)
    nn.init.zeros_(model.attention.out_proj.weight)
    rows = module_gradients(model, loss, final=model.state_dict())
    assert {r["attention_norm"] for r in rows} == {0.0}
    assert all(r["direct_norm"] == r["norm"] > 0 for r in rows)
    assert {r["direct_to_final"] for r in rows} == {None}


def test_model_of_ours_is_the_same_by_hooks(task: Task) -> None:
    model = build("lstm > attention(heads=2) > lstm")
    generator = torch.Generator().manual_seed(stream_seed("gradients", 0))
    batch = task.sample(task.lengths, 8, generator)

    def loss() -> Tensor:
        logits, total = model(batch.inputs)[0], torch.zeros(())
        for index in range(len(task.parts)):
            here = batch.part == index
            total = total + nn.functional.cross_entropy(logits[here], batch.targets[here])
        return total

    names = ["body.nodes.0", "body.nodes.2"]
    hooked = row(module_gradients(model, loss, recurrent=names))
    ours = row(gradient_attribution(model, task, batch_size=8, batches=1))
    for name in ("norm", "direct_norm", "attention_norm", "cosine"):
        assert math.isclose(hooked[name], ours[name], rel_tol=1e-4), name


def test_a_weight_of_several_modules_counts_once_in_all_of_them() -> None:
    model, loss = plain(skip=1.0)
    model.eval()
    model.twin = nn.Sequential(model.lstm, nn.ReLU())
    once = row(module_gradients(model, loss, recurrent=["lstm"]))
    nested = module_gradients(model, loss, recurrent=["lstm", "twin", "twin.*"])
    assert {r["layer"] for r in nested} == {"lstm", "twin", "all"}
    assert row(nested, layer="twin")["norm"] == once["norm"] > 0
    assert row(nested) == once
    whole = row(module_gradients(model, loss, recurrent=["*"], final=model.state_dict()))
    assert whole["norm"] > once["norm"]
    model.copy = nn.LSTM(4, 8)
    model.copy.weight_ih_l0 = model.lstm.weight_ih_l0  # shared by two modules
    assert row(module_gradients(model, loss))["norm"] == once["norm"]


@pytest.mark.parametrize(
    "returned",
    [None, {}, {"logits": torch.zeros(2, 3, requires_grad=True)}, torch.zeros(())],
    ids=["nothing", "no part", "logits", "no gradient"],
)
def test_what_is_no_loss_is_refused_in_words(returned: Any) -> None:
    with pytest.raises(SpecError, match=r"^loss.*: expected a function that returns one number"):
        module_gradients(plain(1.0)[0], lambda: returned)


def test_what_is_no_function_and_no_model_is_refused_in_words(task: Task) -> None:
    number: Any = 3
    with pytest.raises(SpecError, match=r"^loss=3 .*: expected a function that returns one number"):
        module_gradients(plain(1.0)[0], number)
    model = outlast.model("lstm > attention(nope, heads=2) @ 8", task)
    with pytest.raises(SpecError, match=r"^final=int: expected a model of Outlast"):
        gradient_attribution(model, task, final=number)


def test_names_that_are_nothing_are_refused() -> None:
    model, loss = plain(1.0)
    model.relu = nn.ReLU()
    with pytest.raises(SpecError, match="recurrent=relu: expected modules that have weights"):
        module_gradients(model, loss, recurrent=["relu"])
    with pytest.raises(SpecError, match=r"recurrent=\*.gru: expected names or patterns"):
        module_gradients(model, loss, recurrent=["*.gru"])
    with pytest.raises(SpecError, match=r'no attention found: .*; name them, as in attention=\["'):
        module_gradients(nn.Sequential(nn.LSTM(2, 2)), loss)
    with pytest.raises(NothingToSeeError, match="no recurrence found"):
        module_gradients(nn.Sequential(nn.Linear(2, 2), nn.MultiheadAttention(2, 1)), loss)
