"""Schemes against small examples worked out one number at a time, in plain Python."""

import math

import pytest
import torch

from outlast.errors import OutlastError
from outlast.mixers.attention import blocks
from outlast.mixers.attention.schemes.t5 import bucket
from outlast.registry import mixers, schemes
from small_attention import close_values as close
from small_attention import randn

HEADS, WIDTH, TOKENS = 2, 8, 5
D = WIDTH // HEADS


def scheme(spec: str):
    torch.manual_seed(0)
    return schemes.build(spec, width=WIDTH, heads=HEADS).double()


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def of_scores(rows: list[list[float]]) -> tuple[torch.Tensor, torch.Tensor]:
    """q and k (1, HEADS, n, D) whose products q·k/√d are these, for D = 4 and up to 4 keys more."""
    table = torch.tensor(rows, dtype=torch.float64)
    n = table.shape[-1]
    return table[None, None] * n**0.5, torch.eye(n, dtype=torch.float64)[None, None]


# --- tra -----------------------------------------------------------------------------------------

#: the worked example of the docstring: the fifth query over five keys
EXAMPLE = [[2.0, -1.0, 3.0, -2.0, 1.0]]


def tra(options: str = "") -> torch.nn.Module:
    return schemes.build(f"tra({options})", width=5, heads=1).double()


def gates(deltas: list[float]) -> torch.Tensor:
    return torch.tensor(deltas, dtype=torch.float64)[None, None, :, None]


def weigh(module, q, k, token_features=None):
    queries, keys = q.shape[-2], torch.arange(k.shape[-2])
    positions = keys[-queries:]
    allowed = positions[:, None] >= keys
    return module.weigh(q, k, token_features, positions, allowed, keys, lambda logits: logits)


def scores(module, q, k, token_features, positions):
    return module.scores(q, k, token_features, positions, torch.arange(k.shape[-2]))


def softmax(logits: dict[int, float], n: int = 5) -> list[float]:
    total = sum(math.exp(v) for v in logits.values())
    return [math.exp(logits[j]) / total if j in logits else 0.0 for j in range(n)]


@pytest.mark.parametrize(
    ("options", "logits"),
    [
        ("", {0: 2 - 3 * 0.5, 2: 3 - 2 * 0.5, 4: 1 - 0.5}),
        ("gate=none", {0: 2, 2: 3, 4: 1}),
        ("distance=plain", {0: 2 - 5 * 0.5, 2: 3 - 3 * 0.5, 4: 1 - 0.5}),
        (
            "threshold=none, distance=plain",
            {0: 2 - 2.5, 1: -1 - 2, 2: 3 - 1.5, 3: -2 - 1, 4: 1 - 0.5},
        ),
        ("threshold=none", {0: 2 - 2.5, 1: -1 - 2, 2: 3 - 1.5, 3: -2 - 1, 4: 1 - 0.5}),
        ("threshold=1.5", {0: 2 - 2 * 0.5, 2: 3 - 0.5}),
        ("gate=key", {0: 2 - 3 * 0.1, 2: 3 - 2 * 0.3, 4: 1 - 0.5}),
        (
            "sharpen=true",
            {
                j: s * (1 + 0.43 * math.log(3)) - c / 2
                for j, s, c in [(0, 2, 3), (2, 3, 2), (4, 1, 1)]
            },
        ),
        (
            "threshold=learned",
            {j: math.log(math.exp(s) - 1) - c / 2 for j, s, c in [(0, 2, 3), (2, 3, 2), (4, 1, 1)]},
        ),
    ],
)
def test_tra_and_its_variants_on_the_worked_example(options, logits):
    q, k = of_scores(EXAMPLE)
    token_features = None if "gate=none" in options else gates([-0.1, -0.2, -0.3, -0.4, -0.5])
    close(weigh(tra(options), q, k, token_features)[0, 0, 0], softmax(logits), 1e-6)


@pytest.mark.parametrize("gain", [-5.0, -0.4, 0.0, 2.0])
def test_sharpened_tra_kernel_equals_the_definition(gain):
    layer = mixers.build("attention(tra(sharpen=true), heads=2)", width=16).double()
    with torch.no_grad():
        layer.scheme.gain.fill_(gain)
    x = randn(2, 9, 16)
    fast = layer(x)[0]
    layer.scheme.fused = lambda *arguments: None
    close(fast, layer(x)[0], 1e-9)


