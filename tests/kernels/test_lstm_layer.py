"""The whole LSTM layer: torch's own LSTM for one seed, ours for more, and who is taken when.

Without a GPU the choice is made for it: torch's LSTM on the CPU stands in for cuDNN's.
"""

import warnings

import pytest
import torch
from torch.func import vmap

from kernel_cases import beside_others, draw, near, same
from outlast.errors import SpecError
from outlast.kernels.linear import linear
from outlast.kernels.lstm import layer, lstm, lstm_layer
from outlast.mixers.lstm import LSTM
from outlast.workflow.create import create_runs
from tiny_runs import InMemory, assert_same_run, assert_seed_is, tiny, train_runs

pytestmark = pytest.mark.filterwarnings("error")

# steps, rows, width, width of the input
SHAPES = [(1, 1, 1, 1), (7, 3, 5, 6), (4, 2, 16, 16)]
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


def inputs(steps: int, rows: int, width: int, width_in: int, *lead: int) -> list[torch.Tensor]:
    """x, weight_in, bias, weight, h0, c0, with leading axes such as the seeds'."""
    return [
        draw(*lead, rows, steps, width_in, seed=1),
        draw(*lead, 4 * width, width_in, seed=2) * width_in**-0.5,
        draw(*lead, 4 * width, seed=3),
        draw(*lead, 4 * width, width, seed=4) * width**-0.5,
        draw(*lead, rows, width, seed=5),
        draw(*lead, rows, width, seed=6),
    ]


def with_gradients(function, arguments):
    """Outputs, and gradients of a random weighing of all of them."""
    actual = function(*arguments)
    weighed = sum((f * draw(*f.shape, seed=9 + i).to(f.device)).sum() for i, f in enumerate(actual))
    return [*actual, *torch.autograd.grad(weighed, arguments)]


def leaves(tensors, device="cpu", dtype=torch.float64):
    return [t.detach().to(device, dtype).requires_grad_() for t in tensors]


@pytest.fixture
def torchs(monkeypatch):
    """How often torch's LSTM was run; it is always the choice."""
    calls = []
    run = torch.lstm
    monkeypatch.setattr(layer, "cudnn_wins", lambda *_: True)
    monkeypatch.setattr(torch, "lstm", lambda *a, **k: (calls.append(1), run(*a, **k))[1])
    return calls


@pytest.fixture
def ours(monkeypatch):
    """The layer by our kernel, whatever the choice is elsewhere."""
    piece = layer.lstm_layer

    def run(*arguments):
        with monkeypatch.context() as patch:
            patch.setattr(layer, "cudnn_wins", lambda *_: False)
            return piece(*arguments)

    return run


# ---- torch's LSTM is the present path ------------------------------------------------------------


@shapes
def test_torchs_lstm_matches_ours_with_gradients(shape, torchs, ours):
    arguments = leaves(inputs(*shape))
    actual = with_gradients(lstm_layer, arguments)
    assert len(torchs) == 1
    same(actual, with_gradients(ours, arguments), 1e-9)
    assert len(torchs) == 1


@pytest.mark.parametrize("output", [0, 1, 2])
def test_gradients_of_each_result_alone_match_ours(output, torchs, ours):
    arguments = leaves(inputs(3, 2, 4, 5))
    actual = with_gradients(lambda *a: [lstm_layer(*a)[output]], arguments)
    same(actual, with_gradients(lambda *a: [ours(*a)[output]], arguments), 1e-9)


def test_sequence_in_two_chunks_matches_the_whole(torchs):
    x, *weights, h0, c0 = inputs(6, 3, 4, 4)
    wanted = lstm_layer(x, *weights, h0, c0)
    first, *state = lstm_layer(x[:, :2], *weights, h0, c0)
    second, *state = lstm_layer(x[:, 2:], *weights, *state)
    same([torch.cat([first, second], 1), *state], wanted)


def test_without_gradients_no_graph_is_kept(torchs, ours):
    arguments = leaves(inputs(3, 2, 4, 5))
    with torch.no_grad():
        actual = lstm_layer(*arguments)
        same(actual, ours(*arguments))
    assert not any(f.requires_grad for f in actual)


def test_both_biases_of_the_mixer_get_the_gradient(torchs):
    mixer = LSTM(4).double()
    mixer(draw(2, 3, 4))[0].sum().backward()
    assert len(torchs) == 1
    assert mixer.bias.grad.abs().min() > 0
    assert torch.equal(mixer.bias.grad, mixer.input.bias.grad)


