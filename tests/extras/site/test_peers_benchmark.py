"""benchmarks/peers.py does the same job with every side."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import outlast

pytest.importorskip("x_transformers")

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "peers.py"


@pytest.fixture(scope="module")
def peers() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPT.parent)
        yield load_script()


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("peers", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("side", ["outlast", "x-transformers", "transformers"])
def test_side_trains_every_seed_and_tests_it_at_both_lengths(
    peers: ModuleType, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outlast.workflow.evaluate.default_sequences", lambda task: 16)
    assert set(peers.SIDES) == {"outlast", "x-transformers", "transformers"}
    exact = peers.SIDES[side]("alibi" if side == "transformers" else "rope", 4, 2, 2)
    assert {multiple: len(shares) for multiple, shares in exact.items()} == {"1": 2, "3": 2}
    assert all(0 <= share <= 1 for shares in exact.values() for share in shares)


def test_rows_for_composer_are_those_of_the_other_sides(peers: ModuleType, tmp_path: Path) -> None:
    peers.write_rows(tmp_path / "rows.npz", 4, 3, 2)
    task = outlast.task("flipflop(length=4)")
    with np.load(tmp_path / "rows.npz", allow_pickle=False) as rows:
        assert rows["inputs"].shape == rows["targets"].shape == (2, 3 * 32, task.tokens(4))
        assert rows["inputs 3"].shape == (2, 512, task.tokens(12))
        first = next(iter(task.stream(batch=32, seed=1)))
        assert (rows["inputs"][1, :32] == first.inputs.numpy()).all()
        assert rows["vocabulary"] == task.vocabulary


def test_only_lines_of_code_are_counted(peers: ModuleType) -> None:
    def example() -> int:
        """Not counted."""
        # nor this
        numbers = [1]

        return sum(numbers)

    assert peers.code_lines(example) == 2
