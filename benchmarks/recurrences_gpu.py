"""Linear recurrences against the layers of flash-linear-attention: a training step on a GPU.

``python benchmarks/recurrences_gpu.py`` with `fla-core`, `flash-linear-attention` and `einops`.

A time is that of a forward and a backward pass with the gradients of all weights and of the input.
The input is in bfloat16, as a norm gives it; weights are float32 under autocast, as in training
with ``precision=bf16``. Each side runs eagerly and as the replay of a CUDA graph. The sides take
turns, and each has the median of its times.

ours      plain torch; also 4 seeds under vmap, of which the time is that of one
fla       its layer of the same size, heads and options, under autocast
fla bf16  the same with its weights in bfloat16

Without `mamba_ssm` fla's Mamba-2 is plain torch. On a Hopper GPU with a Triton from 3.4 to 3.7.0
fla refuses the backward pass of `gated_deltanet` (issue 640). A side that fails is one line with
its error. fla chooses block sizes by timing them. To save time, a kernel of many choices has those
of 2 and 4 warps and 2 and 3 stages alone here; `--tune all` has all.

``--errors`` compares the delta rule, without a decay, with the loop over tokens in float64: the
norm of the difference over the norm, of outputs, the last state and each gradient. In `flips` all
keys are the same and beta is 2, as in a parity. `rounded inputs` is the loop in float64 with q, k
and v rounded to bfloat16, as fla's kernels take them. Numbers go to standard output, as JSON lines.

``--profile`` adds what an eager step of ours and of fla spends its time on: milliseconds on the
GPU and the number of kernels, by what the name of a kernel says that it does.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from outlast.bench.graphs import captured
from outlast.bench.timing import Bench, Side
from outlast.kernels.linear_recurrence import delta_rule, reference
from outlast.machine import precision
from outlast.registry import mixers

HEADS, SEEDS, STATE = 4, 4, 64
LAYERS = ("deltanet", "gated_deltanet", "linear_attention", "mamba2")
#: a kernel with at most so many choices keeps all
FEW = 8
#: what a kernel does, by the first of these that its name has; `other` is the rest, such as
#: kernels that were written for a layer
DOES = {
    "matmul": r"gemm|nvjet|cutlass|xmma|splitk|trsm|triangular",
    "copy": r"copy|cat|fill|memset|memcpy",
    "reduction": r"reduce|softmax|scan|cumsum",
    "pointwise": r"elementwise",
}
#: eager steps that are profiled
PROFILED = 3


def say(**row: object) -> None:
    """One JSON line."""
    print(json.dumps(row), flush=True)


# ---- the layers ----------------------------------------------------------------------------------


def peer(name: str, width: int) -> nn.Module:
    """The layer of fla that has the size, heads and options of ours."""
    from fla import layers

    size: dict[str, Any] = {"hidden_size": width, "num_heads": HEADS, "layer_idx": 0}
    negative = {"allow_neg_eigval": True, "conv_bias": True}
    if name == "deltanet":
        return layers.DeltaNet(**size, **negative)
    if name == "gated_deltanet":
        return layers.GatedDeltaNet(**size, **negative, head_dim=width // HEADS, expand_v=1)
    if name == "linear_attention":
        options = {"feature_map": "elu", "do_feature_map_norm": True, "output_norm": "identity"}
        return layers.LinearAttention(**size, **options)
    return layers.Mamba2(**size, head_dim=2 * width // HEADS, state_size=STATE)


def step_of(layer: nn.Module, x: Tensor) -> Side:
    """A forward pass under autocast and the gradients of all weights and of x."""
    leaves, upstream = [x, *layer.parameters()], torch.randn_like(x)

    def step() -> object:
        with torch.autocast(x.device.type, torch.bfloat16):
            y = layer(x)[0]
        return torch.autograd.grad(y, leaves, upstream.to(y.dtype), allow_unused=True)

    return step


def seeds_of(layers: Sequence[nn.Module], x: Tensor) -> Side:
    """The same of several seeds under vmap; x [seeds, batch, tokens, width]."""
    weights, buffers = stack_module_state(list(layers))
    leaves, upstream = [x, *weights.values()], torch.randn_like(x)

    def one(weights: Any, buffers: Any, x: Tensor) -> Tensor:
        y: Tensor = functional_call(layers[0], (weights, buffers), (x,))[0]
        return y

    def step() -> object:
        with torch.autocast(x.device.type, torch.bfloat16):
            y = vmap(one)(weights, buffers, x)
        return torch.autograd.grad(y, leaves, upstream.to(y.dtype))

    return step


def sides_of(name: str, width: int, options: argparse.Namespace) -> dict[str, Callable[[], Side]]:
    """What makes each side."""
    shape = (options.batch, options.tokens, width)

    def x(*more: int) -> Tensor:
        made = torch.randn(*more, *shape, device=options.device)
        return made.to(torch.bfloat16).requires_grad_()

    def ours() -> nn.Module:
        return mixers.build(f"{name}(heads={HEADS})", width=width).to(options.device)

    def theirs() -> nn.Module:
        return peer(name, width).to(options.device)

    return {
        "ours": lambda: step_of(ours(), x()),
        f"ours, {SEEDS} seeds": lambda: seeds_of([ours() for _ in range(SEEDS)], x(SEEDS)),
        "fla": lambda: step_of(theirs(), x()),
        "fla bf16": lambda: step_of(theirs().bfloat16(), x()),
    }


# ---- times ---------------------------------------------------------------------------------------


def late(make: Callable[[], Side]) -> Side:
    """A side that is made at its first run. Whatever goes wrong is a RuntimeError."""
    made: list[Side] = []

    def run() -> object:
        try:
            if not made:
                torch.manual_seed(0)
                made.append(make())
            return made[0]()
        except Exception as error:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error

    return run


def replay_of(make: Callable[[], Side]) -> Callable[[], Side]:
    """What makes the replay of a side as a CUDA graph."""
    return lambda: captured(make())


def measure(bench: Bench, name: str, width: int, options: argparse.Namespace) -> None:
    """All sides of a layer, eagerly and as graphs, and each against fla's in the same way."""
    sides: dict[str, Side] = {}
    for side, make in sides_of(name, width, options).items():
        sides[f"{side} / eager"] = late(make)
        if options.device == "cuda":
            sides[f"{side} / graph"] = late(replay_of(make))
    times, failed = bench.times(sides)
    for key in sides:
        side, _, way = key.partition(" / ")
        row: dict[str, object] = {"layer": name, "width": width, "side": side, "way": way}
        if key in failed:
            say(**row, error=failed[key])
            continue
        ms = times[key] / (SEEDS if "seeds" in side else 1)
        row["ms"] = round(ms, 3)
        if first := times.get(f"fla / {way}"):
            row["times_fla"] = round(ms / first, 2)
        say(**row)
    sides.clear()
    gc.collect()
    if options.device == "cuda":
        torch.cuda.empty_cache()


