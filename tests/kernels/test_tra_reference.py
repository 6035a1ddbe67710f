"""Threshold Relative Attention by hand, and against attention that torch knows."""

import math

import pytest
import torch
import torch.nn.functional as F

from outlast.kernels.tra import reference
from outlast.kernels.tra.setting import Setting
from tra_cases import CASES, Case, agree

pytestmark = pytest.mark.filterwarnings("error")


def test_worked_example_of_the_docstring():
    scores = torch.tensor([2.0, -1, 3, -2, 1], dtype=torch.float64)
    q = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    k = scores.view(1, 1, 5, 1)
    v = torch.eye(5, dtype=torch.float64).view(1, 1, 5, 5)
    gate = torch.full((1, 1, 1), -1.0, dtype=torch.float64)
    weights, lse, kept = reference.attend(q, k, v, gate, None, None, Setting(0.0, 1.0, 4))
    wanted = torch.tensor([-1.0, 1, 0], dtype=torch.float64)  # 2 + 3g, 3 + 2g, 1 + g at g = -1
    torch.testing.assert_close(weights[0, 0, 0, [0, 2, 4]], wanted.softmax(0))
    assert weights[0, 0, 0, [1, 3]].tolist() == [0, 0]
    assert kept.item() == 3
    torch.testing.assert_close(lse.squeeze(), (wanted + 1).logsumexp(0))  # distance from 0
    assert [round(w, 3) for w in wanted.softmax(0).tolist()] == [0.090, 0.665, 0.245]


def test_all_kept_and_a_constant_gate_is_alibi():
    q, k, v, gate = Case(20, 20, gate=-0.3).inputs(torch.float64)
    distance = torch.arange(20)[:, None] - torch.arange(20)
    bias = (-0.3 * distance).double().masked_fill(distance < 0, -math.inf)
    wanted = F.scaled_dot_product_attention(q, k, v, attn_mask=bias[None, None])
    how = Setting(-math.inf, 0.25, 0)
    torch.testing.assert_close(reference.attend(q, k, v, gate, None, None, how)[0], wanted)


def test_all_kept_and_gate_0_is_plain_attention():
    q, k, v, gate = Case(20, 20, gate=0.0).inputs(torch.float64)
    wanted = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    how = Setting(-math.inf, 0.25, 0)
    torch.testing.assert_close(reference.attend(q, k, v, gate, None, None, how)[0], wanted)


def test_a_gate_of_minus_infinity_takes_the_nearest_kept_key():
    case = Case(30, 30, gate=-math.inf)
    q, k, v, _ = inputs = case.inputs(torch.float64)
    out = case.run(inputs, "reference")[0]
    for row, scores in enumerate((q @ k.mT)[0, 0]):
        kept = [j for j in range(row + 1) if scores[j] > 0]
        wanted = v[0, 0, kept[-1]] if kept else torch.zeros_like(v[0, 0, 0])
        torch.testing.assert_close(out[0, 0, row], wanted)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_backward_matches_torchs_own_gradients(case):
    inputs = [t.double() for t in case.inputs(torch.float64)]
    agree(case.run(inputs, "reference"), case.truth(inputs), 1e-9)