# ---- seeds ---------------------------------------------------------------------------------------


AXES = {
    "all stacked": (0, 0, 0, 0, 0, 0),
    "one input for all": (None, 0, 0, 0, None, None),
    "one set of weights for all": (0, None, None, None, 0, 0),
    "stacked elsewhere": (2, 1, 1, 2, 1, 0),
}


def stacked_leaves(axes, seeds):
    stack = inputs(4, 3, 5, 6, seeds)
    return leaves(
        a[0] if axis is None else a.movedim(0, axis) for a, axis in zip(stack, axes, strict=True)
    )


@pytest.mark.parametrize("axes", AXES.values(), ids=AXES.keys())
@pytest.mark.parametrize("seeds", [1, 3])
def test_torchs_lstm_runs_for_one_seed_alone(seeds, axes, torchs, ours):
    arguments = stacked_leaves(axes, seeds)
    actual = with_gradients(vmap(lstm_layer, in_dims=axes), arguments)
    assert len(torchs) == (seeds == 1)
    same(actual, with_gradients(vmap(ours, in_dims=axes), arguments), 1e-9)


@pytest.mark.parametrize("axes", AXES.values(), ids=AXES.keys())
def test_several_seeds_are_matmul_and_recurrence_to_the_bit(axes, torchs):
    def apart(x, weight_in, *others):  # as on a GPU, where the product is the op's
        projected = linear(x.flatten(0, 1), weight_in).unflatten(0, x.shape[:2])
        return lstm(projected, *others)

    arguments = stacked_leaves(axes, 3)
    results = [with_gradients(vmap(f, in_dims=axes), arguments) for f in (lstm_layer, apart)]
    assert not torchs
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("seeds", [(1, 1), (3, 1), (1, 3), (2, 3)], ids=str)
def test_stack_of_stacks_matches_ours(seeds, torchs, ours):
    arguments = leaves(inputs(3, 2, 4, 4, *seeds))
    actual = with_gradients(vmap(vmap(lstm_layer)), arguments)
    assert len(torchs) == (seeds == (1, 1))
    same(actual, with_gradients(vmap(vmap(ours)), arguments), 1e-9)


def test_weights_in_a_table_give_the_same_results(torchs, ours):
    x, weight_in, bias, weight, h0, c0 = inputs(3, 2, 4, 4, 1)
    arguments = [x, *map(beside_others, (weight_in, bias, weight)), h0, c0]
    same(vmap(lstm_layer)(*arguments), vmap(ours)(*arguments))
    assert len(torchs) == 1


# ---- types ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_under_autocast_the_state_is_float32_and_the_rest_keeps_its_dtype(
    dtype, seeds, torchs, ours
):
    x, *others = inputs(5, 3, 4, 4, seeds)
    arguments = [*leaves([x], dtype=dtype), *leaves(others, dtype=torch.float32)]
    with torch.autocast("cpu", torch.bfloat16):
        actual = with_gradients(vmap(lstm_layer), arguments)
        wanted = with_gradients(vmap(ours), arguments)
    assert len(torchs) == (seeds == 1)
    kinds = [dtype, torch.float32, torch.float32, dtype, *[torch.float32] * 5]
    assert [f.dtype for f in actual] == [w.dtype for w in wanted] == kinds
    near(actual, wanted, 3e-2)
    exact = with_gradients(vmap(ours), leaves(arguments))
    near(actual[1:3], exact[1:3], 1e-5 if seeds == 1 else 3e-2)  # nothing of one seed is rounded


def test_training_by_torchs_lstm_matches_ours(torchs, monkeypatch):
    def trainer():
        return InMemory(tiny(model="lstm > mlp @ 16", seeds=(3,))).steps(30)

    actual = trainer()
    assert torchs
    monkeypatch.undo()
    assert_seed_is(trainer(), actual, 3)


# ---- who is taken --------------------------------------------------------------------------------


class OnGpu(torch.Tensor):
    """A tensor that says it lies on a GPU."""

    is_cuda = True


@pytest.fixture
def cudnn(monkeypatch):
    """cuDNN seems to be there, and our kernel up to a width of 256."""
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    monkeypatch.setattr(
        layer, "back_end", lambda _, w: layer.reference if w.shape[-1] > 256 else None
    )
    monkeypatch.setattr(layer, "_exact_enough", lambda: True)


