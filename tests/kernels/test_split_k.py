"""Split-k matmuls: what is split, and that the sum stays the same."""

import pytest
import torch

from kernel_cases import draw, lstm_inputs, near, same
from outlast.kernels import split_k
from outlast.kernels.row_alignment import empty_aligned, padded_table
from outlast.kernels.split_k import chunk_count, matmul_over_rows


@pytest.mark.parametrize(
    ("matmuls", "rows", "count"),
    [
        *[(1, 7552, 16), (10, 7552, 8), (32, 7552, 4), (128, 7552, 1), (500, 7552, 1)],
        *[(1, 7551, 1), (1, 300, 1), (1, 1024, 4), (1, 1026, 2)],
    ],
)
def test_many_rows_of_few_matmuls_are_split(matmuls, rows, count):
    assert chunk_count(matmuls, rows, 100, 128) == count


@pytest.mark.parametrize(("out", "k", "count"), [(128, 128, 4), (129, 128, 2), (512, 128, 1)])
def test_matmul_of_many_tiles_is_split_less(out, k, count):
    assert chunk_count(32, 7552, out, k) == chunk_count(32, 7552, k, out) == count


def test_chunk_count_divides_what_it_is_asked_to():
    assert chunk_count(1, 128 * 59, 64, 16, divides=128) == 16
    assert chunk_count(1, 12 * 590, 64, 16, divides=12) == 4
    assert chunk_count(1, 9 * 590, 64, 16, divides=9) == 1


@pytest.mark.parametrize("contiguous", [True, False])
def test_split_sum_and_gradient_match_one_matmul(contiguous):
    left, right = draw(3, 1024, 5, seed=1), draw(3, 1024, 4, seed=2)
    if not contiguous:
        left = left.mT.contiguous().mT
    left.requires_grad_()
    actual, wanted = matmul_over_rows(left, right), torch.bmm(left.mT, right)
    same([actual], [wanted])
    above = draw(3, 5, 4, seed=3)
    same(*([torch.autograd.grad(y, left, above)[0]] for y in (actual, wanted)))


@pytest.mark.parametrize("width", [4, 8, 13, 70])
def test_few_outputs_in_half_precision_match_float64(width):
    left, right = (draw(3, 1024, w, seed=w).bfloat16() for w in (width, 6))
    actual = matmul_over_rows(left, right)
    assert actual.shape == (3, width, 6)
    near([actual.double()], [torch.bmm(left.double().mT, right.double())], 1e-2)


@pytest.mark.parametrize("width", [4, 13, 70])
def test_padded_table_is_not_copied(width, monkeypatch):
    left = empty_aligned(draw(3, 1024, width).bfloat16())
    padded_table(left).zero_()
    left.copy_(draw(3, 1024, width, seed=width))
    right = draw(3, 1024, 6, seed=6).bfloat16()
    monkeypatch.setattr(split_k.F, "pad", None)  # no copy
    actual = matmul_over_rows(left, right)
    assert actual.shape == (3, width, 6)
    near([actual.double()], [torch.bmm(left.double().mT, right.double())], 1e-2)


@pytest.mark.parametrize("rows", [8, 6, 5])
def test_split_weight_gradient_of_the_lstm_matches_the_reference(rows, monkeypatch):
    pytest.importorskip("triton")
    from outlast.kernels.lstm import reference
    from outlast.kernels.lstm.triton import _d_weight

    monkeypatch.setattr(split_k, "FEWEST_ROWS", 2)
    steps, width, seeds = 3, 4, 2
    inputs = lstm_inputs(steps, rows, width, seeds)
    actual = reference.forward(*inputs)
    above = [draw(seeds, rows, steps, width, seed=7), draw(seeds, rows, width, seed=8)]
    d_gates, _, wanted, _, _ = reference.backward(*above, *inputs[2:], actual[0], *actual[2:])
    near([_d_weight(d_gates, inputs[3], actual[0])], [wanted], 1e-12)
