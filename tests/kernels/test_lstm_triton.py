"""The fused LSTM against the float64 reference, gradients included.

Without a GPU the kernel runs in Triton's interpreter (see tests/conftest.py), with one on it.
"""

import re

import pytest
import torch

from kernel_cases import beside_others, draw, lstm_inputs, near, same
from outlast.kernels.lstm import lstm, op, reference

pytest.importorskip("triton")
# the interpreter's own
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

# seeds, steps, rows, width: rows that fill no block of 16, widths that are no power of two or
# less than a block, widths of several chunks of 32
SHAPES = [(1, 1, 1, 16), (2, 3, 5, 20), (1, 2, 17, 32), (3, 2, 16, 8), (2, 2, 3, 72)]
shapes = pytest.mark.parametrize("shape", SHAPES, ids=["x".join(map(str, s)) for s in SHAPES])
# matmuls in float32, and in tf32
PRECISIONS = {"highest": 1e-5, "high": 4e-3}


def compare(shape, device, precision, table=True, dtype=torch.float32):
    from outlast.kernels.lstm import triton as fused

    seeds, steps, rows, width = shape
    exact = lstm_inputs(steps, rows, width, seeds)
    exact[0] = exact[0].to(dtype).double()
    projected, bias, weight, h0, c0 = (a.to(device, torch.float32) for a in exact)
    projected = projected.to(dtype)
    weight = beside_others(weight) if table else weight.mT.contiguous().mT
    bias = beside_others(bias) if table else bias
    wanted = reference.forward(*exact)
    actual = fused.forward(projected, bias, weight, h0, c0)
    tolerance = PRECISIONS[precision] if dtype == torch.float32 else 1e-2
    near(actual, wanted, tolerance)
    hidden, last, cell, gates = actual
    assert hidden.dtype == dtype
    assert last.dtype == cell.dtype == torch.float32
    assert gates.dtype == reference.kept(dtype)
    # the state is not what is rounded
    near([last, cell], [wanted[1], wanted[2]], PRECISIONS[precision])

    # some rows have gradients far below the range of float16
    above = [draw(seeds, rows, steps, width, seed=7), draw(seeds, rows, width, seed=8)]
    tiny = torch.where(torch.arange(rows) % 3 == 1, 1e-9, 1.0).double()
    above = [above[0] * tiny[:, None, None], above[1] * tiny[:, None]]
    above[0] = above[0].to(dtype).double()
    hidden, _, *kept = wanted
    wanted = reference.backward(*above, *exact[2:], hidden, *kept)
    above = [a.to(device, torch.float32) for a in above]
    hidden, _, *kept = actual
    actual = fused.backward(above[0].to(dtype), above[1], weight, h0, c0, hidden, *kept)
    assert [f.dtype for f in actual] == [dtype, *[torch.float32] * 4]
    near(actual, wanted, tolerance)
    if rows > 1:
        near([f[:, 1] for f in actual if f.ndim == 4], [wanted[0][:, 1]], tolerance)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the test on the GPU does this")
@pytest.mark.parametrize("precision", PRECISIONS, indirect=True)
@shapes
def test_kernel_matches_the_reference(shape, precision):
    compare(shape, "cpu", precision)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the test on the GPU does this")
@pytest.mark.parametrize("precision", ["high"], indirect=True)
@shapes
def test_kernel_matches_the_reference_with_bfloat16_in_memory(shape, precision):
    compare(shape, "cpu", precision, dtype=torch.bfloat16)


def compare_forms(device):
    """A backward pass of bfloat16 is the same whatever precision torch is asked for meanwhile."""
    from outlast.kernels.lstm import triton as fused

    projected, *others = (a.to(device, torch.float32) for a in lstm_inputs(3, 5, 20, 2))
    hidden, _, cell, gates = fused.forward(projected.bfloat16(), *others)
    above = [draw(2, 5, 3, 20, seed=7).to(hidden), draw(2, 5, 20, seed=8).to(cell)]
    actual = []
    for name in ("high", "highest"):
        torch.set_float32_matmul_precision(name)
        actual.append(op._lstm_backward(*above, *others[1:], hidden, cell, gates))
    for one, other in zip(*actual, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the test on the GPU does this")
@pytest.mark.parametrize("precision", ["high"], indirect=True)
def test_backward_takes_the_kernel_of_the_forward_pass(precision):
    compare_forms("cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["high"], indirect=True)
def test_on_a_gpu_backward_takes_the_kernel_of_the_forward_pass(precision):
    compare_forms("cuda")


@pytest.mark.skipif(torch.cuda.is_available(), reason="the test on the GPU does this")
def test_transposed_weights_are_read_correctly():
    compare((2, 2, 3, 16), "cpu", "highest", table=False)


def test_kernel_is_chosen_by_width_and_precision():
    from outlast.kernels.lstm import resident, streamed
    from outlast.kernels.lstm.triton import kernel

    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        assert kernel(128)[0] is resident
        assert kernel(129)[0] is streamed
        torch.set_float32_matmul_precision("highest")
        assert kernel(64)[0] is streamed
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", PRECISIONS, indirect=True)
@pytest.mark.parametrize(
    "shape",
    [*SHAPES, (4, 50, 128, 128), (2, 20, 33, 256), (1, 30, 40, 200), (40, 9, 50, 64)],
    ids=str,
)
def test_on_a_gpu_the_kernel_matches_the_reference(shape, precision):
    compare(shape, "cuda", precision)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["high"], indirect=True)
@pytest.mark.parametrize("shape", [*SHAPES, (4, 59, 128, 128), (40, 9, 50, 64)], ids=str)
def test_on_a_gpu_the_kernel_matches_the_reference_with_bfloat16_in_memory(shape, precision):
    compare(shape, "cuda", precision, dtype=torch.bfloat16)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["high"], indirect=True)