def wins(width: int, dtype: torch.dtype = torch.float32) -> bool:
    x = torch.zeros(2, 3, width, dtype=dtype).as_subclass(OnGpu)
    return layer.cudnn_wins(x, torch.zeros(4 * width, width))


def test_cudnn_is_taken_for_narrow_layers_and_where_no_kernel_fits(cudnn, monkeypatch):
    assert wins(8)
    assert wins(layer.WIDEST)
    assert wins(layer.WIDEST, torch.bfloat16)
    assert not wins(layer.WIDEST + 1)
    assert not wins(256)
    assert wins(257)
    assert not wins(8, torch.float64)
    monkeypatch.setattr(layer, "_exact_enough", lambda: False)
    assert not wins(8)


def test_cudnn_disabled_in_torch_is_not_taken(cudnn, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "enabled", False)
    assert not wins(8)


def test_cudnn_is_not_taken_if_less_exact_than_torch_must_be():
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.rnn.fp32_precision
    try:
        for matmuls, cudnns, enough in [
            ("high", "tf32", True),
            ("high", "ieee", True),
            ("highest", "ieee", True),
            ("highest", "tf32", False),
        ]:
            torch.set_float32_matmul_precision(matmuls)
            torch.backends.cudnn.rnn.fp32_precision = cudnns
            assert layer._exact_enough() == enough
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.rnn.fp32_precision = before[1]


def test_switch_overrides_the_choice_and_rejects_other_values(cudnn, monkeypatch):
    monkeypatch.setenv(layer.SWITCH, "fused")
    assert not wins(8)
    monkeypatch.setenv(layer.SWITCH, "cudnn")
    assert wins(200, torch.float64)
    monkeypatch.setenv(layer.SWITCH, "maybe")
    with pytest.raises(SpecError, match=r"OUTLAST_LSTM=maybe: expected auto \| fused \| cudnn"):
        wins(8)


@pytest.mark.parametrize("seeds", [1, 3])
def test_switch_cudnn_is_refused_on_the_cpu(seeds, monkeypatch):
    arguments = inputs(3, 2, 4, 4, seeds)
    monkeypatch.setattr(torch, "lstm", None)
    vmap(lstm_layer)(*arguments)
    monkeypatch.setenv(layer.SWITCH, "cudnn")
    with pytest.raises(SpecError, match=r"OUTLAST_LSTM=cudnn: expected auto .* needs a GPU"):
        vmap(lstm_layer)(*arguments)


# ---- on a GPU ------------------------------------------------------------------------------------


@pytest.fixture
def exact():
    """Matmuls in full float32, torch's and cuDNN's."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.rnn.fp32_precision
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.rnn.fp32_precision = "ieee"
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.rnn.fp32_precision = before[1]


@pytest.fixture
def counted(monkeypatch):
    """How often torch's LSTM was run; the choice is left as it is."""
    calls = []
    run = torch.lstm
    monkeypatch.setattr(torch, "lstm", lambda *a, **k: (calls.append(1), run(*a, **k))[1])
    return calls


def on_gpu(tensors):
    return leaves(tensors, "cuda", torch.float32)


GPU_SHAPES = [(1, 1, 8, 8), (30, 21, 24, 10), (64, 128, 64, 64), (9, 5, 5, 7), (5, 3, 264, 16)]


@pytest.mark.gpu
@pytest.mark.parametrize("shape", GPU_SHAPES, ids=str)
def test_on_a_gpu_cudnn_matches_float64(shape, exact, counted):
    arguments = inputs(*shape)
    wanted = with_gradients(lstm_layer, leaves(arguments))
    assert not counted
    near(with_gradients(lstm_layer, on_gpu(arguments)), wanted, 1e-4)
    assert len(counted) == 1
    table = [beside_others(a[None].to("cuda", torch.float32)) for a in arguments]
    near([f[0] for f in vmap(lstm_layer)(*table)], wanted[:3], 1e-4)
    assert len(counted) == 2


@pytest.mark.gpu
def test_on_a_gpu_cudnn_is_chosen_by_width(tf32, counted):
    for width, taken in [(64, 1), (128, 1), (136, 0)]:
        counted.clear()
        lstm_layer(*on_gpu(inputs(2, 3, width, 8)))
        assert len(counted) == taken


