"""What foreign models return: taken as logits, refused, or counted as NaN; and their modes."""

from __future__ import annotations

import logging
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from outlast.errors import OutlastError
from outlast.evaluation.ladder import evaluate, evaluate_stack
from outlast.evaluation.remarks import nan_remarks
from outlast.registry import tasks
from outlast.tasks import Task
from tiny_runs import TASK

PARITY: Task = tasks.build("parity(length=4)")


def oracle(tokens: Tensor, task: Task = PARITY) -> Tensor:
    """Right everywhere, about two answers."""
    answers = [[-1 if a is None else a for a in task.solve(row)] for row in tokens.tolist()]
    return nn.functional.one_hot(torch.tensor(answers) + 1, 3)[..., 1:].float()


def joint(model: Callable[[Tensor], Any], **options: Any) -> float:
    (row,) = evaluate(model, PARITY, (1,), 64, **options)
    assert row["exact"] is not None
    return row["exact"]["joint"]


class HeadlessOutput(OrderedDict[str, Any]):
    """As the outputs of Hugging Face: a dict whose values are attributes too."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(name)


Pair = namedtuple("Pair", ["loss", "logits"])


# ---- taken -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrap", "source"),
    [
        (lambda x: x, "the output itself"),
        (lambda x: x.numpy(), "the output itself as a numpy array"),
        (lambda x: x.numpy().astype(np.float64)[..., ::-1][..., ::-1], "as a numpy array"),
        (lambda x: x.half().numpy(), "as a numpy array"),
        (lambda x: x.long().numpy(), "as a numpy array"),
        (lambda x: (x, "a state"), "the first item of a tuple"),
        (lambda x: (x.numpy(),), "the first item of a tuple as a numpy array"),
        (lambda x: SimpleNamespace(logits=x), "the logits of a SimpleNamespace"),
        (lambda x: SimpleNamespace(logits=x.numpy()), "the logits of a SimpleNamespace as a numpy"),
        (lambda x: {"logits": x}, "the logits of a dict"),
        (lambda x: HeadlessOutput(loss=None, logits=x), "the logits of a HeadlessOutput"),
        (lambda x: Pair(torch.tensor(0.5), x), "the logits of a Pair"),
    ],
)
def test_oracle_is_right_whatever_its_logits_come_in(
    wrap: Callable[[Tensor], Any], source: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert joint(lambda tokens: wrap(oracle(tokens))) == 1.0
    (message,) = [m for m in caplog.messages if "taken as the model's logits" in m]
    assert source in message


@pytest.mark.parametrize(
    ("wrap", "source"),
    [
        (lambda x: x.numpy(), "the output itself as a numpy array"),
        (lambda x: (x, "a state"), "the first item of a tuple"),
        (lambda x: HeadlessOutput(loss=None, logits=x), "the logits of a HeadlessOutput"),
    ],
)
def test_rows_say_what_was_taken_as_logits(wrap: Callable[[Tensor], Any], source: str) -> None:
    rows = evaluate(lambda tokens: wrap(oracle(tokens)), PARITY, (1, 3), 8, ceiling=6)
    assert [row.get("logits_from") for row in rows] == [source, None]
    assert rows[1]["exact"] is None


def test_rows_of_a_plain_tensor_say_nothing_of_its_source() -> None:
    (row,) = evaluate(oracle, PARITY, (1,), 8)
    assert "logits_from" not in row


def test_every_source_of_logits_is_said_if_they_change() -> None:
    def model(tokens: Tensor) -> Any:
        return (oracle(tokens),) if tokens.shape[1] > 5 else oracle(tokens)

    for row in evaluate(model, PARITY, (1, 2, 1), 8):
        assert row["logits_from"] == "the output itself; the first item of a tuple"


def test_source_of_logits_is_said_once_for_all_lengths(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    evaluate(oracle, PARITY, (1, 2, 3), 8)
    assert len(caplog.messages) == 1


def test_read_only_array_is_taken_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    def model(tokens: Tensor) -> np.ndarray[Any, Any]:
        array = oracle(tokens).numpy()
        array.flags.writeable = False
        return array

    assert joint(model) == 1.0
    assert not recwarn.list


# ---- refused -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (lambda x: None, r"returned None: expected logits \(batch, tokens, classes\)"),
        (lambda x: "text", "returned 'text': expected logits"),
        (lambda x: 0.5, r"returned 0.5 \(float\): expected logits"),
        (lambda x: x.tolist(), r"\(list\): expected logits .* tensor or a numpy array"),
        (lambda x: [x], r"\(list\): expected"),
        (lambda x: {"scores": x}, r"a dict without 'logits' \(it has scores\)"),
        (lambda x: {}, "a dict without 'logits'"),
        (lambda x: (), "a tuple that is empty"),
        (lambda x: (None, x), "a tuple that begins with None"),
        (lambda x: ((x,), x), "a tuple that begins with .*tuple"),
        (lambda x: SimpleNamespace(logits=None), r"SimpleNamespace\): expected"),
        (lambda x: SimpleNamespace(logits="a"), "SimpleNamespace"),
        (lambda x: SimpleNamespace(last_hidden_state=x), "hidden states, so take a model with a"),
        (
            lambda x: HeadlessOutput(last_hidden_state=x),
            "has last_hidden_state.*; these are hidden",
        ),
        (lambda x: x.bool(), "logits are of torch.bool"),
        (lambda x: x.to(torch.complex64), "logits are of torch.complex64"),
        (lambda x: x.to_sparse(), "logits are torch.sparse_coo"),
        (lambda x: x.to("meta"), "on the device 'meta'"),
        (lambda x: torch.nested.nested_tensor(list(x), layout=torch.jagged), "nested"),
        (lambda x: np.array([None]), "a numpy array of object"),
        (lambda x: x.numpy().astype(">f8"), "a numpy array of >f8"),
        (lambda x: x.numpy().astype(str), "a numpy array of <U"),
        (lambda x: x[0], r"is of shape \(\d, 2\): expected \(64, \d, 2\) or more"),
        (lambda x: x.sum(), r"is of shape \(\): expected"),
        (lambda x: x.numpy()[..., :1], r"is of shape \(64, \d, 1\): expected"),
    ],
)
def test_output_that_is_no_logits_is_refused(output: Callable[[Tensor], Any], message: str) -> None:
    with pytest.raises(OutlastError, match=message):
        joint(lambda tokens: output(oracle(tokens)))


class Headless(nn.Module):
    """A model of Hugging Face without a head, told to return tuples."""

    def __init__(self, head: object = None) -> None:
        super().__init__()
        self.config, self.head = SimpleNamespace(hidden_size=2), head

    def get_output_embeddings(self) -> object:
        return self.head

    def forward(self, tokens: Tensor) -> Any:
        return (oracle(tokens),)


def test_tuple_of_hidden_states_is_refused_where_the_model_has_no_head() -> None:
    for model in (Headless(), Headless().forward, nn.DataParallel(Headless())):
        with pytest.raises(OutlastError, match=r"Headless has no output embeddings .* 2 numbers"):
            joint(model)
    assert joint(Headless(head="a matrix")) == 1.0
    wider = Headless()
    wider.config.hidden_size = 3
    assert joint(wider) == 1.0


# ---- NaN ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_nan_logits_are_wrong_answers_and_reported(
    dtype: torch.dtype, caplog: pytest.LogCaptureFixture
) -> None:
    (row,) = evaluate(lambda t: oracle(t).to(dtype) * torch.nan, PARITY, (2,), 64)
    assert set(row["exact"].values()) == set(row["answers"].values()) == {0.0}
    assert row["nan"] == 1.0
    remark = "length 8: the logits of 100 % of the answers are NaN or all -inf; they count as wrong"
    assert remark in caplog.text


def row(length: int, nan: float | None, **more: Any) -> Any:
    shares = {} if nan is None else {"nan": nan}
    exact = {"joint": 0.5}
    return {"variant": None, "length": length, "multiple": 1, "exact": exact, **shares, **more}


@pytest.mark.parametrize(
    ("rows", "remarks"),
    [
        ([row(40, None), row(80, None)], []),
        (
            [row(80, 0.03)],
            ["length 80: the logits of 3 % of the answers are NaN or all -inf; they count as wr"],
        ),
        (
            [row(80, 0.03, seed=2), row(80, None, seed=3), row(160, 1.0, seed=2)],
            [
                "length 80: the logits of 3 % of the answers are NaN or all -inf (seed 2)",
                "length 160: the logits of 100 % of the answers are NaN or all -inf (seed 2)",
            ],
        ),
        (
            [row(80, 0.25, seed=2), row(80, 0.5, seed=5), row(80, 0.5, seed=2, variant="sparse")],
            [
                "length 80: the logits of up to 50 % of the answers are NaN or all -inf (seeds 2",
                "length 80, sparse: the logits of 50 % of the answers are NaN or all -inf (seed 2)",
            ],
        ),
        (
            [row(80, 0.5, seed=2), row(80, 0.5, seed=5)],
            ["length 80: the logits of 50 % of the answers are NaN or all -inf (seeds 2, 5)"],
        ),
    ],
)
def test_nan_remarks_name_lengths_seeds_and_shares(rows: list[Any], remarks: list[str]) -> None:
    texts = nan_remarks(rows)
    assert len(texts) == len(remarks)
    for text, start in zip(texts, remarks, strict=True):
        assert text.startswith(start)


def test_nan_of_one_class_makes_its_answer_wrong() -> None:
    def model(tokens: Tensor) -> Tensor:
        logits = oracle(tokens)
        logits[: len(logits) // 4, :, 1] = torch.nan
        return logits

    (row,) = evaluate(model, PARITY, (1,), 64)
    assert row["exact"]["joint"] == 0.75
    assert row["nan"] == 0.25


def test_nan_where_no_answer_is_expected_does_not_matter(caplog: pytest.LogCaptureFixture) -> None:
    def model(tokens: Tensor) -> Tensor:
        logits = oracle(tokens, task)
        for row, line in enumerate(tokens.tolist()):
            unasked = [i for i, answer in enumerate(task.solve(line)) if answer is None]
            assert unasked
            logits[row, unasked] = torch.nan
        # an output that no answer of the task uses
        return torch.cat([logits, torch.full((*logits.shape[:2], 3), torch.nan)], -1)

    task = tasks.build(TASK)
    (row,) = evaluate(model, task, (1,), 64)
    assert row["exact"]["joint"] == 1.0
    assert "nan" not in row
    assert not caplog.messages


def test_nan_of_one_seed_leaves_the_rows_of_the_others() -> None:
    (sick,), (sound,) = evaluate_stack(
        lambda t: torch.stack([oracle(t) * torch.nan, oracle(t)]), 2, PARITY, (1,), 64
    )
    assert [sound] == evaluate(oracle, PARITY, (1,), 64)
    assert (sick["exact"]["joint"], sick["nan"]) == (0.0, 1.0)


def test_infinite_logits_are_numbers_like_others() -> None:
    assert joint(lambda tokens: oracle(tokens).log()) == 1.0  # -inf for what is wrong
    assert joint(lambda tokens: torch.where(oracle(tokens) > 0, torch.inf, 0.0)) == 1.0


# ---- modes -------------------------------------------------------------------------------------


class Dropping(nn.Module):
    """Right in eval mode; in training mode everything is dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Dropout(1.0), nn.Dropout(1.0), nn.BatchNorm1d(2)])
        self.again = self.layers[0]  # shared
        self.seen: list[bool] = []

    def forward(self, tokens: Tensor) -> Tensor:
        self.seen += [module.training for module in self.modules()]
        return self.layers[1](self.layers[0](oracle(tokens)))

    def modes(self) -> list[bool]:
        return [module.training for module in self.modules()]


