"""What TRA refuses: each error names the argument, the value and what is accepted."""

import math

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad

import outlast
from outlast.errors import SpecError
from outlast.kernels.tra import Parts, has_kernel, merge
from tra_cases import Case

pytestmark = pytest.mark.filterwarnings("error:::outlast")

tra = outlast.threshold_relative_attention


def change(index, tensor):
    def changed():
        inputs = Case(4, 6, batch=2, heads=2).inputs(torch.float32)
        inputs[index] = tensor(inputs[index])
        return inputs

    return changed


GOOD = change(0, lambda q: q)
LENGTHS = torch.tensor([6, 3])
NAMES = ("q", "k", "v", "gate")
MISTAKES = [
    (change(0, lambda q: q[0]), {}, r"q=2x4x16: expected a shape of batch x heads"),
    (change(1, lambda k: k[..., :8]), {}, r"k=2x1x6x8: expected a shape of 2 x key heads"),
    (change(1, lambda k: k.expand(2, 3, 6, 16)), {}, r"k=2x3x6x16: expected a number of key heads"),
    (change(2, lambda v: v[:, :, :5]), {}, r"v=2x1x5x16: expected the shape of k, 2x1x6x16"),
    (change(3, lambda g: g[..., :3]), {}, r"gate=2x2x3: expected a shape of 2x2x4"),
    (change(1, lambda k: k.double()), {}, r"k=torch.float64: expected the type of q"),
    (change(0, lambda q: q.long()), {}, r"q=torch.int64: expected a floating point type"),
    (change(1, lambda k: k.long()), {}, r"k=torch.int64: expected a floating point type"),
    (GOOD, {"scale": 0.0}, r"scale=0.0: expected a number > 0"),
    (GOOD, {"threshold": math.nan}, r"threshold=nan: expected a number"),
    (GOOD, {"tolerance": 1.0, "normalised": True}, r"tolerance=1.0: expected a number from 0"),
    (GOOD, {"tolerance": 1e-6}, r"tolerance=1e-06: expected None unless normalised=True"),
    (GOOD, {"padding": "middle"}, r"padding='middle': expected right \| left"),
    (GOOD, {"lengths": torch.tensor([1, 2, 3])}, r"lengths=.*: expected 2 whole numbers"),
    (GOOD, {"lengths": torch.tensor([1.0, 2.0])}, r"lengths=.*: expected 2 whole numbers"),
    (GOOD, {"lengths": [3, 3]}, r"lengths=\[3, 3\] \(list\): expected a tensor of 2 whole"),
    (GOOD, {"offset": 1.5}, r"offset=1.5 \(float\): expected a whole number"),
    (GOOD, {"offset": True}, r"offset=True: expected a whole number"),
    (
        GOOD,
        {"threshold": torch.tensor(0.0)},
        r"threshold=tensor\(0.\) \(Tensor\): expected",
    ),
    (change(0, lambda q: q.to(torch.float8_e4m3fn)), {}, r"q=.*: expected .* of 16 bits or more"),
    (GOOD, {"offset": 2**31}, r"offset=2147483648: expected a whole number from -1073741824 to"),
    (GOOD, {"offset": -(2**40)}, r"offset=-1099511627776: expected a whole number from"),
    (GOOD, {"offset": 10**30}, r"offset=10{30}: expected a whole number from"),
    (GOOD, {"offset": 10**5000}, r"offset=a whole number of 16610 bits: expected a whole number"),
    (GOOD, {"scale": 10**400}, r"scale=a whole number of 1329 bits: expected a number > 0"),
    (GOOD, {"threshold": -(10**400)}, r"threshold=a whole number of 1329 bits: expected a number"),
    (GOOD, {"normalised": "x"}, r"normalised='x': expected True or False"),
    (GOOD, {"sparse": torch.ones(2)}, r"sparse=.*: expected True or False"),
    (GOOD, {"return_parts": 1}, r"return_parts=1 \(int\): expected True or False"),
    (GOOD, {"lengths": LENGTHS.to("meta")}, r"lengths=a tensor on meta: expected one on cpu"),
    (GOOD, {"lengths": LENGTHS.to_sparse()}, r"lengths=a tensor of layout torch.sparse_coo"),
    (GOOD, {"lengths": LENGTHS.to(torch.complex64)}, r"lengths=.*: expected 2 whole numbers"),
    (GOOD, {"lengths": LENGTHS.to(torch.uint64)}, r"lengths=.*: expected 2 whole numbers"),
    (GOOD, {"backend": "cuda"}, r"backend='cuda': expected triton \| cpu \| reference"),
]