def test_tra_without_kept_keys_is_zero_and_has_finite_gradients():
    q, k = of_scores([[-1.0, -2.0]])
    q.requires_grad_()
    module = schemes.build("tra", width=2, heads=1).double()
    weights = weigh(module, q, k, gates([-0.1, -0.2]))
    assert not weights.any()
    assert torch.autograd.grad(weights.sum(), q)[0].isfinite().all()


def test_tra_rms_normalises_queries_unless_norm_is_false():
    q, k = randn(1, HEADS, TOKENS, D), randn(1, HEADS, TOKENS, D, seed=1)
    normed, _ = scheme("tra").rotate(3 * q, k, torch.arange(TOKENS))
    close((normed**2).mean(-1), torch.ones(1, HEADS, TOKENS), 1e-5)
    assert scheme("tra(norm=false)").rotate(q, k, torch.arange(TOKENS))[0] is q


def test_learned_threshold_has_a_gradient_and_decides():
    module = tra("threshold=learned")
    q, k = of_scores(EXAMPLE)
    weights = weigh(module, q, k, gates([-0.5] * 5))
    grad = torch.autograd.grad((weights * randn(5)).sum(), module.threshold)[0]
    assert grad.abs().min() > 0
    with torch.no_grad():
        module.threshold.fill_(1.5)
    assert (weigh(module, q, k, gates([-0.5] * 5))[0, 0, 0] > 0).tolist() == [1, 0, 1, 0, 0]


def test_tra_adds_a_gate_and_its_bias_for_each_head():
    sizes = {s: sum(p.numel() for p in scheme(s).parameters()) for s in ("tra", "tra(gate=none)")}
    assert sizes == {"tra": (WIDTH + 1) * HEADS, "tra(gate=none)": 0}


# --- the others ----------------------------------------------------------------------------------


def test_cope_counts_the_keys_that_matter():
    module = schemes.build("cope(positions=3)", width=3, heads=1).double()
    q, k = of_scores([[0.5, -1.0, 2.0]])
    with torch.no_grad():
        module.table.copy_(randn(3, 3))
    gate = [sigmoid(s) for s in (0.5, -1.0, 2.0)]
    each = (q[0, 0, 0] @ module.table).tolist()  # q·e for whole positions
    wanted = []
    for j, score in enumerate((0.5, -1.0, 2.0)):
        position = min(sum(gate[j:]), 2)
        low = math.floor(position)
        high = min(low + 1, 2)
        between = each[low] + (position - low) * (each[high] - each[low])
        wanted.append(score + between / 3**0.5)
    close(scores(module, q, k, None, torch.tensor([2]))[0, 0, 0], wanted)


def test_cope_does_not_count_later_keys():
    module = schemes.build("cope(positions=3)", width=3, heads=1).double()
    with torch.no_grad():
        module.table.copy_(randn(3, 3))
    q, k = of_scores([[0.5, -1.0, 2.0]])
    first = scores(module, q, k, None, torch.tensor([0]))[0, 0, 0, 0]
    close(first, scores(module, q, k[:, :, :1], None, torch.tensor([0]))[0, 0, 0, 0])


def test_forget_adds_the_log_gates_between_key_and_query():
    module = scheme("forget")
    q, k = randn(1, HEADS, 2, D), randn(1, HEADS, TOKENS, D, seed=1)
    token_features = -randn(1, HEADS, TOKENS, 1, seed=2).abs()
    table = scores(module, q, k, token_features, torch.tensor([3, 4]))
    for row, i in enumerate((3, 4)):
        for j in range(i + 1):
            between = token_features[0, :, j + 1 : i + 1, 0].sum(-1)
            close(table[0, :, row, j], (q[0, :, row] * k[0, :, j]).sum(-1) / D**0.5 + between)


def test_forget_with_a_constant_gate_is_a_linear_bias():
    module, x = scheme("forget"), randn(1, TOKENS, WIDTH)
    with torch.no_grad():
        module.gate.weight.zero_()
        module.gate.bias.fill_(0.3)
    close(module.token_features(x), torch.full((1, HEADS, TOKENS, 1), math.log(sigmoid(0.3))), 1e-6)