def test_on_a_gpu_bfloat16_inputs_stay_bfloat16_and_gradients_match(precision):
    exact = [a.requires_grad_() for a in lstm_inputs(30, 21, 24)]
    on_gpu = [a.detach().to("cuda", torch.float32).requires_grad_() for a in exact]
    actual = lstm(on_gpu[0].to(torch.bfloat16), *on_gpu[1:])
    assert [f.dtype for f in actual] == [torch.bfloat16, torch.float32, torch.float32]
    wanted = lstm(*exact)
    near(actual, wanted, 1e-2)
    wanted = torch.autograd.grad(sum(w.sum() for w in wanted), exact)
    near(torch.autograd.grad(sum(f.sum() for f in actual), on_gpu), wanted, 1e-2)


@pytest.mark.gpu
def test_on_a_gpu_the_kernel_is_taken_by_width_and_dtype():
    from outlast.kernels.lstm import triton as fused
    from outlast.kernels.lstm.op import back_end

    def chosen(width, dtype):
        projected, _, weight, *_ = (a.to("cuda", dtype) for a in lstm_inputs(1, 1, width, 1))
        return back_end(projected, weight)

    assert chosen(128, torch.float32) is fused
    assert chosen(512, torch.float32) is reference
    assert chosen(128, torch.float64) is reference
    assert chosen(256, torch.bfloat16) is reference


@pytest.mark.gpu
def test_on_a_gpu_the_op_matches_the_cpu():
    exact = [a.requires_grad_() for a in lstm_inputs(9, 21, 24)]
    on_gpu = [a.detach().to("cuda", torch.float32).requires_grad_() for a in exact]
    wanted, actual = lstm(*exact), lstm(*on_gpu)
    same([f.cpu() for f in actual], wanted, 1e-5)
    wanted = torch.autograd.grad(sum(w.sum() for w in wanted), exact)
    actual = torch.autograd.grad(sum(f.sum() for f in actual), on_gpu)
    same([f.cpu() for f in actual], wanted, 1e-4)


def test_kernel_is_not_taken_on_the_cpu_nor_for_float64():
    from outlast.kernels.lstm import triton as fused
    from outlast.kernels.lstm.op import back_end

    projected, _, weight, *_ = lstm_inputs(1, 1, 16, 1)
    assert not fused.fits(projected, weight)
    assert back_end(projected.float(), weight.float()) is reference


# ---- where it cannot be taken on a GPU, or not at its best, that is said once --------------------


class OnGpu(torch.Tensor):
    """A tensor that says it lies on a GPU."""

    is_cuda = True


@pytest.mark.parametrize(
    ("width", "triton", "says"),
    [
        (264, True, "width 264 in float32 .*: the fused kernel wants widths up to 256, in float32"),
        (
            24,
            False,
            "width 24 in float32 .*: the fused kernel wants Triton, which is not installed",
        ),
    ],
)
def test_slow_lstm_on_a_gpu_is_logged_once(monkeypatch, caplog, width, triton, says):
    monkeypatch.setattr(op, "has_triton", lambda: triton)
    op._log_form.cache_clear()
    inputs = [a.float() for a in lstm_inputs(2, 1, width, 1)]
    for _ in range(2):
        op._lstm(inputs[0].as_subclass(OnGpu), *inputs[1:])
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert re.search(says, record.getMessage())


@pytest.mark.parametrize("precision", PRECISIONS, indirect=True)
@pytest.mark.parametrize("width", [16, 128, 129, 256, 257])
def test_form_of_each_width_is_logged_once(monkeypatch, caplog, width, precision):
    from outlast.kernels.lstm import triton as fused

    op._log_form.cache_clear()
    caplog.set_level("INFO", op.__name__)
    projected, _, weight, *_ = inputs = [a.float() for a in lstm_inputs(1, 1, width, 1)]
    monkeypatch.setattr(fused, "forward", reference.forward)  # it is the choice that is looked at
    projected = inputs[0] = projected.as_subclass(OnGpu)
    for _ in range(2):
        op._lstm(*inputs)
    on_chip = width <= 128 and precision == "high"
    wanted = "on chip" if on_chip else "streamed" if width <= 256 else "step by step"
    assert op.form(projected, weight) == wanted
    messages = [(r.levelname, r.args[0]) for r in caplog.records]
    level = {"on chip": [], "streamed": ["INFO"], "step by step": ["WARNING"]}[wanted]
    assert messages == [(name, width) for name in level]
    if wanted == "streamed":
        assert "reads its weights at every step" in caplog.text


def test_nothing_is_logged_on_the_cpu(caplog):
    op._log_form.cache_clear()
    caplog.set_level("INFO", op.__name__)
    op._lstm(*lstm_inputs(2, 1, 264, 1))
    assert not caplog.records


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["high"], indirect=True)
def test_on_a_gpu_only_a_slow_lstm_is_logged(caplog, precision):
    op._log_form.cache_clear()
    caplog.set_level("INFO", op.__name__)
    for width in (128, 256, 256, 264, 264):
        inputs = (a.to("cuda", torch.float32) for a in lstm_inputs(2, 1, width))
        lstm(*inputs)
    assert [(r.levelname, r.args[0]) for r in caplog.records] == [("INFO", 256), ("WARNING", 264)]
