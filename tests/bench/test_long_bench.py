"""The bench of long sequences: a row for each size, and chunks that are not the whole are seen."""

from unittest.mock import patch

import pytest

from outlast.bench.long import sections
from outlast.train.predictor import Predictor


@pytest.fixture(autouse=True)
def small_model():
    line = "lstm | attention(heads=2, weights=scalable) > mlp @ 16"
    with patch.object(sections, "MODEL", line):
        yield


def test_rows_have_items_tokens_time_and_memory(bench):
    sections._measure(bench, "thousands", (30, 60), (2,))
    rows = bench.rows
    assert [row.what for row in rows] == ["30 items, 107 tokens", "60 items, 197 tokens"]
    assert all(row.ms > 0 and row.mib >= 0 and row.side == "2 seeds" for row in rows)


def test_farthest_has_the_model_of_the_preset(bench):
    with patch.multiple(sections, FAR_ITEMS=40, FAR_SEEDS=(1, 2)):
        sections.farthest(bench)
    assert [(row.what, row.side) for row in bench.rows] == [
        ("40 items, 85 tokens", "1 seed"),
        ("40 items, 85 tokens", "2 seeds"),
    ]
    assert all(row.ms > 0 for row in bench.rows)


def test_chunks_equal_the_whole_and_an_error_is_seen(bench):
    sections.equal(bench, items=100)
    assert len(bench.rows) == 2
    assert max(row.error for row in bench.rows) < 1e-5
    real = Predictor.in_chunks
    with patch.object(Predictor, "in_chunks", lambda *args: (1.5 * part for part in real(*args))):
        sections.equal(bench, items=100)
    assert bench.rows[-1].error == pytest.approx(0.5, rel=1e-3)
