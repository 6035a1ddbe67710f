"""What every op of `outlast.kernels` must hold to; `op_cases.py` is the table of them."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import pytest
import torch
from op_cases import BF16, CASES, F16, F32, F64, Kernel, Layout, OpCase
from torch import Tensor
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode

import library_stand_ins
import outlast.kernels
from kernel_cases import beside_others, draw, same
from outlast.kernels.register import OPS

# the interpreter's own
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

for module in pkgutil.iter_modules(outlast.kernels.__path__, "outlast.kernels."):
    importlib.import_module(module.name)  # which registers its ops

HAS_GPU = torch.cuda.is_available()
STACK = 3
#: how far a result of a dtype may be off by its own rounding
ROUNDING = {F64: 0.0, F32: 1e-6, BF16: 2e-2, F16: 1e-2}
FUSED = [case for case in CASES if case.kernel]
no_gpu = pytest.mark.skipif(HAS_GPU, reason="the test on the GPU does this")
every_case = pytest.mark.parametrize("case", CASES, ids=str)


@pytest.fixture(autouse=True)
def _ready(monkeypatch, request):
    """Triton where the op has no other path, stand-ins for libraries, tf32 as in training."""
    case = request.node.callspec.params.get("case") if hasattr(request.node, "callspec") else None
    if case and case.dtype == F32:
        pytest.importorskip("triton")
    library_stand_ins.install(monkeypatch)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


def call(case: OpCase, tensors: list[Tensor | None]) -> list[Tensor]:
    """The results of the op that `plain` gives too."""
    results = getattr(torch.ops.outlast, case.op)(*tensors, *case.numbers(tensors))
    return [results] if isinstance(results, Tensor) else [results[i] for i in case.outputs]


def call_plain(case: OpCase, tensors: list[Tensor | None]) -> list[Tensor]:
    results = case.plain(*tensors)
    return [results] if isinstance(results, Tensor) else list(results)


def place(case: OpCase) -> tuple[str, float]:
    """Where an op runs that is no test of a GPU, and its tolerance.

    One that has no path but the kernel needs the GPU if there is one: nothing is interpreted then.
    """
    if HAS_GPU and case.dtype == F32:
        return "cuda", case.kernel.tolerances[F32]
    return "cpu", case.tolerance


def leaves(case: OpCase, tensors: list[Tensor | None], dtype=None, device="cpu") -> list[Any]:
    """Copies in this dtype where they are float64; those that are not frozen require gradients."""
    copies: list[Any] = []
    for index, tensor in enumerate(tensors):
        if tensor is None or not tensor.is_floating_point():
            copies.append(None if tensor is None else tensor.to(device))
            continue
        target = (dtype or case.dtype) if tensor.dtype == F64 else tensor.dtype
        copy = tensor.detach().to(device, target)
        copies.append(copy if index in case.frozen else copy.requires_grad_())
    return copies


def learning(tensors: list[Tensor | None]) -> list[Tensor]:
    return [t for t in tensors if t is not None and t.requires_grad]


def upstream(case: OpCase, results: list[Tensor]) -> list[Tensor]:
    return [draw(*r.shape, seed=20 + i).to(r.device, r.dtype) for i, r in enumerate(results)]


def slopes(case: OpCase, results: list[Tensor], d_results: list[Tensor], tensors, used=None):
    """Gradients of the used results with respect to all tensors that learn."""
    used = (case.slopes or range(len(results))) if used is None else used
    outs, grads = ([many[i] for i in used] for many in (results, d_results))
    return torch.autograd.grad(
        outs, learning(tensors), grads, allow_unused=True, materialize_grads=True, retain_graph=True
    )


def close(actual, wanted, tolerance: float) -> None:
    """Each to the tolerance, or to the rounding of its own dtype if that is coarser."""
    for index, (one, two) in enumerate(zip(actual, wanted, strict=True)):
        bound = max(tolerance, ROUNDING[one.dtype] if one.is_floating_point() else 0.0)
        one, two = one.detach().cpu(), two.detach().cpu()
        try:
            same([one.double()], [two.double()], bound)
        except AssertionError as error:
            raise AssertionError(f"result {index}: {error}") from None


def test_every_op_is_in_the_table():
    forward = {name for name in OPS if not name.endswith("_backward")}
    assert forward == {case.op for case in CASES}


@pytest.mark.parametrize(
    ("case", "shape"), [(c, s) for c in CASES for s in c.shapes], ids=lambda value: str(value)
)
def test_op_and_gradients_match_plain_torch(case, shape):
    exact = leaves(case, case.tensors(*shape), F64)
    wanted = call_plain(case, exact)
    device, tolerance = place(case)
    tensors = leaves(case, case.tensors(*shape), device=device)
    check_against(case, call(case, tensors), tensors, wanted, exact, tolerance)


def check_against(case: OpCase, actual, tensors, wanted, exact, tolerance: float) -> None:
    """Results and gradients, of all results and of each subset that the case names."""
    close(actual, wanted, tolerance)
    above = upstream(case, actual)
    d_exact = [a.cpu().to(F64) for a in above]
    for used in (None, *case.used):
        wanted_slopes = slopes(case, wanted, d_exact, exact, used)
        close(slopes(case, actual, above, tensors, used), wanted_slopes, tolerance)


class Recorder(TorchDispatchMode):
    """Notes every call of an op of ours, with its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "outlast":
            self.calls.append((func, args))
        return func(*args, **(kwargs or {}))