def profile(name: str, width: int, options: argparse.Namespace) -> None:
    """What an eager step of ours and of fla spends its time on."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    makers = sides_of(name, width, options)
    for side in ("ours", "fla"):
        try:
            step = late(makers[side])
            step()
            with profiled(activities=[ProfilerActivity.CUDA]) as seen:
                for _ in range(PROFILED):
                    step()
                torch.cuda.synchronize()
        except RuntimeError as error:
            say(layer=name, width=width, profiled=side, error=str(error)[:200])
            continue
        ms: dict[str, float] = defaultdict(float)
        kernels: dict[str, float] = defaultdict(float)
        largest: dict[str, float] = {}
        for row in seen.key_averages():
            if row.device_type.name != "CUDA":  # a call of the host
                continue
            key = row.key.lower()
            does = next((d for d, names in DOES.items() if re.search(names, key)), "other")
            ms[does] += row.self_device_time_total / 1000 / PROFILED
            kernels[does] += row.count / PROFILED
            largest[row.key[:120]] = row.self_device_time_total / 1000 / PROFILED
        first = sorted(largest, key=largest.__getitem__, reverse=True)[:8]
        say(
            layer=name, width=width, profiled=side,
            ms={d: round(t, 3) for d, t in ms.items()},
            kernels={d: round(n) for d, n in kernels.items()},
            largest={key: round(largest[key], 3) for key in first},
        )  # fmt: skip


# ---- errors --------------------------------------------------------------------------------------


def drawn(d: int, tokens: int, flips: bool) -> dict[str, Tensor]:
    """Inputs of the delta rule in float64, on the CPU."""
    draw = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(2, HEADS, *shape, generator=draw, dtype=torch.float64)

    q, k = (nn.functional.normalize(normal(tokens, d), dim=-1) for _ in range(2))
    v, state, beta = normal(tokens, d), normal(d, d), 2 * (2 * normal(tokens, 1)).sigmoid()
    if flips:
        k, beta = k[:, :, :1].expand_as(k), torch.full_like(beta, 2.0)
    return {"q": q, "k": k, "v": v, "beta": beta, "state": state}


def results(run: Callable[..., Any], inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Outputs, the last state, and the gradients of all inputs; autocast in the forward pass."""
    leaves = {name: x.detach().clone().requires_grad_() for name, x in inputs.items()}
    with torch.autocast(leaves["q"].device.type, torch.bfloat16):
        y, state = run(**leaves)
    draw = torch.Generator().manual_seed(1)
    above = [
        torch.randn(t.shape, generator=draw, dtype=torch.float64).to(t.device, t.dtype)
        for t in (y, state)
    ]
    gradients = torch.autograd.grad((y, state), list(leaves.values()), above)
    return {"y": y.detach(), "last": state.detach(), **dict(zip(leaves, gradients, strict=True))}


