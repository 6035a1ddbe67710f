"""The fused kernels against the float64 truth, gradients included.

Without a GPU they run in Triton's interpreter (see tests/conftest.py), with one on it. Short
sequences have a backward pass of their own, see test_tra_short; here they take the general one.
"""

import math

import pytest
import torch

import outlast
from tra_cases import CASES, Case, agree

pytest.importorskip("triton")
pytestmark = [
    # the interpreter's own, and NumPy's about the infinities it computes and drops
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="the tests on the GPU do this")
tra = outlast.threshold_relative_attention


@pytest.fixture(autouse=True)
def _in_the_general_form(monkeypatch):
    from outlast.kernels.tra import triton as fused

    monkeypatch.setattr(fused, "SHORT", 0)


@no_gpu
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_kernel_matches_the_reference(case):
    inputs = case.inputs(torch.float32)
    agree(case.run(inputs, "triton"), case.truth(inputs), 1e-5)


@no_gpu
@pytest.mark.parametrize("queries", [1, 3])
def test_row_without_padding_continues_past_its_keys(queries):
    inputs, told = Case(queries, 70, batch=2).inputs(torch.float32), {"offset": 75}
    lengths, learns = torch.tensor([70, 40]), [t.requires_grad_() for t in inputs]
    for padding in ("left", "right"):
        told |= {"lengths": lengths, "padding": padding}
        found, wanted = (tra(*learns, backend=b, **told) for b in ("triton", "reference"))
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
        assert wanted[0].any()
        slopes = [torch.autograd.grad(y.square().sum(), learns) for y in (found, wanted)]
        for one, two in zip(*slopes, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


HALF = ("plain", "tile + 1", "normalised", "gate of minus infinity", "padding before")


@no_gpu
@pytest.mark.parametrize("name", HALF)
def test_kernel_matches_the_reference_in_half_precision(name):
    case = CASES[name]
    inputs = case.inputs(torch.float16)
    agree(case.run(inputs, "triton"), case.truth(inputs), 2e-3)


WIDER = ("plain", "tile + 1", "few kept, looked for", "padding before", "grouped heads")
PLACED = ("after a cache", "a place of its own", "beyond the keys", "before the keys", "all kept")


@no_gpu
@pytest.mark.parametrize("name", [*WIDER, *PLACED])
def test_blocks_of_keys_wider_than_the_notes_match_the_reference(name, tf32):
    case = CASES[name]
    inputs = case.inputs(torch.float32)
    agree(case.run(inputs, "triton"), case.truth(inputs), 1e-5)


@no_gpu
def test_early_stop_stays_within_the_tolerance():
    stopped(torch.float32, "cpu", 2e-5, 300)


@no_gpu
def test_early_stop_with_wider_blocks_of_keys_stays_within_the_tolerance(tf32):
    stopped(torch.float32, "cpu", 2e-5, 600)


@no_gpu
def test_few_heads_at_a_time_have_the_bits_of_all(monkeypatch):
    from outlast.kernels.tra import triton as fused

    case = Case(40, 40, batch=3, heads=2, key_heads=1)
    inputs = case.inputs(torch.float32)
    wanted = case.run(inputs, "triton")
    monkeypatch.setattr(fused, "NOTES", 2 * 2 * 64 * 2 * 4)  # two of the three key heads
    found = case.run(inputs, "triton")
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@no_gpu
@pytest.mark.parametrize("told", [{}, {"threshold": 2.6}, {"offset": 1100}], ids=str)
def test_cache_split_over_programs_matches_the_reference(told):
    decoded(told, 1300, torch.float32, "cpu", 2e-6)


def stopped(dtype, device, tolerance, length):
    """A strong gate: rows are read only in part, and the result is right within the tolerance."""
    case = Case(length, length, signs=True, gate=math.log(0.2))
    inputs = case.inputs(dtype, device)
    found = case.run(inputs, "triton", normalised=True, tolerance=1e-6)
    wanted = case.truth(inputs)
    read = found[2].cpu()
    assert (read <= wanted[2]).all()
    assert read[..., -1].item() < 0.6 * wanted[2][..., -1].item()
    found[2] = wanted[2].to(device)
    agree(found, wanted, tolerance)


def decoded(told, keys, dtype, device, tolerance):
    """One query, without gradients, so that the keys are split."""
    case = Case(1, keys, batch=2, heads=4, key_heads=2, gate=-0.01, told=told)
    inputs = case.inputs(dtype, device)
    with torch.no_grad():
        found = tra(*inputs, **told, backend="triton", return_parts=True)
    wanted = case.truth(inputs)[:3]
    assert torch.equal(found.kept.cpu(), wanted[2])
    for one, two in ((found.out, wanted[0]), (found.lse, wanted[1])):
        one, two = one.cpu().double(), two.detach()
        assert torch.equal(one == -math.inf, two == -math.inf)
        one, two = (t.nan_to_num(neginf=0.0) for t in (one, two))
        assert (one - two).norm() <= tolerance * two.norm().clamp(min=1e-3)


# ---- on a GPU ------------------------------------------------------------------------------------

TOLERANCES = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-4}
types = pytest.mark.parametrize("dtype", TOLERANCES, ids=lambda d: str(d).removeprefix("torch."))
WIDE = {
    "4,097": Case(4097, 4097, 64, signs=True, told={"normalised": True}),
    "width 128": Case(300, 300, 128, heads=2),
    "width 256": Case(200, 200, 256),
    "width 72": Case(130, 130, 72),
    "grouped": Case(200, 200, 64, batch=2, heads=4, key_heads=2, signs=True),
    "padded": Case(
        200,
        200,
        64,
        batch=2,
        signs=True,
        told={"lengths": torch.tensor([77, 200]), "padding": "left"},
    ),
    "after a cache": Case(70, 333, 64, heads=2),
    "sparse": Case(300, 300, 64, told={"threshold": 2.6, "sparse": True}),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*CASES, *WIDE])
