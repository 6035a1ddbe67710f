"""Recurrences with heads against their equations, token by token and head by head in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from outlast.registry import mixers
from outlast.runs.records import read_metrics
from outlast.studies.joining import is_recurrence
from outlast.testing.compare import close, randn
from tiny_runs import block_lines, create, resume, tiny

ROWS, TOKENS = 2, 70
NO_PROBES = {"probe_every": 0, "checkpoint_every": 4}
REFERENCES = {}


def reference(name: str):
    def keep(function):
        REFERENCES[name] = function
        return function

    return keep


def built(line: str, width: int = 6) -> torch.nn.Module:
    """The mixer of a line in float64, its weights not as they start."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(1)
        mixer = mixers.build(line, width=width).double()
        for parameter in mixer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return mixer


def short_conv(x: Tensor, module: torch.nn.Module) -> Tensor:
    """By torch's own convolution, which wants the last token last."""
    kernel, width = module.weight.shape
    weight = module.weight.flip(0).T[:, None]
    y = F.conv1d(F.pad(x.mT, (kernel - 1, 0)), weight, module.bias, groups=width)
    return F.silu(y).mT


def of_length_1(x: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def rms(x: Tensor, norm: torch.nn.Module) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], norm.weight, norm.eps)


@reference("deltanet")
@reference("gated_deltanet")
def delta(mixer, x: Tensor) -> Tensor:
    q, k, v = short_conv(x @ mixer.qkv.weight.T, mixer.conv).chunk(3, -1)
    d = mixer.head_width
    outputs = []
    for head in range(mixer.heads):
        part = slice(head * d, (head + 1) * d)
        beta = mixer.largest * torch.sigmoid(x @ mixer.beta.weight[head])
        alpha = torch.ones_like(beta)
        if hasattr(mixer, "decay"):
            step = F.softplus(x @ mixer.decay.step.weight[head] + mixer.decay.step.bias[head])
            alpha = torch.exp(-mixer.decay.rate[head].exp() * step)
        memory, rows = torch.zeros(len(x), d, d, dtype=x.dtype), []
        for t in range(x.shape[1]):
            key, query = (of_length_1(y[:, t, part]) for y in (k, q))
            old = torch.einsum("bkv,bk->bv", memory, key)
            change = beta[:, t, None] * (v[:, t, part] - alpha[:, t, None] * old)
            memory = alpha[:, t, None, None] * memory + key[:, :, None] * change[:, None]
            rows.append(torch.einsum("bkv,bk->bv", memory, query) * d**-0.5)
        outputs.append(rms(torch.stack(rows, 1), mixer.norm))
    y = torch.cat(outputs, -1)
    if hasattr(mixer, "gate"):
        y = y * F.silu(x @ mixer.gate.weight.T)
    return y @ mixer.out.weight.T


@reference("hadamard")
def hadamard(mixer, x: Tensor) -> Tensor:
    """The convolutions by torch's own, which want channels before tokens."""
    total = sum(mixer.widths)
    v, q, k = (x @ mixer.vqk.weight.T).split([mixer.widths[0], total, total], -1)
    gates = F.elu(of_length_1(q) * of_length_1(k)).split(mixer.widths, -1)
    parts = [v + gates[0] * v]
    for number, (gate, layer) in enumerate(zip(gates[1:], mixer.convolutions, strict=True), 1):
        weight = layer.weight.unflatten(1, (2 * number + 1, -1)).mT
        seen = F.pad(parts[-1].mT, (2 * number, 0))
        parts.append(gate * F.conv1d(seen, weight, layer.bias).mT)
    return torch.cat(parts, -1) @ mixer.out.weight.T