@pytest.mark.parametrize(("inputs", "told", "message"), MISTAKES)
def test_wrong_arguments_are_named_in_the_error(inputs, told, message):
    with pytest.raises(SpecError, match=message):
        tra(*inputs(), **told)


@pytest.mark.filterwarnings("ignore:.*prototype")
@pytest.mark.parametrize("index", range(4), ids=NAMES)
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (lambda t: t.to("meta"), "a tensor on .*: expected one on .*, as the others are"),
        (lambda t: t.to_sparse(), "a tensor of layout torch.sparse_coo: expected a dense one"),
        (lambda t: t.to_mkldnn(), "a tensor of layout torch._mkldnn: expected a dense one"),
        (lambda t: torch.nested.nested_tensor(list(t)), "a nested tensor: expected a padded one"),
        (lambda t: t.to(torch.complex64), "torch.complex64: expected a floating point type"),
    ],
    ids=["meta", "sparse", "mkldnn", "nested", "complex"],
)
def test_tensors_that_are_not_dense_and_real_are_named_in_the_error(index, kind, message):
    # all must be where q is: with q elsewhere it is k that is named
    name = "k" if index == 0 and "meta" in str(kind(torch.ones(1, 1)).device) else NAMES[index]
    with pytest.raises(SpecError, match=f"^{name}={message}"):
        tra(*change(index, kind)())


def test_autocast_accepts_dtypes_that_it_makes_one():
    q, k, v, gate = Case(4, 6).inputs(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        mixed, same = tra(q, k, v.bfloat16(), gate), tra(q, k, v, gate)
        assert torch.equal(mixed, same)
        with pytest.raises(SpecError, match=r"k=torch.float64: expected the type of q"):
            tra(q, k.double(), v, gate)  # autocast leaves it alone
        with pytest.raises(SpecError, match=r"v=torch.int64: expected a floating point type"):
            tra(q, k, v.long(), gate)


def test_fused_kernel_says_what_it_cannot_take():
    inputs = Case(4, 4, width=20).inputs(torch.float64)
    with pytest.raises(SpecError, match=r"backend=triton: expected cpu \| reference, because"):
        tra(*inputs, backend="triton")


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_forward_mode_and_func_grad_are_errors_not_zero():
    inputs = Case(5, 7).inputs(torch.float32)
    words = r"backward and torch\.autograd\.grad alone; kernels\.tra\.reference\.attend has all"
    with pytest.raises(NotImplementedError, match=words):
        torch.func.jvp(tra, tuple(inputs), tuple(torch.ones_like(t) for t in inputs))
    with pytest.raises(NotImplementedError, match=words):
        torch.func.grad(lambda q: tra(q, *inputs[1:]).sum())(inputs[0])
    with forward_ad.dual_level():
        tra(*inputs)  # nothing is asked of it
        with pytest.raises(NotImplementedError, match=words):
            tra(forward_ad.make_dual(inputs[0], torch.ones_like(inputs[0])), *inputs[1:])


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"threshold": None}, "threshold=None: expected a number, or minus infinity"),
        ({"threshold": "0"}, "threshold='0': expected a number"),
        ({"threshold": math.nan}, "threshold=nan: expected a number"),
        ({"scale": "x"}, "scale='x': expected a number > 0"),
        ({"scale": True}, "scale=True: expected a number > 0"),
        ({"tolerance": "a", "normalised": True}, "tolerance='a': expected a number from 0"),
        ({"backend": 3}, r"backend=3 \(int\): expected triton \| cpu \| reference"),
        ({"lengths": torch.tensor([8, -5])}, "lengths=-5: expected whole numbers from 0 to the 7"),
        ({"gate": None}, "gate=None: expected a tensor"),
        ({"q": [1.0]}, r"q=\[1.0\] \(list\): expected a tensor"),
        ({"gate": torch.tensor(1.0)}, "gate=a single number: expected a shape of 2x"),
        ({"gate": torch.zeros(2, 1, 5, device="meta")}, "gate=a tensor on meta: expected one on"),
    ],
    ids=str,
)
def test_wrong_types_are_named_in_the_error(changed, words):
    given = dict(zip(NAMES, Case(5, 7, batch=2).inputs(torch.float32), strict=True)) | changed
    with pytest.raises(SpecError, match=words):
        tra(**given)