def test_on_a_gpu_the_kernel_matches_the_reference(name):
    on_a_gpu(name, torch.bfloat16, 1e-2)


# every case is another kernel to compile: a few stand for the other types
FEW = ("plain", "tile + 1", "gate of minus infinity", "normalised", "4,097", "width 128")


@pytest.mark.gpu
@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("arithmetic", ["float16", "exact", "tf32"])
def test_on_a_gpu_other_dtypes_match_the_reference(name, arithmetic):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if arithmetic == "tf32" else "highest")
    try:
        if arithmetic == "float16":
            on_a_gpu(name, torch.float16, 2e-3)
        else:
            on_a_gpu(name, torch.float32, 1e-4 if arithmetic == "exact" else 2e-3)
    finally:
        torch.set_float32_matmul_precision(before)


def on_a_gpu(name, dtype, tolerance):
    case = (CASES | WIDE)[name]
    inputs = case.inputs(dtype, "cuda")
    agree(case.run(inputs, "triton"), case.truth(inputs), tolerance)


@pytest.mark.gpu
@types
def test_on_a_gpu_early_stop_and_decoding_match_the_reference(dtype):
    stopped(dtype, "cuda", TOLERANCES[dtype], 1000)
    for told in ({}, {"threshold": 2.6}, {"offset": 3000}):
        decoded(told, 5000, dtype, "cuda", TOLERANCES[dtype])


@pytest.mark.gpu
def test_on_a_gpu_the_kernel_is_the_default_and_two_runs_have_the_same_bits():
    case = Case(1000, 1000, 64, batch=2, heads=4, signs=True, told={"normalised": True})
    inputs = case.inputs(torch.bfloat16, "cuda")
    first, second = (case.run(inputs, name) for name in (None, "triton"))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.gpu
def test_on_a_gpu_random_inputs_with_any_strides_match_the_reference():
    torch.manual_seed(0)
    shape = (2, 500, 3, 64)  # length before heads, as a projection leaves them
    q, k, v = (torch.randn(shape, device="cuda").to(torch.bfloat16).transpose(1, 2) for _ in "qkv")
    gate = torch.nn.functional.logsigmoid(torch.randn(2, 3, 500, device="cuda"))
    case = Case()
    found, wanted = case.run([q, k, v, gate], "triton"), case.truth([q, k, v, gate])
    # a random score may lie within rounding of the threshold: few counts may differ
    assert (found[2].cpu() != wanted[2]).float().mean() < 1e-3
    found[2] = wanted[2].cuda()
    agree(found, wanted, 1e-2)


@pytest.mark.gpu
def test_on_a_gpu_the_passes_keep_the_same_keys():
    """Random scores, some at the threshold's very edge: in every pass a row's weights sum to 1.

    They do in the backward pass only if its counts are those that the log-sum-exp was made with.
    """
    q, k, v, gate = (t.requires_grad_() for t in random_inputs(2048, 64))
    out = tra(q, k, torch.ones_like(v), gate, normalised=True)
    kept = tra(q, k, v, gate, normalised=True, return_parts=True).kept > 0
    torch.testing.assert_close(out[kept], torch.ones_like(out[kept]), atol=1e-2, rtol=0)
    (dv,) = torch.autograd.grad(tra(q, k, v, gate, normalised=True).sum(), v)
    # every row with a kept key gives one unit of weight in all
    torch.testing.assert_close(
        dv.float().sum(2), kept.sum(2, keepdim=True).expand(-1, -1, 64).float(), rtol=1e-3, atol=1
    )


def random_inputs(length, width, heads=2):
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, heads, length, width, device="cuda") for _ in "qkv")
    q, k = (t * t.square().mean(-1, keepdim=True).rsqrt() for t in (q, k))
    gate = torch.nn.functional.logsigmoid(torch.randn(1, heads, length, device="cuda") + 3)
    return [*(t.to(torch.bfloat16) for t in (q, k, v)), gate]


def with_gradients(attend, inputs):
    out = attend(*inputs)
    return [out, *torch.autograd.grad(out.float().sum(), inputs)]


def recorded(inputs):
    """What the replay of a CUDA graph writes.

    The backward pass hands a leaf's gradient over on the stream where the leaf was first used, and
    a capture cannot make the default stream wait for it. So the graph has leaves of its own, made
    and first used on the stream of its capture.
    """
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        leaves = [t.detach().clone().requires_grad_() for t in inputs]
        for _ in range(2):
            with_gradients(tra, leaves)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=aside):
        found = with_gradients(tra, leaves)
    for tensor in found:
        tensor.detach().zero_()
    graph.replay()
    torch.cuda.synchronize()
    return found


@pytest.mark.gpu
@pytest.mark.parametrize("way", ["aot_eager", "inductor", "graph"])
def test_on_a_gpu_compiled_and_captured_calls_have_the_same_bits(way):
    inputs = [t.requires_grad_() for t in random_inputs(300, 64)]
    wanted = with_gradients(tra, inputs)
    if way == "graph":
        found = recorded(inputs)
    else:
        found = with_gradients(torch.compile(tra, fullgraph=True, backend=way), inputs)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