#: that an op says what its results are: shape, dtype, strides
FAKES = ("test_schema", "test_faketensor")


def check_rules(case: OpCase, tensors: list[Any], **tests: tuple[str, ...]) -> None:
    """`opcheck` of the op, and of every op of ours that its backward pass calls."""
    op = getattr(torch.ops.outlast, case.op).default
    torch.library.opcheck(op, (*tensors, *case.numbers(tensors)), **tests)
    with Recorder() as recorder:
        results = call(case, tensors)
        slopes(case, results, upstream(case, results), tensors)
    backward = [entry for entry in recorder.calls if entry[0] is not op]
    for func, args in backward:
        detached = [a.detach() if isinstance(a, Tensor) else a for a in args]
        torch.library.opcheck(func, detached, test_utils=FAKES)


@every_case
def test_op_keeps_torch_rules(case):
    check_rules(case, leaves(case, case.tensors(*case.shapes[0]), device=place(case)[0]))


@every_case
def test_second_derivatives_are_refused(case):
    if not case.first_only:
        pytest.skip("it has them, or torch refuses them itself")
    tensors = leaves(case, case.tensors(*case.shapes[0]), device=place(case)[0])
    results = call(case, tensors)
    used = case.slopes or range(len(results))
    above = [a.requires_grad_() for a in upstream(case, results)]

    def differentiate_twice() -> None:
        outs, grads = ([many[i] for i in used] for many in (results, above))
        (first,) = torch.autograd.grad(outs, learning(tensors)[0], grads, create_graph=True)
        torch.autograd.grad(first.sum(), [*grads, *learning(tensors)], allow_unused=True)

    with pytest.raises(NotImplementedError, match="first derivatives only"):
        differentiate_twice()


def stacked(case: OpCase, shape, axes, dtype, device="cpu") -> list[Any]:
    """Tensors of several draws, stacked along `axes`; one draw for all where that is None."""
    draws = [case.tensors(*shape, seed=50 * seed) for seed in range(STACK)]
    tensors: list[Any] = []
    for parts, axis in zip(zip(*draws, strict=True), axes, strict=True):
        if parts[0] is None or axis is None:
            tensors.append(parts[0])
        else:
            tensors.append(torch.stack(parts).movedim(0, axis))
    return leaves(case, tensors, dtype, device)


def run_stacked(case: OpCase, tensors, axes) -> list[Tensor]:
    axes = tuple(None if t is None else axis for t, axis in zip(tensors, axes, strict=True))
    return list(vmap(lambda *piece: tuple(call(case, list(piece))), in_dims=axes)(*tensors))


def rows_of(tensors, axes) -> list[list[Any]]:
    return [
        [
            t if t is None or axis is None else t.select(axis, row)
            for t, axis in zip(tensors, axes, strict=True)
        ]
        for row in range(STACK)
    ]


STACKS = [
    (case, shape, axes)
    for case in CASES
    for shape in case.stack_shapes or case.shapes[:1]
    for axes in case.axes
]


@pytest.mark.parametrize(("case", "shape", "axes"), STACKS, ids=str)
def test_stack_matches_each_alone(case, shape, axes, no_vmap_fallback):
    device, tolerance = place(case)
    exact, tensors = stacked(case, shape, axes, F64), stacked(case, shape, axes, case.dtype, device)
    alone = zip(*(call_plain(case, row) for row in rows_of(exact, axes)), strict=True)
    wanted = [torch.stack(parts) for parts in alone]
    actual = run_stacked(case, tensors, axes)
    check_against(case, actual, tensors, wanted, exact, tolerance)


# ---- the fused path ------------------------------------------------------------------------------


def laid_out(case: OpCase, tensors, dtype, device, layout) -> tuple[list[Any], list[Any]]:
    """Tensors for the kernel, and the same numbers in float64; weights lie in a table."""
    near = leaves(case, tensors, dtype, device)
    for index, tensor in enumerate(tensors):
        if index in case.kernel.weights and tensor is not None:
            near[index] = beside_others(tensor.to(device, F32)).requires_grad_()
        elif near[index] is not None and near[index].requires_grad:
            near[index] = layout("input", near[index].detach()).requires_grad_()
    exact = [
        n if t is None or t.dtype != F64 else n.double() for n, t in zip(near, tensors, strict=True)
    ]
    return near, leaves(case, exact, F64)


