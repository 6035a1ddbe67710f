"""What is particular to the op of TRA: blocks of torch, merging of parts, compiling."""

import functools
import itertools
import math

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import outlast
from outlast.kernels.tra import Parts, cpu, merge
from outlast.kernels.tra.op import back_end
from tra_cases import CASES, Case, agree

pytestmark = pytest.mark.filterwarnings("error:::outlast")

tra = outlast.threshold_relative_attention
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


@cases
def test_blocks_match_the_reference_with_gradients(case):
    inputs = [t.double() for t in case.inputs(torch.float64)]
    agree(case.run(inputs, "cpu"), case.truth(inputs), 1e-9)


@cases
def test_blocks_match_the_reference_in_lower_precision(case):
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 1e-2)):
        inputs = case.inputs(dtype)
        agree(case.run(inputs, "cpu"), case.truth(inputs), tolerance)


def test_case_of_one_kept_key_keeps_one():
    case = CASES["one kept"]
    kept = tra(*case.inputs(torch.float32), return_parts=True).kept
    assert (kept == 1).all()


def test_many_blocks_of_queries_match_one(monkeypatch):
    case = Case(300, 300, heads=3)
    inputs = case.inputs(torch.float32)
    monkeypatch.setattr(cpu, "AT_ONCE", 5000)
    agree(case.run(inputs, "cpu"), case.truth(inputs), 1e-5)


def test_blocks_match_the_reference_with_4097_keys():
    case = Case(130, 4097, heads=2, key_heads=1, gate=-0.001)
    inputs = case.inputs(torch.float32)
    agree(case.run(inputs, "cpu"), case.truth(inputs), 1e-4)


def test_two_runs_have_the_same_bits():
    case = Case(65, 65)
    inputs = case.inputs(torch.float32)
    first, second = (case.run(inputs, "cpu") for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_default_back_end_on_the_cpu_is_blocks():
    q, *_ = Case().inputs(torch.float32)
    assert back_end(q) is cpu


def test_gradients_match_small_steps():
    inputs = [t.double().requires_grad_() for t in Case(6, 8, heads=2).inputs(torch.float64)]
    # between the scores of the grid, so that no small change moves a key across it
    assert torch.autograd.gradcheck(functools.partial(tra, threshold=0.001), inputs)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_unused_result_counts_as_a_gradient_of_zeros(backend):
    leaves = [t.requires_grad_() for t in Case(6, 8, heads=2).inputs(torch.float32)]
    parts = tra(*leaves, backend=backend, return_parts=True)
    out, lse = parts.out.sum(), parts.lse.masked_fill(parts.kept == 0, 0.0).sum()
    for one, other in ((out, lse), (lse, out)):
        found, wanted = (
            torch.autograd.grad(asked, leaves, retain_graph=True)
            for asked in (one, one + 0 * other)
        )
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b)


def test_compiles_as_one_graph_and_can_be_checkpointed():
    inputs = [t.requires_grad_() for t in Case(9, 12, heads=2).inputs(torch.float32)]
    wanted = tra(*inputs)
    compiled = torch.compile(tra, fullgraph=True, backend="aot_eager")(*inputs)
    again = checkpoint(tra, *inputs, use_reentrant=False)
    for found in (compiled, again):
        torch.testing.assert_close(found, wanted)
        for one, two in zip(
            torch.autograd.grad(found.sum(), inputs),
            torch.autograd.grad(wanted.sum(), inputs, retain_graph=True),
            strict=True,
        ):
            torch.testing.assert_close(one, two)


def test_autocast_lowers_all_but_the_gate():
    inputs = [t.requires_grad_() for t in Case(9, 9).inputs(torch.float32)]
    with torch.autocast("cpu", torch.bfloat16):
        parts = tra(*inputs, return_parts=True)
    assert parts.out.dtype == torch.bfloat16
    assert parts.lse.dtype == torch.float32
    gradients = torch.autograd.grad(parts.out.float().sum(), inputs)
    assert {g.dtype for g in gradients} == {torch.float32}
    lower = [*(t.to(torch.bfloat16) for t in inputs[:3]), inputs[3]]
    assert torch.equal(parts.out, tra(*lower))


# ---- parts and their merging ---------------------------------------------------------------------