@reference("linear_attention")
def linear_attention(mixer, x: Tensor) -> Tensor:
    """As attention: all weights of all earlier tokens."""
    projected = x @ mixer.qkv.weight.T + mixer.qkv.bias
    if mixer.ratios is not None:
        ratios = torch.sigmoid(projected @ mixer.ratios.weight.T + mixer.ratios.bias)
        projected = projected * F.pad(ratios, (0, ratios.shape[-1] // 2), value=1.0)
    q, k, v = projected.chunk(3, -1)
    positive = {"elu": lambda y: F.elu(y) + 1, "relu": F.relu}[mixer.feature]
    d, outputs = mixer.head_width, []
    for head in range(mixer.heads):
        part = slice(head * d, (head + 1) * d)
        rows = []
        for t in range(x.shape[1]):
            scores = positive(k[:, : t + 1, part]) @ positive(q[:, t, part])[..., None]
            if mixer.normaliser == "sum":
                weights = scores / (scores.sum(1, keepdim=True) + 1e-6)
            else:
                scores = scores / (t + 1) / d**0.5
                weights = scores - scores.mean(1, keepdim=True) + 1 / (t + 1)
                assert torch.allclose(weights.sum(1), torch.ones_like(weights.sum(1)))
            rows.append((weights * v[:, : t + 1, part]).sum(1))
        outputs.append(torch.stack(rows, 1))
    return torch.cat(outputs, -1) @ mixer.out.weight.T + mixer.out.bias


@reference("mamba2")
def mamba2(mixer, x: Tensor) -> Tensor:
    z, projected = (x @ mixer.input.weight.T).tensor_split([mixer.inner], -1)
    projected = short_conv(projected, mixer.conv)
    u, keys, queries = projected.split([mixer.inner, mixer.state, mixer.state], -1)
    d, outputs = mixer.inner // mixer.heads, []
    for head in range(mixer.heads):
        values = u[..., head * d : (head + 1) * d]
        step = F.softplus(x @ mixer.decay.step.weight[head] + mixer.decay.step.bias[head])
        decay = torch.exp(-mixer.decay.rate[head].exp() * step)
        memory, rows = torch.zeros(len(x), mixer.state, d, dtype=x.dtype), []
        for t in range(x.shape[1]):
            added = step[:, t, None, None] * keys[:, t, :, None] * values[:, t, None]
            memory = decay[:, t, None, None] * memory + added
            read = torch.einsum("bkv,bk->bv", memory, queries[:, t])
            rows.append(read + mixer.skip[head] * values[:, t])
        outputs.append(torch.stack(rows, 1))
    return rms(torch.cat(outputs, -1) * F.silu(z), mixer.norm) @ mixer.out.weight.T


@reference("minlstm")
def minlstm(mixer, x: Tensor) -> Tensor:
    forget, write, value = (x @ mixer.input.weight.T + mixer.input.bias).chunk(3, -1)
    forget, write = forget.sigmoid(), write.sigmoid()
    if mixer.positive:
        value = torch.where(value >= 0, value + 0.5, 1 / (1 + torch.exp(-value)))
    h, rows = torch.zeros_like(value[:, 0]), []
    for t in range(x.shape[1]):
        h = (forget[:, t] * h + write[:, t] * value[:, t]) / (forget[:, t] + write[:, t])
        rows.append(h)
    return torch.stack(rows, 1)


@reference("mlstm")
def mlstm(mixer, x: Tensor) -> Tensor:
    """Without a stabiliser: float64 holds these exponentials.

    The layer divides by exp(m) and then adds 1e-6. So here the epsilon is 1e-6 exp(m).
    """
    q, k, v = (x @ mixer.qkv.weight.T + mixer.qkv.bias).chunk(3, -1)
    gates = x @ mixer.gates.weight.T + mixer.gates.bias
    d, outputs = mixer.head_width, []
    for head in range(mixer.heads):
        part = slice(head * d, (head + 1) * d)
        write, forget = gates[..., head].exp(), gates[..., mixer.heads + head].sigmoid()
        memory = torch.zeros(len(x), d, d, dtype=x.dtype)
        total, rows = torch.zeros(len(x), d, dtype=x.dtype), []
        largest = x.new_ones(len(x))
        for t in range(x.shape[1]):
            largest = torch.maximum(forget[:, t] * largest, write[:, t]).detach()
            key = write[:, t, None] * k[:, t, part] / d**0.5
            memory = forget[:, t, None, None] * memory + key[:, :, None] * v[:, t, None, part]
            total = forget[:, t, None] * total + key
            read = torch.einsum("bkv,bk->bv", memory, q[:, t, part])
            norm = (total * q[:, t, part]).sum(-1, keepdim=True).abs().clamp(min=1)
            rows.append(read / (norm + 1e-6 * largest[:, None]))
        outputs.append(rms(torch.stack(rows, 1), mixer.norm))
    gate = torch.sigmoid(x @ mixer.output_gate.weight.T + mixer.output_gate.bias)
    return (gate * torch.cat(outputs, -1)) @ mixer.out.weight.T + mixer.out.bias


@reference("slstm")
def slstm(mixer, x: Tensor) -> Tensor:
    """Without a stabiliser: float64 holds these exponentials."""
    d, outputs = mixer.head_width, []
    for head in range(mixer.heads):
        rows = slice(4 * d * head, 4 * d * (head + 1))
        given = x @ mixer.input.weight[rows].T + mixer.input.bias[rows]
        c, n, h = (torch.zeros(len(x), d, dtype=x.dtype) for _ in range(3))
        hidden = []
        for t in range(x.shape[1]):
            z, write, forget, o = (given[:, t] + h @ mixer.weight[head]).chunk(4, -1)
            c = forget.sigmoid() * c + write.exp() * z.tanh()
            n = forget.sigmoid() * n + write.exp()
            h = o.sigmoid() * c / n
            hidden.append(h)
        outputs.append(rms(torch.stack(hidden, 1), mixer.norm))
    return torch.cat(outputs, -1) @ mixer.out.weight.T + mixer.out.bias


#: a width that the heads divide, and one that they do not
LINES = [
    "deltanet(heads=2)",
    "deltanet(heads=2, negative=false, conv=1)",
    "deltanet",
    "gated_deltanet(heads=2)",
    "gated_deltanet(negative=false, conv=1)",
    "hadamard",
    "hadamard(convolutions=0)",
    "hadamard(convolutions=4)",
    "linear_attention(heads=2)",
    "linear_attention(feature=relu, fixation=true)",
    "linear_attention(heads=2, normaliser=inline)",
    "linear_attention(feature=relu, normaliser=inline, fixation=true)",
    "mamba2(heads=2, state=3)",
    "mamba2(heads=5, state=8, expand=1, conv=1)",
    "minlstm",
    "minlstm(positive=false)",
    "mlstm(heads=2)",
    "mlstm",
    "slstm(heads=2)",
    "slstm",
]


@pytest.mark.parametrize("line", LINES)
def test_recurrence_equals_its_equations_with_gradients(line):
    mixer, x = built(line), randn(ROWS, TOKENS, 6).requires_grad_()
    wanted = REFERENCES[line.partition("(")[0]](mixer, x)
    y, _ = mixer(x)
    close(y, wanted, 1e-9)
    leaves, upstream = [x, *mixer.parameters()], randn(*y.shape, seed=2)
    for one, two in zip(
        torch.autograd.grad(y, leaves, upstream),
        torch.autograd.grad(wanted, leaves, upstream),
        strict=True,
    ):
        close(one, two, 1e-9, atol=1e-9 * float(two.abs().max()))


@pytest.mark.parametrize("line", LINES)
def test_recurrence_goes_on_where_it_stopped_across_chunks(line):
    mixer, x = built(line), randn(ROWS, 3 * TOKENS, 6)
    whole, state, parts = mixer(x)[0], None, []
    for part in x.split([TOKENS, 1, 40, 2 * TOKENS - 41], 1):
        y, state = mixer(part, state)
        parts.append(y)
    close(torch.cat(parts, 1), whole, 1e-9)


def test_hadamard_is_no_recurrence_as_it_sees_a_few_tokens_alone():
    assert not is_recurrence("hadamard")
    mixer, x = built("hadamard"), randn(1, 12, 6)
    changed = torch.cat([x[:, :1] + 1, x[:, 1:]], 1)
    moved = (mixer(changed)[0] - mixer(x)[0]).abs().amax(-1)[0]
    assert (moved[:7] > 1e-9).all()
    assert not moved[7:].any()  # 2 tokens back, and 4 more


def test_hadamard_passes_a_little_to_the_next_token_at_any_width():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        mixer = mixers.build("hadamard", width=128)
    x, other = randn(1, 3, 128).float(), randn(1, 1, 128).float()
    changed = torch.cat([x[:, :1] - other, x[:, 1:]], 1)
    own, following, second = (mixer(changed)[0] - mixer(x)[0]).norm(dim=-1)[0]
    assert 1e-4 < following / own < 1e-2  # well above rounding, and as little as the text says
    assert 1e-4 < second / own < 1e-2


@pytest.mark.parametrize("name", ["deltanet", "gated_deltanet"])
def test_delta_rule_tracks_parity_only_with_negative_eigenvalues(name):
    """A key that is always the same and beta near 2 turn the sign of the memory."""
    for negative, tracked in ((True, True), (False, False)):
        line = f"{name}(heads=1, conv=1, negative={str(negative).lower()})"
        mixer, bits = (
            mixers.build(line, width=2).double(),
            torch.randint(2, (1, 500), generator=torch.Generator().manual_seed(0)),
        )
        with torch.no_grad():
            mixer.conv.weight.fill_(1)
            mixer.conv.bias.zero_()
            mixer.qkv.weight.zero_()
            mixer.qkv.weight[0::2, 0] = 1  # key and query see the constant
            mixer.qkv.weight[4:, 0] = 0
            mixer.beta.weight.copy_(torch.tensor([[-30.0, 60.0]]))
            if name == "gated_deltanet":
                mixer.decay.rate.fill_(-30)
        x = torch.stack([torch.ones_like(bits), bits], -1).double()
        start = torch.eye(2, dtype=torch.float64)[None, None]
        _, (_, memory) = mixer(x, (mixer.conv.start(mixer.qkv(x)), start))
        sign = -1.0 if bits.sum() % 2 else 1.0
        assert torch.allclose(memory[0, 0, 0, 0], torch.tensor(sign).double(), atol=1e-3) == tracked


@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_hybrid_with_the_recurrence_trains_with_dat(name, tmp_path):
    model = f"{name} > attention(heads=2) > mlp @ 8"
    run = tiny("dat(switch=2)", model=model, steps=4, steps_per_block=2, **NO_PROBES)
    assert resume(create(run, tmp_path / "run"))
    blocks = block_lines(read_metrics(tmp_path / "run"))
    assert [line.step for line in blocks if line.seed == 1] == [2, 4]
    losses = [loss for line in blocks for loss in line.loss.values() if loss is not None]
    assert losses
    assert all(0 < loss < 10 for loss in losses)
