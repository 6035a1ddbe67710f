"""The fused LSTM against the float64 reference, gradients included.

Without a GPU the kernel runs in Triton's interpreter (see tests/conftest.py), with one on it.
"""

import pytest
import torch
from kernel_cases import draw, lstm_inputs, same

from outlast.kernels.lstm import lstm, reference

pytest.importorskip("triton")
# the interpreter's own
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

# seeds, steps, rows, width: rows that fill no block of 16, widths that are no power of two or
# less than a block, widths of several chunks of 32
SHAPES = [(1, 1, 1, 16), (2, 3, 5, 20), (1, 2, 17, 32), (3, 2, 16, 8), (2, 2, 3, 72)]
shapes = pytest.mark.parametrize("shape", SHAPES, ids=["x".join(map(str, s)) for s in SHAPES])


def in_a_table(weight: torch.Tensor, beside: int = 13) -> torch.Tensor:
    """The same numbers as a view of a wider table, as a stack of seeds holds them."""
    table = weight.new_full((weight.shape[0], beside + weight[0].numel() + beside), torch.nan)
    view = table[:, beside:-beside].unflatten(1, weight.shape[1:])
    view.copy_(weight)
    assert not view.is_contiguous() or len(weight) == 1
    return view


def compare(shape, device, table=True):
    from outlast.kernels.lstm import triton as fused

    seeds, steps, rows, width = shape
    exact = lstm_inputs(steps, rows, width, seeds)
    projected, weight, h0, c0 = (a.to(device, torch.float32) for a in exact)
    weight = in_a_table(weight) if table else weight.mT.contiguous().mT
    wanted = reference.forward(*exact)
    found = fused.forward(projected, weight, h0, c0)
    same([f.cpu() for f in found], wanted, 2e-6)

    above = [draw(seeds, steps, rows, width, seed=s) for s in (7, 8)]
    wanted = reference.backward(*above, *exact[1:], *wanted)
    above = [a.to(device, torch.float32) for a in above]
    found = fused.backward(*above, weight, h0, c0, *found)
    same([f.cpu() for f in found], wanted, 2e-5)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the test on the GPU does this")
@shapes
def test_in_the_interpreter_it_is_the_reference(shape):
    compare(shape, "cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="the test on the GPU does this")
def test_weights_that_lie_another_way_are_put_in_order():
    compare((2, 2, 3, 16), "cpu", table=False)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "shape", [*SHAPES, (4, 50, 128, 128), (2, 20, 33, 256), (1, 30, 40, 200)], ids=str
)
def test_on_a_gpu_it_is_the_reference(shape):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        compare(shape, "cuda")
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.gpu
def test_on_a_gpu_the_op_takes_the_fused_path_where_it_can():
    from outlast.kernels.lstm import triton as fused
    from outlast.kernels.lstm.op import back_end

    def chosen(width, dtype):
        projected, weight, *_ = (a.to("cuda", dtype) for a in lstm_inputs(1, 1, width, 1))
        return back_end(projected, weight)

    assert chosen(128, torch.float32) is fused
    assert chosen(512, torch.float32) is reference
    assert chosen(128, torch.float64) is reference


@pytest.mark.gpu
def test_on_a_gpu_the_op_is_the_same_as_on_the_cpu():
    exact = [a.requires_grad_() for a in lstm_inputs(9, 21, 24)]
    on_gpu = [a.detach().to("cuda", torch.float32).requires_grad_() for a in exact]
    wanted, found = lstm(*exact), lstm(*on_gpu)
    same([f.cpu() for f in found], wanted, 1e-5)
    wanted = torch.autograd.grad(sum(w.sum() for w in wanted), exact)
    found = torch.autograd.grad(sum(f.sum() for f in found), on_gpu)
    same([f.cpu() for f in found], wanted, 1e-4)


def test_it_is_not_taken_on_the_cpu_nor_for_float64():
    from outlast.kernels.lstm import triton as fused
    from outlast.kernels.lstm.op import back_end

    projected, weight, *_ = lstm_inputs(1, 1, 16, 1)
    assert not fused.fits(projected, weight)
    assert back_end(projected.float(), weight.float()) is reference