@pytest.mark.parametrize("frozen", [(), (0,), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("root", [True, False])
@pytest.mark.parametrize("method", [False, True])
def test_module_is_measured_in_eval_mode_and_put_back(
    frozen: tuple[int, ...], root: bool, method: bool
) -> None:
    model = Dropping().train()
    model.training = root
    for index in frozen:
        model.layers[index].eval()
    before = model.modes()
    assert joint(model.forward if method else model) == 1.0
    assert model.modes() == before
    assert not any(model.seen)


def test_module_is_put_back_after_an_error() -> None:
    model = Dropping().train()
    model.layers[2].eval()
    before = model.modes()
    model.register_forward_hook(lambda *_: "no logits")
    with pytest.raises(OutlastError, match="no logits"):
        joint(model)
    assert model.modes() == before
    assert not any(model.seen)


def test_change_of_mode_is_seen_by_layers_that_act_on_it() -> None:
    """Layers that merge their weights in eval mode part them again in training mode."""

    class Merging(nn.Module):
        merged = False

        def train(self, mode: bool = True) -> Merging:
            self.merged = not mode
            return super().train(mode)

    model = nn.Sequential(Merging())
    model.train()
    model.register_forward_pre_hook(lambda module, _: seen.append(module[0].merged))
    model.forward = oracle  # type: ignore[method-assign]
    seen: list[bool] = []
    assert joint(model) == 1.0
    assert seen == [True]
    assert not model[0].merged


def test_answer_whose_logits_are_all_minus_infinity_is_wrong_and_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def model(tokens: Tensor) -> Tensor:
        logits = oracle(tokens)
        logits[: len(logits) // 4] = -torch.inf
        return logits

    (row,) = evaluate(model, PARITY, (1,), 64)
    assert row["exact"]["joint"] == 0.75
    assert row["nan"] == 0.25
    assert "25 % of the answers are NaN or all -inf; they count as wrong" in caplog.text