def compare_kernel(case: OpCase, shape, dtype, device, layout, tolerance) -> None:
    kernel: Kernel = case.kernel
    tensors, exact = laid_out(case, case.tensors(*shape), dtype, device, layout)
    actual, wanted = call(case, tensors), call_plain(case, exact)
    for one, two in zip(actual, wanted, strict=True):
        close([one], [two], tolerance if one.dtype == dtype else 1e-5)
    above = upstream(case, actual)
    above = [layout(f"gradient {i}", a) for i, a in zip(case.outputs, above, strict=True)]
    found_slopes = slopes(case, actual, above, tensors)
    wanted_slopes = slopes(case, wanted, [a.cpu().double() for a in above], exact)
    names = [i for i, t in enumerate(tensors) if t is not None and t.requires_grad]
    for index, one, two in zip(names, found_slopes, wanted_slopes, strict=True):
        assert one.dtype == tensors[index].dtype
        if index in kernel.weights:  # a sum over many rows: float32 to the size of its terms
            size = kernel.rows(shape) ** 0.5
            same([one.cpu().double() / size], [two.double() / size], 1e-5)
        else:
            close([one], [two], tolerance)


def as_if_on_a_gpu(case: OpCase, monkeypatch) -> None:
    """Take the kernel without a GPU, which Triton then interprets."""
    pytest.importorskip("triton")
    kernel: Kernel = case.kernel
    if kernel.asks:
        monkeypatch.setattr(kernel.op_module, "back_end", lambda *_: kernel.module)


def few_layouts(case: OpCase, shape: Any) -> list[tuple[str, Layout]]:
    """All layouts for the first shape and the third, which has several spans; else the first."""
    layouts = list(case.kernel.layouts.items())
    return layouts if shape in (case.shapes[0], *case.shapes[2:3]) else layouts[:1]


INTERPRETED = [
    pytest.param(case, shape, dtype, layout, id=f"{case} {shape} {dtype} {name}")
    for case in FUSED
    for shape in case.shapes
    for dtype in case.kernel.dtypes
    for name, layout in few_layouts(case, shape)
]


@no_gpu
@pytest.mark.parametrize(("case", "shape", "dtype", "layout"), INTERPRETED)
def test_kernel_matches_plain_torch_in_the_interpreter(case, shape, dtype, layout, monkeypatch):
    as_if_on_a_gpu(case, monkeypatch)
    tolerance = case.tolerance if case.dtype == F32 else case.kernel.tolerances[dtype]
    compare_kernel(case, shape, dtype, "cpu", layout, tolerance)


@no_gpu
@pytest.mark.parametrize("case", FUSED, ids=str)
def test_kernel_results_lie_as_the_op_says(case, monkeypatch):
    as_if_on_a_gpu(case, monkeypatch)
    layout = next(iter(case.kernel.layouts.values()))
    for dtype in (F32, BF16):
        tensors, _ = laid_out(case, case.tensors(*case.shapes[0]), dtype, "cpu", layout)
        check_rules(case, tensors, test_utils=FAKES)


ON_GPU = [
    pytest.param(case, shape, dtype, layout, id=f"{case} {shape} {dtype} {name}")
    for case in FUSED
    for shape in (*case.shapes, *case.kernel.gpu_shapes)
    for dtype in case.kernel.tolerances
    for name, layout in case.kernel.layouts.items()
]


@pytest.mark.gpu
@pytest.mark.parametrize(("case", "shape", "dtype", "layout"), ON_GPU)
def test_kernel_matches_plain_torch_on_a_gpu(case, shape, dtype, layout):
    compare_kernel(case, shape, dtype, "cuda", layout, case.kernel.tolerances[dtype])


@pytest.mark.gpu
@pytest.mark.parametrize("case", FUSED, ids=str)
def test_seeds_together_match_each_alone_on_a_gpu(case):
    shape, dtype = case.kernel.stack
    axes = tuple(None if index in case.frozen else 0 for index in range(len(case.axes[0])))
    tensors = stacked(case, shape, axes, dtype, "cuda")
    for index in case.kernel.weights:
        if tensors[index] is not None:
            tensors[index] = tensors[index].detach().float().requires_grad_()
    if case.kernel.asks:
        asked = [tensors[i] for i in case.kernel.asks]
        assert case.kernel.op_module.back_end(*asked) is case.kernel.module
    together = run_stacked(case, tensors, axes)
    above = upstream(case, together)
    d_together = slopes(case, together, above, tensors)
    for row, piece in enumerate(
        rows_of([None if t is None else t.detach() for t in tensors], axes)
    ):
        piece = leaves(case, piece, dtype, "cuda")
        alone = call(case, piece)
        d_alone = slopes(case, alone, [a[row] for a in above], piece)
        if case.kernel.bitwise:
            assert all(torch.equal(a, t[row]) for a, t in zip(alone, together, strict=True))
            assert torch.equal(d_alone[0], d_together[0][row])
        close(alone, [t[row] for t in together], 1e-6)
        close(d_alone, [d[row] for d in d_together], 1e-5)