def without_decay(rule: Callable[..., Any]) -> Callable[..., Any]:
    """A delta rule whose decay is 1."""
    return lambda beta, **more: rule(beta=beta, log_decay=torch.zeros_like(beta), **more)


def rounded(q: Tensor, k: Tensor, v: Tensor, **more: Tensor) -> Any:
    """The loop over tokens with q, k and v rounded to bfloat16."""
    q, k, v = (x.bfloat16().to(x.dtype) for x in (q, k, v))
    return without_decay(reference.delta_rule)(q=q, k=k, v=v, **more)


def of_fla(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The function of fla's DeltaNet."""
    from fla.ops.delta_rule import chunk_delta_rule

    q, k, v = (x.bfloat16().transpose(1, 2) for x in (q, k, v))
    beta = beta.squeeze(-1).transpose(1, 2)
    y, last = chunk_delta_rule(
        q, k, v, beta, scale=1.0, initial_state=state, output_final_state=True
    )
    return y.transpose(1, 2), last


def errors(width: int, options: argparse.Namespace) -> None:
    """How far each way is from the loop over tokens in float64."""
    for flips in (False, True):
        inputs = drawn(width // HEADS, options.tokens, flips)
        exact = {name: x.to(options.device) for name, x in inputs.items()}
        single = {name: x.float() for name, x in exact.items()}
        wanted = results(without_decay(reference.delta_rule), exact)
        ways: dict[str, tuple[Callable[..., Any], dict[str, Tensor]]] = {
            "rounded inputs": (rounded, exact),
            "ours": (without_decay(delta_rule), single),
            "fla": (of_fla, single),
        }
        for way, (run, given) in ways.items():
            row: dict[str, object] = {"delta_rule": way, "width": width, "flips": flips}
            try:
                got = results(run, given)
                off = {n: float((got[n] - t).norm() / t.norm()) for n, t in wanted.items()}
                say(**row, errors={n: float(f"{o:.1e}") for n, o in off.items()})
            except Exception as error:
                say(**row, error=f"{type(error).__name__}: {error}"[:200])


# ---- all of it -----------------------------------------------------------------------------------


def limit() -> None:
    """Leave kernels of fla fewer choices."""
    import fla.layers  # noqa: F401  (which loads the kernels)
    from triton.runtime.autotuner import Autotuner

    for tuner in [each for each in gc.get_objects() if Autotuner in type(each).__mro__]:
        few = [c for c in tuner.configs if c.num_warps in (2, 4) and c.num_stages in (2, 3)]
        if len(tuner.configs) > FEW and few:
            tuner.configs = few


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", nargs="+", choices=LAYERS, default=[*LAYERS])
    parser.add_argument("--widths", nargs="+", type=int, default=[128, 256, 512])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--tune", choices=["few", "all"], default="few")
    parser.add_argument("--errors", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args(arguments)
    if options.device == "cuda":
        say(device=torch.cuda.get_device_name(), torch=torch.__version__)
    if options.tune == "few":
        try:
            limit()
        except ImportError as error:  # each side of fla will say so, too
            say(error=f"fla: {error}")
    bench = Bench(torch.device(options.device), 1e6, options.repeats)
    with precision("bf16", bench.device):
        for width in options.widths:
            if options.errors:
                errors(width, options)
            for name in options.layers:
                measure(bench, name, width, options)
                if options.profile:
                    profile(name, width, options)


if __name__ == "__main__":
    main()