@pytest.mark.parametrize("current", [False, True])
def test_stick_breaking_gives_to_the_nearest_first(current):
    module = schemes.build(f"stick_breaking(current={str(current).lower()})", width=4, heads=1)
    row = [0.3, -0.7, 1.2, 0.4]
    q, k = of_scores([row])
    left, wanted = 1.0, [0.0] * 4
    for j in reversed(range(4 if current else 3)):
        wanted[j] = left * sigmoid(row[j])
        left *= 1 - sigmoid(row[j])
    close(weigh(module, q, k)[0, 0, 0], wanted)
    assert sum(wanted) < 1


def test_kerple_falls_with_the_log_or_a_power():
    for kernel in ("log", "power"):
        module = scheme(f"kerple(kernel={kernel})")
        with torch.no_grad():
            module.height.copy_(torch.tensor([1.5, -3.0]))  # held at 0.01
            module.shape.copy_(torch.tensor([0.5, 3.0]))  # a power is held at 2
        bias = module.bias(torch.tensor([4]), torch.arange(5))[0, :, 0]
        for head, (height, shape) in enumerate([(1.5, 0.5), (0.01, 3.0 if kernel == "log" else 2)]):
            for j in range(5):
                far = 4 - j
                fall = math.log(1 + shape * far) if kernel == "log" else far**shape
                close(bias[head, j], -height * fall, 1e-6)
        grads = torch.autograd.grad(bias.sum(), [module.height, module.shape])
        assert all(g.isfinite().all() and g.all() for g in grads)


def test_fire_is_a_function_of_the_share_of_the_context():
    module = scheme("fire(threshold=8)")
    c = 0.1

    def by_hand(i: int, j: int) -> torch.Tensor:
        share = math.log(c * (i - j) + 1) / (math.log(c * max(i, 8) + 1) + 1e-6)
        hidden = (module.up.weight[:, 0] * share + module.up.bias).relu()
        return module.down.weight @ hidden + module.down.bias

    table = module.bias(torch.tensor([3, 40]), torch.arange(41))[0]
    for row, i in enumerate((3, 40)):
        for j in (0, 2, i):
            close(table[:, row, j], by_hand(i, j), 1e-6)


def test_dape_convolves_scores_and_bias_along_the_keys():
    module = scheme("dape(alibi)")
    q, k = randn(1, HEADS, 1, D), randn(1, HEADS, TOKENS, D, seed=1)
    a = (q[0] @ k[0].mT / D**0.5)[:, 0]
    b = module.inner.bias(torch.tensor([TOKENS - 1]), torch.arange(TOKENS))[0, :, 0].double()

    def convolved(rows: torch.Tensor, layer) -> torch.Tensor:
        out = layer.bias[:, None].repeat(1, TOKENS)
        for j in range(TOKENS):
            for tap in range(3):
                if 0 <= j + tap - 1 < TOKENS:
                    kernel = layer.weight.unflatten(1, (3, -1))[:, tap]
                    out[:, j] += kernel @ rows[:, j + tap - 1]
        return out

    hidden = convolved(torch.cat([a, b]), module.first)
    hidden = torch.where(hidden > 0, hidden, 0.01 * hidden)
    wanted = a + b + convolved(hidden, module.second)
    close(scores(module, q, k, None, torch.tensor([TOKENS - 1]))[0, :, 0], wanted)


def test_t5_has_a_bucket_for_each_near_distance_and_ranges_beyond():
    far = torch.tensor([0, 1, 15, 16, 31, 32, 127, 128, 100_000])
    assert bucket(far, 32, 128).tolist() == [0, 1, 15, 16, 21, 21, 31, 31, 31]


def test_position_only_ignores_queries_and_keys():
    module = scheme("position_only")
    q, k = module.rotate(randn(1, HEADS, 3, D), randn(1, HEADS, 3, D), torch.arange(3))
    by_distance = scores(module, q, k, None, torch.arange(3))
    close(by_distance[0, :, 2], module.table[:, [2, 1, 0]])


