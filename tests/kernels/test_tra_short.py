"""The backward pass of short sequences against the float64 truth, and against the general form.

Without a GPU the kernels run in Triton's interpreter (see tests/conftest.py), with one on it.
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
# small tiles, so that short cases have many of them
FORMS = {
    "alone": ("alone", 128, 128),
    "in one": ("in_one", 128, 16),
}
SINGLE = {name: case for name, case in CASES.items() if case.heads == case.key_heads}


@pytest.fixture
def forms(monkeypatch):
    """The forms that were chosen, in order."""
    from outlast.kernels.tra import triton as fused

    chosen, choose = [], fused.short_form

    def spy(call):
        chosen.append(choose(call))
        return chosen[-1]

    monkeypatch.setattr(fused, "short_form", spy)
    return chosen


def forced(monkeypatch, name):
    """Make every call take one form, with the tiles of FORMS."""
    from outlast.kernels.tra import tables
    from outlast.kernels.tra import triton as fused

    form, queries, keys = FORMS[name]
    for arithmetic in ("half", "tf32"):
        some = (tables.Tiles(queries, keys, 4, 1),) * 5
        monkeypatch.setitem(tables._TABLE, (form, arithmetic), some)
    monkeypatch.setattr(fused, "short_form", lambda call: form)


@no_gpu
@pytest.mark.parametrize("case", SINGLE.values(), ids=SINGLE.keys())
@pytest.mark.parametrize("name", FORMS)
def test_every_form_matches_the_reference(name, case, tf32, monkeypatch):
    forced(monkeypatch, name)
    inputs = case.inputs(torch.float32)
    agree(case.run(inputs, "triton"), case.truth(inputs), 1e-5)


@no_gpu
@pytest.mark.parametrize("name", FORMS)
def test_every_form_matches_the_reference_with_several_wide_heads(name, tf32, monkeypatch):
    forced(monkeypatch, name)
    case = Case(40, 40, 72, batch=2, heads=2, key_heads=2)
    inputs = case.inputs(torch.float32)
    agree(case.run(inputs, "triton"), case.truth(inputs), 1e-5)


@no_gpu
@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_within_the_tolerance_after_an_early_stop(name, tf32, monkeypatch):
    forced(monkeypatch, name)
    case = Case(120, 120, signs=True, gate=math.log(0.2))
    inputs = case.inputs(torch.float32)
    found = case.run(inputs, "triton", normalised=True, tolerance=1e-6)
    wanted = case.truth(inputs)
    found[2] = wanted[2]
    agree(found, wanted, 2e-5)


LENGTHS = {
    1: "alone",
    2: "alone",
    63: "alone",
    64: "alone",
    65: "in_one",
    100: "in_one",
    128: "in_one",
    129: None,
    300: None,
    513: None,
}


@no_gpu
@pytest.mark.parametrize("length", LENGTHS)
def test_form_is_chosen_by_length(length, forms):
    case = Case(length, length)
    inputs = case.inputs(torch.float16)
    agree(case.run(inputs, "triton"), case.truth(inputs), 2e-3)
    assert forms == [LENGTHS[length]]


@no_gpu
@pytest.mark.parametrize("length", [50, 70])
def test_short_form_matches_the_general_one(length, tf32, monkeypatch):
    from outlast.kernels.tra import triton as fused

    case = Case(length, length, batch=2)
    inputs = case.inputs(torch.float32)
    found = case.run(inputs, "triton")
    monkeypatch.setattr(fused, "SHORT", 0)
    for one, two in zip(found, case.run(inputs, "triton"), strict=True):
        torch.testing.assert_close(one, two)


@no_gpu
@pytest.mark.parametrize("length", [40, 70, 130])
def test_short_form_needs_no_gradient_of_the_log_sum_exp(length):
    case = Case(length, length)
    leaves = [t.requires_grad_() for t in case.inputs(torch.float16)]
    found, wanted = (
        torch.autograd.grad(tra(*leaves, backend=name).float().sum(), leaves)
        for name in ("triton", "cpu")
    )
    for one, two in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-2, atol=1e-2)


def test_grouped_wide_and_exact_calls_have_no_short_form(tf32, forms):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for case in (Case(heads=4, key_heads=2), Case(20, 20, 256), Case(40, 40, 128)):
        case.run(case.inputs(torch.float32, device), "triton")
    torch.set_float32_matmul_precision("highest")
    Case().run(Case().inputs(torch.float32, device), "triton")
    assert forms == [None] * 4


# ---- on a GPU ------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("case", SINGLE.values(), ids=SINGLE.keys())
def test_on_a_gpu_short_sequences_match_the_reference(case):
    inputs = case.inputs(torch.bfloat16, "cuda")
    agree(case.run(inputs, "triton"), case.truth(inputs), 1e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("width", [24, 64, 128])
def test_on_a_gpu_every_length_matches_the_reference(width):
    for length in LENGTHS:
        case = Case(length, length, width, batch=2, heads=3, key_heads=3)
        inputs = case.inputs(torch.bfloat16, "cuda")
        agree(case.run(inputs, "triton"), case.truth(inputs), 1e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("width", [16, 64])
def test_on_a_gpu_tf32_matches_the_reference(width, tf32):
    for length in (1, 64, 65, 128, 200):
        case = Case(length, length, width, batch=2, heads=3, key_heads=3)
        inputs = case.inputs(torch.float32, "cuda")
        agree(case.run(inputs, "triton"), case.truth(inputs), 2e-3)


PLACED = {
    "after a cache": Case(50, 333, 64),
    "a place of its own": Case(100, 300, 64, told={"offset": 77}),
    "beyond the keys": Case(300, 100, 64, told={"offset": 50}),
    "before the keys": Case(300, 200, 64, told={"offset": -150}),
    "normalised": Case(300, 300, 64, signs=True, told={"normalised": True}),
    "few kept": Case(300, 300, 64, told={"threshold": 2.6}),
    "gate of minus infinity": Case(300, 300, 64, gate=-math.inf),
    "padding before": Case(
        300, 300, 64, batch=2, told={"lengths": torch.tensor([120, 299]), "padding": "left"}
    ),
    "padding after": Case(60, 60, 64, batch=2, told={"lengths": torch.tensor([20, 0])}),
}


@pytest.mark.gpu
@pytest.mark.parametrize("case", PLACED.values(), ids=PLACED.keys())
def test_on_a_gpu_any_place_of_the_queries_matches_the_reference(case):
    inputs = case.inputs(torch.bfloat16, "cuda")
    agree(case.run(inputs, "triton"), case.truth(inputs), 1e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("length", [64, 128, 500])
def test_on_a_gpu_two_backward_passes_agree_and_keep_the_same_keys(length):
    """Random scores, some at the threshold's very edge: weights of the backward pass sum to 1.

    They do only if its counts are those that the log-sum-exp was made with.
    """
    torch.manual_seed(0)
    q, k, v = (torch.randn(64, 16, length, 64, device="cuda") for _ in "qkv")
    q, k = (t * t.square().mean(-1, keepdim=True).rsqrt() for t in (q, k))
    gate = torch.nn.functional.logsigmoid(torch.randn(64, 16, length, device="cuda") + 3)
    leaves = [t.to(torch.bfloat16).requires_grad_() for t in (q, k, v)] + [gate.requires_grad_()]
    parts = tra(*leaves, normalised=True, return_parts=True)
    once, again = (
        torch.autograd.grad(parts.out.sum(), leaves, retain_graph=True) for _ in range(2)
    )
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))
    some = (parts.kept > 0).sum(2, keepdim=True).expand(-1, -1, 64).float()
    torch.testing.assert_close(once[2].float().sum(2), some, rtol=1e-2, atol=1)


class Strict:
    """A kernel that refuses arguments it has not named; compiled ones do, interpreted ones not."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        def launch(*given, **options):
            known = {*self.kernel.arg_names, "num_warps", "num_stages", "maxnreg"}
            assert set(options) <= known, set(options) - known
            return self.kernel[grid](*given, **options)

        return launch


@no_gpu
@pytest.mark.parametrize("length", [20, 100, 200, 600])
def test_every_launch_names_arguments_of_its_kernel(length, monkeypatch, tf32):
    from outlast.kernels.tra import triton as fused

    for name in ("attend", "of_queries", "of_keys", "in_one"):
        monkeypatch.setattr(fused, name, Strict(getattr(fused, name)))
    case = Case(length, length, 16, batch=1, heads=1, key_heads=1)
    case.run(case.inputs(torch.float16), "triton")