@pytest.mark.gpu
def test_on_a_gpu_exact_matmuls_are_not_left_to_cudnn_in_tf32(counted):
    assert torch.get_float32_matmul_precision() == "highest"
    assert torch.backends.cudnn.rnn.fp32_precision == "tf32"
    lstm_layer(*on_gpu(inputs(2, 3, 16, 8)))
    assert not counted


@pytest.mark.gpu
@pytest.mark.parametrize("half", [False, True])
def test_on_a_gpu_several_seeds_are_ours_to_the_bit(half, tf32, counted, monkeypatch):
    stack = on_gpu(inputs(30, 21, 24, 24, 3))
    results = []
    for switch in ("auto", "fused"):
        monkeypatch.setenv(layer.SWITCH, switch)
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            results.append(with_gradients(vmap(lstm_layer), stack))
    assert not counted
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.gpu
def test_on_a_gpu_one_seed_is_as_exact_as_our_kernel(tf32, counted, monkeypatch):
    arguments = inputs(64, 32, 64, 64, 1)
    wanted = with_gradients(vmap(lstm_layer), leaves(arguments))
    for switch, taken in [("auto", 1), ("fused", 0)]:
        counted.clear()
        monkeypatch.setenv(layer.SWITCH, switch)
        near(with_gradients(vmap(lstm_layer), on_gpu(arguments)), wanted, 1e-2)
        assert len(counted) == taken


@pytest.mark.gpu
def test_on_a_gpu_under_autocast_the_state_is_not_rounded(exact, counted):
    arguments = inputs(30, 21, 24, 24)
    wanted = lstm_layer(*arguments)
    with torch.autocast("cuda", torch.bfloat16):
        actual = lstm_layer(*on_gpu(arguments))
    assert len(counted) == 1
    assert {f.dtype for f in actual} == {torch.float32}
    near(actual, wanted, 1e-4)


@pytest.mark.gpu
def test_on_a_gpu_cudnn_does_not_warn_of_copied_weights(tf32):
    for width in (5, 16, 64):
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            with_gradients(lstm_layer, on_gpu(inputs(3, 2, width, width)))
            with torch.no_grad():
                lstm_layer(*on_gpu(inputs(3, 2, width, width)))
        assert not heard


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(30, 21, 24, 24), (64, 128, 64, 64), (256, 16, 64, 64)], ids=str)
def test_on_a_gpu_every_run_has_the_same_bits(shape, tf32, counted):
    arguments = on_gpu(inputs(*shape))
    wanted = with_gradients(lstm_layer, arguments)
    for _ in range(20):
        actual = with_gradients(lstm_layer, arguments)
        assert all(torch.equal(a, b) for a, b in zip(actual, wanted, strict=True))
    assert len(counted) == 21


@pytest.mark.gpu
def test_on_a_gpu_it_can_be_captured_with_its_gradients(tf32, counted):
    arguments = inputs(30, 21, 24, 24, 1)
    above = [draw(*s, seed=9).float().cuda() for s in [(1, 21, 30, 24), (1, 21, 24), (1, 21, 24)]]

    def run(piece):
        actual = vmap(lstm_layer)(*piece)
        return [*actual, *torch.autograd.grad(actual, piece, above)]

    wanted = run(on_gpu(arguments))
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        piece = on_gpu(arguments)
        for _ in range(2):
            run(piece)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=aside):
        actual = run(piece)
    for tensor in actual:
        tensor.detach().zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert len(counted) == 4
    assert all(torch.equal(a, b) for a, b in zip(actual, wanted, strict=True))


@pytest.mark.gpu
def test_on_a_gpu_second_derivatives_are_refused_not_wrong(tf32, counted):
    x, *others = on_gpu(inputs(3, 2, 4, 4))
    (first,) = torch.autograd.grad(lstm_layer(x, *others)[0].pow(2).sum(), x, create_graph=True)
    assert counted
    with pytest.raises(RuntimeError, match=r"(?i)double backward|not implemented"):
        torch.autograd.grad(first.sum(), x)


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("precision", ["auto", "bf16"])
def test_on_a_gpu_two_runs_through_cudnn_have_the_same_bits(precision, counted, tmp_path):
    run = tiny(model="lstm > mlp @ 16", seeds=(3,), precision=precision)
    for name in ("one", "two"):
        create_runs([(run, tmp_path / name)], torch.device("cuda"))
        assert train_runs([tmp_path / name], torch.device("cuda")).ended
    assert counted
    assert_same_run(tmp_path / "one", tmp_path / "two")