def test_matchability_reweighs_scores_and_values():
    module = scheme("matchability")
    with torch.no_grad():
        module.direction.copy_(randn(HEADS, D))
        module.alpha.fill_(0.5)
    q, k, v = (randn(1, HEADS, 2, D, seed=s) for s in range(3))
    turned, same = module.rotate(q, k, torch.arange(2))
    close((turned @ same.mT), q @ k.mT + 0.5 * (q * module.direction[:, None]) @ k.mT)
    x = randn(1, 2, WIDTH, seed=4)
    close(module.values(x, v)[0, 1, 1], v[0, 1, 1] * module.relevance(x)[0, 1, 1].sigmoid())


def test_xpos_is_rope_with_a_decay_for_each_pair_at_any_distance():
    module, plain = scheme("xpos(scale=4)"), scheme("rope")
    q, k = randn(1, HEADS, TOKENS, D), randn(1, HEADS, TOKENS, D, seed=1)
    q, k = plain.rotate(q, k, torch.arange(TOKENS))
    zeta = [0.4 / 1.4, (0.5 + 0.4) / 1.4] * 2  # of the halves of a head of width 4
    table = scores(module, q, k, None, torch.arange(TOKENS))
    for i in range(TOKENS):
        for j in range(i + 1):
            decay = torch.tensor([z ** ((i - j) / 4) for z in zeta], dtype=torch.float64)
            close(table[0, :, i, j], (q[0, :, i] * k[0, :, j] * decay).sum(-1) / D**0.5, 1e-6)
    many = randn(1, HEADS, 100_000, D).float()
    far = scores(module, q, many, None, torch.arange(99_995, 100_000))
    assert far.isfinite().all()


@pytest.mark.parametrize(
    ("spec", "same"),
    [
        ("rope(scaling=linear, factor=4)", lambda speed: speed / 4),
        ("rope(base=100, scaling=ntk, factor=4)", lambda speed: speed),
        # 8 tokens: the first pair turns 8/2π > 1 times, the second less than once
        ("rope(base=100, scaling=yarn, factor=4, original=8)", None),
    ],
)
def test_rope_scalings(spec, same):
    module = scheme(spec)
    cos, sin = module.turns(randn(1, 1, 1, D), torch.tensor([1]))
    speed = torch.atan2(sin, cos)[0].double()
    loud = (cos**2 + sin**2).sqrt()
    if "yarn" in spec:
        turns = [8 / (2 * math.pi), 0.8 / (2 * math.pi)]
        kept = [(turns[0] - 1) / 31, 0.0]
        close(speed, [1 * (kept[0] + (1 - kept[0]) / 4), 0.1 / 4], 1e-6)
        close(loud, torch.full((1, 2), 0.1 * math.log(4) + 1), 1e-6)
    elif "ntk" in spec:
        close(speed, [1.0, (100 * 4 ** (4 / 2)) ** -0.5], 1e-6)
    else:
        close(speed, [same(1.0), same(10_000**-0.5)], 1e-6)


def speeds(spec: str, width: int, tokens: int = 2) -> list[float]:
    """How far each pair of one head turns from position 0 to 1, in a sequence of so many tokens."""
    module = schemes.build(spec, width=width, heads=1)
    cos, sin = module.turns(randn(1, 1, tokens, width), torch.arange(tokens))
    return torch.atan2(sin, cos)[1].tolist()


@pytest.mark.parametrize(
    ("convention", "kept"),
    [
        # pair i turns 2048/2π * 10^(-i/2) = 325.9, 103.1, 32.6, 10.31, 3.26, 1.031, 0.33, 0.1 times
        ("paper", [1, 1, 1, (10.3077 - 1) / 31, (3.25949 - 1) / 31, (1.03077 - 1) / 31, 0, 0]),
        # pair 2.016 turns 32 times and pair 5.026 once: the ramp runs from pair 2 to pair 6
        ("transformers", [1, 1, 1, 0.75, 0.5, 0.25, 0, 0]),
    ],
)
def test_yarn_ramp_by_turns_or_by_pairs(convention, kept):
    spec = f"rope(scaling=yarn, factor=4, original=2048, convention={convention})"
    wanted = [10 ** (-i / 2) * (k + (1 - k) / 4) for i, k in enumerate(kept)]
    close(speeds(spec, width=16), wanted, 1e-5)
    cos, sin = schemes.build(spec, width=16, heads=1).turns(randn(1, 16), torch.arange(1, 3))
    close((cos**2 + sin**2).sqrt(), torch.full((2, 8), 0.1 * math.log(4) + 1), 1e-6)