def parts(**changed):
    kept = torch.ones(1, 1, 2, dtype=torch.int32)
    return Parts(torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 2), kept)._replace(**changed)


@pytest.mark.parametrize("name", ["left", "right"])
@pytest.mark.parametrize(
    ("side", "words"),
    [
        (None, r"=None: expected Parts\(out, lse, kept\)"),
        (tuple(parts()), r"=\(tensor.*\(tuple\): expected Parts"),
        (parts(out=None), r"\.out=None: expected a tensor"),
        (parts(out=torch.zeros(1, 1, 2)), r"\.out=shape \(1, 1, 2\): expected \(b, h, tq, d\)"),
        (parts(lse=torch.zeros(1, 1, 3)), r"\.lse=shape \(1, 1, 3\): expected \(b, h, tq\)"),
        (parts(lse=torch.zeros(1, 1, 2).long()), r"\.lse=torch.int64: expected floats"),
        (parts(kept=torch.zeros(1, 1, 2)), r"\.kept=torch.float32: expected whole numbers"),
        (parts(lse=torch.zeros(1, 1, 2, device="meta")), r"\.lse=a tensor on meta: expected one"),
        (parts(out=torch.zeros(1, 1, 2, 4).to_sparse()), r"\.out=a tensor of layout"),
    ],
    ids=range(9),
)
def test_merge_names_the_part_that_is_wrong(name, side, words):
    sides = {"left": parts(), "right": parts(), name: side}
    with pytest.raises(SpecError, match=f"^{name}{words}"):
        merge(**sides, gate=torch.zeros(1, 1, 2))


def test_merge_refuses_other_widths_and_gates():
    with pytest.raises(SpecError, match=r"^right.out=shape \(1, 1, 2, 3\): expected the shape of"):
        merge(parts(), parts(out=torch.zeros(1, 1, 2, 3)), torch.zeros(1, 1, 2))
    for gate in (None, 0.0, torch.zeros(2), torch.zeros(1, 1, 2).long()):
        with pytest.raises(SpecError, match=r"^gate=.*: expected"):
            merge(parts(), parts(), gate)


@pytest.mark.parametrize("q", [None, 3, "q", [1.0], torch.eye(2).to_sparse()], ids=str)
def test_has_kernel_refuses_what_is_no_dense_tensor(q):
    with pytest.raises(SpecError, match=r"^q=.*: expected a"):
        has_kernel(q)


class Unwritable:
    def __repr__(self):
        raise RuntimeError


@pytest.mark.parametrize("value", [Unwritable(), np.zeros(2), torch.ones(2)], ids=range(3))
@pytest.mark.parametrize("name", ["threshold", "scale", "offset", "padding", "backend", "sparse"])
def test_values_without_words_or_truth_are_named_in_the_error(name, value):
    with pytest.raises(SpecError, match=f"^{name}=.*: expected"):
        tra(*GOOD(), **{name: value})