def parts_of(inputs, cuts, **told):
    """The results over ranges of keys, left to right."""
    q, k, v, gate = inputs
    offset = k.shape[2] - q.shape[2]
    return [
        tra(q, k[:, :, a:b], v[:, :, a:b], gate, offset=offset - a, return_parts=True, **told)
        for a, b in itertools.pairwise(cuts)
    ]


@pytest.mark.parametrize("gate", [None, 0.0, -math.inf])
@pytest.mark.parametrize("threshold", [0.0, 2.6])
def test_parts_merge_to_the_whole_in_any_order(gate, threshold):
    inputs = [
        t.double() for t in Case(11, 40, heads=2, key_heads=1, gate=gate).inputs(torch.float64)
    ]
    told = {"threshold": threshold}
    whole = tra(*inputs, return_parts=True, **told)
    one, two, three = parts_of(inputs, (0, 13, 29, 40), **told)
    join = functools.partial(merge, gate=inputs[3])
    for found in (join(join(one, two), three), join(one, join(two, three))):
        for a, b in zip(found, whole, strict=True):
            torch.testing.assert_close(a, b)
    leaves = [t.requires_grad_() for t in inputs]
    wanted = slopes(tra(*leaves, return_parts=True, **told), leaves)
    one, two, three = parts_of(leaves, (0, 13, 29, 40), **told)
    join = functools.partial(merge, gate=leaves[3])
    for found in (join(join(one, two), three), join(one, join(two, three))):
        for a, b in zip(slopes(found, leaves), wanted, strict=True):
            torch.testing.assert_close(a, b)


def slopes(parts, leaves):
    """Gradients of all that a part has to be differentiated, empty rows left as they are."""
    ramp = torch.arange(parts.out.numel(), dtype=torch.float64).sin().view(parts.out.shape)
    total = (parts.out * ramp).sum() + (parts.lse.exp() * ramp[..., 0]).sum()
    return torch.autograd.grad(total, leaves, retain_graph=True)


def test_merging_an_empty_part_changes_nothing():
    inputs = Case(5, 5).inputs(torch.float64)
    part = tra(*inputs, return_parts=True)
    nothing = Parts(
        torch.zeros_like(part.out),
        torch.full_like(part.lse, -math.inf),
        torch.zeros_like(part.kept),
    )
    for found in (merge(nothing, part, inputs[3]), merge(part, nothing, inputs[3])):
        for a, b in zip(found, part, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_row_without_padding_continues_past_its_keys(backend, padding):
    inputs, told = Case(3, 8, batch=2).inputs(torch.float64), {"offset": 9, "backend": backend}
    whole = tra(*inputs, **told)
    assert whole.any()
    assert torch.equal(tra(*inputs, lengths=torch.tensor([8, 8]), padding=padding, **told), whole)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_parts_of_rows_padded_on_the_left_merge_to_the_whole(backend):
    q, k, v, gate = inputs = Case(1, 37, batch=3).inputs(torch.float64)
    lengths, told = torch.tensor([5, 37, 20]), {"padding": "left", "backend": backend}
    whole = tra(*inputs, lengths=lengths, return_parts=True, **told)
    parts = [
        tra(
            q,
            k[:, :, a:b],
            v[:, :, a:b],
            gate,
            lengths=(lengths - (37 - b)).clamp(0, b - a),
            offset=36 - a,
            return_parts=True,
            **told,
        )
        for a, b in ((0, 20), (20, 37))
    ]
    for one, two in zip(merge(*parts, gate), whole, strict=True):
        torch.testing.assert_close(one, two)


def test_meta_tensors_give_shapes():
    inputs = [t.to("meta") for t in Case(4, 6, batch=2, heads=2).inputs(torch.float32)]
    out = tra(*inputs)
    assert out.is_meta
    assert out.shape == inputs[0].shape


def test_one_compiled_graph_serves_any_number_and_length():
    compiled = torch.compile(tra, fullgraph=True, backend="aot_eager", dynamic=True)
    for keys, threshold, scale in [(9, 0.0, None), (14, 0.3, 0.2), (21, -0.5, 0.7)]:
        inputs = Case(keys, keys).inputs(torch.float32)
        numbers = {"threshold": threshold, "scale": scale}
        torch.testing.assert_close(compiled(*inputs, **numbers), tra(*inputs, **numbers))