@pytest.mark.parametrize(
    ("options", "width", "wanted"),
    [
        # pair 0.05 turns once within 8 tokens, none turns 32 times: from pair 0 to pair 1
        ("original=8", 4, [1, 0.01 / 2]),
        # pair 1.4 would turn 32 times and pair 2.9 once; the ramp may not go past pair 1
        ("base=10, original=5000", 2, [1]),
    ],
)
def test_yarn_of_transformers_with_a_ramp_past_the_pairs(options, width, wanted):
    spec = f"rope(scaling=yarn, factor=2, convention=transformers, {options})"
    close(speeds(spec, width), wanted, 1e-6)


@pytest.mark.parametrize(
    ("convention", "tokens", "speed"),
    [
        # the exponent d/(d-2) of a head of width 4 is 2
        ("", 8, (100 * 4**2) ** -0.5),
        ("", 32, (100 * 4**2) ** -0.5),
        (", original=8, convention=transformers", 2, 0.1),
        (", original=8, convention=transformers", 8, 0.1),
        (", original=8, convention=transformers", 16, (100 * (4 * 2 - 3) ** 2) ** -0.5),
        (", original=8, convention=transformers", 32, (100 * (4 * 4 - 3) ** 2) ** -0.5),
    ],
)
def test_ntk_base_is_fixed_or_grows_with_the_sequence(convention, tokens, speed):
    spec = f"rope(base=100, scaling=ntk, factor=4{convention})"
    close(speeds(spec, 4, tokens), [1.0, speed], 1e-6)


def test_ntk_of_transformers_leaves_a_single_pair_as_it_is():
    spec = "rope(scaling=ntk, factor=4, original=2, convention=transformers)"
    close(speeds(spec, 2, 9), [1.0], 1e-6)


def test_ntk_of_transformers_refuses_chunks_past_the_original_length():
    spec = "rope(scaling=ntk, factor=4, original=5, convention=transformers)"
    layer = mixers.build(f"attention({spec}, heads=2)", width=WIDTH).double()
    x = randn(1, 6, WIDTH)
    _, state = layer(x[:, :3])
    close(layer(x[:, 3:5], state)[0], layer(x[:, :5])[0][:, 3:])
    assert layer(x)[0].isfinite().all()
    with pytest.raises(OutlastError, match=r"at most 5 tokens in chunks, got 6: .* all tokens"):
        layer(x[:, 3:], state)


@pytest.mark.parametrize(
    ("convention", "heads", "exponents"),
    [
        ("paper", 4, [2, 4, 6, 8]),
        ("transformers", 4, [2, 4, 6, 8]),
        ("paper", 3, [8 / 3, 16 / 3, 8]),
        ("transformers", 3, [4, 8, 2]),
        ("paper", 6, [4 / 3, 8 / 3, 4, 16 / 3, 20 / 3, 8]),
        ("transformers", 6, [2, 4, 6, 8, 1, 3]),
        ("transformers", 12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
        ("transformers", 1, [8]),
    ],
)
def test_alibi_slopes_by_convention(convention, heads, exponents):
    module = schemes.build(f"alibi(convention={convention})", width=2 * heads, heads=heads)
    bias = module.bias(torch.arange(3), torch.arange(3))
    close(bias[0, :, 2, 1], [-(2**-e) for e in exponents], 1e-6)
    close(bias[0, :, 2, 0], [-2 * 2**-e for e in exponents], 1e-6)


class Largest(torch.utils._python_dispatch.TorchDispatchMode):
    """The most numbers any result of an operation has."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.numbers = max(self.numbers, tensor.numel())
        return result


@pytest.mark.parametrize(
    "spec",
    ["alibi", "xpos", "cope", "forget", "tra", "stick_breaking", "nope, weights=entmax"],
)
def test_no_full_table_of_scores_is_allocated(spec, monkeypatch):
    n, budget = 256, 2**13
    monkeypatch.setattr(blocks, "BUDGET", budget)
    layer = mixers.build(f"attention({spec}, heads=2)", width=WIDTH)
    x = randn(1, n, WIDTH).float().requires_grad_()
    with Largest() as largest:
        layer(x)[0].sum().backward()
    assert 2 * n * n == 16 * budget
    assert largest.numbers <= 2 * budget
