"""benchmarks/peers.py does the same job with every side."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("x_transformers")

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "peers.py"


@pytest.fixture(scope="module")
def peers() -> ModuleType:
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


def test_only_lines_of_code_are_counted(peers: ModuleType) -> None:
    def example() -> int:
        """Not counted."""
        # nor this
        numbers = [1]

        return sum(numbers)

    assert peers.code_lines(example) == 2
