"""Linear recurrences against the layers of flash-linear-attention: a training step on a GPU.

``python benchmarks/recurrences_gpu.py`` with `fla-core`, `flash-linear-attention` and `einops`.

A time is that of a forward and a backward pass with the gradients of all weights and of the input.
The input is in bfloat16, as a norm gives it; weights are float32 under autocast, as in training
with ``precision=bf16``. Each side runs eagerly and as the replay of a CUDA graph. The sides take
turns, and each has the median of its times.

ours         plain torch: `OUTLAST_LIBRARIES=off`
ours by fla  the recurrence by fla's kernels: `OUTLAST_LIBRARIES=on`; also 4 seeds under vmap
fla          its layer of the same size, heads and options, under autocast
fla bf16     the same with its weights in bfloat16

fla has no layer of minLSTM or mLSTM. Beside `minlstm` stands its HGRN, another layer with the same
recurrence. Its Mamba-2 takes the kernels of `mamba_ssm`, or else plain torch. On a Hopper GPU with
a Triton from 3.4 to 3.7.0 fla refuses a part of the backward pass of `gated_deltanet` (issue 640).
Then torch's matmuls take the place of that part, in its layer too, and the row says so.

Kernels of fla choose their block sizes by timing them. To save time, a kernel of many choices has
those of 2 and 4 warps and 2 and 3 stages alone here, on all sides; `--tune all` has all.

``--errors`` compares recurrences with the loop over tokens in float64: the norm of the difference
over the norm, of outputs, the last state and each gradient. In `flips` all keys are the same and
beta is 2, as in a parity. Numbers go to standard output, as JSON lines.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from outlast.bench.graphs import captured_or_failing
from outlast.bench.precompile import precompile
from outlast.bench.timing import Bench, Side
from outlast.kernels import libraries
from outlast.kernels.linear_recurrence import decayed, delta, fla, reference
from outlast.machine import precision
from outlast.registry import mixers

HEADS, SEEDS, STATE = 4, 4, 64
LAYERS = ("deltanet", "gated_deltanet", "linear_attention", "mamba2", "minlstm", "mlstm")
#: layers whose recurrence fla's kernels can compute
BY_FLA = ("deltanet", "gated_deltanet", "linear_attention", "mamba2", "mlstm")
#: a kernel with at most so many choices keeps all
FEW = 8


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
    if name == "mamba2":
        return layers.Mamba2(**size, head_dim=2 * width // HEADS, state_size=STATE)
    if name == "minlstm":
        return layers.HGRNAttention(hidden_size=width, layer_idx=0)
    raise RuntimeError("fla has no such layer")


def refused() -> bool:
    """Whether fla refuses a part of the gated backward pass here."""
    from fla.ops.common import chunk_o

    late = chunk_o.TRITON_ABOVE_3_4_0 and not chunk_o.TRITON_ABOVE_3_7_1
    return bool(late and chunk_o.IS_NVIDIA_HOPPER)


def instead(
    q: Tensor, k: Tensor, v: Tensor, do: Tensor, h: Tensor, dh: Tensor, **more: Any
) -> tuple[Tensor, ...]:
    """fla's `chunk_bwd_dqkwg` in torch's matmuls."""
    if more.get("state_v_first"):
        h, dh = h.mT, dh.mT
    d_y = do * more["scale"]
    return fla._read_gradients(q, k, v, d_y, h, dh, more["g"], more.get("w"), more.get("dv"))  # type: ignore[return-value]


def note(name: str) -> str:
    """What is to be known of fla's layer."""
    if name == "minlstm":
        return "HGRN, another layer"
    if name == "mamba2":
        from fla.layers import mamba2

        return "" if mamba2.is_fast_path_available else "plain torch: mamba_ssm is not installed"
    return "a part by torch's matmuls" if name == "gated_deltanet" and refused() else ""


@contextmanager
def switched(value: str) -> Iterator[None]:
    """The switch of libraries, for as long as the context lasts."""
    with patch.dict(os.environ, {libraries.SWITCH: value}):
        yield


def whole(side: Side) -> Side:
    """A side whose errors are all of one kind."""

    def run() -> object:
        try:
            return side()
        except Exception as error:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error

    return run


def need_fla(switch: str) -> None:
    """Refuse a side that would fall back to plain torch."""
    if switch == "on" and not libraries.installed("fla"):
        raise ImportError("fla-core is not installed")


def step_of(layer: nn.Module, x: Tensor, switch: str = "off") -> Side:
    """A forward pass under autocast and the gradients of all weights and of x."""
    need_fla(switch)
    leaves, upstream = [x, *layer.parameters()], torch.randn_like(x)

    def step() -> object:
        with switched(switch), torch.autocast(x.device.type, torch.bfloat16):
            y = layer(x)[0]
        return torch.autograd.grad(y, leaves, upstream.to(y.dtype), allow_unused=True)

    return whole(step)


def seeds_of(layers: Sequence[nn.Module], x: Tensor) -> Side:
    """The same of several seeds under vmap; x [seeds, batch, tokens, width]."""
    need_fla("on")
    weights, buffers = stack_module_state(list(layers))
    leaves, upstream = [x, *weights.values()], torch.randn_like(x)

    def one(weights: Any, buffers: Any, x: Tensor) -> Tensor:
        y: Tensor = functional_call(layers[0], (weights, buffers), (x,))[0]
        return y

    def step() -> object:
        with switched("on"), torch.autocast(x.device.type, torch.bfloat16):
            y = vmap(one)(weights, buffers, x)
        return torch.autograd.grad(y, leaves, upstream.to(y.dtype))

    return whole(step)


def sides_of(name: str, width: int, options: argparse.Namespace) -> dict[str, Callable[[], Side]]:
    """What makes each side; making one may fail, too."""
    shape = (options.batch, options.tokens, width)

    def x(*more: int) -> Tensor:
        made = torch.randn(*more, *shape, device=options.device)
        return made.to(torch.bfloat16).requires_grad_()

    def ours() -> nn.Module:
        return mixers.build(
            f"{name}(heads={HEADS})" if name != "minlstm" else name, width=width
        ).to(options.device)

    sides: dict[str, Callable[[], Side]] = {"ours": lambda: step_of(ours(), x())}
    if name in BY_FLA:
        sides["ours by fla"] = lambda: step_of(ours(), x(), "on")
        sides[f"ours by fla, {SEEDS} seeds"] = lambda: seeds_of(
            [ours() for _ in range(SEEDS)], x(SEEDS)
        )
    if name != "mlstm":
        sides["fla"] = lambda: step_of(peer(name, width).to(options.device), x())
        sides["fla bf16"] = lambda: step_of(peer(name, width).to(options.device).bfloat16(), x())
    return sides


# ---- times ---------------------------------------------------------------------------------------


def failing(error: Exception) -> Side:
    """A side that fails when it is timed."""

    def fail() -> None:
        raise RuntimeError(f"{type(error).__name__}: {error}")

    return fail


def measure(bench: Bench, name: str, width: int, options: argparse.Namespace) -> None:
    """All sides of a layer, eagerly and as graphs, and each against fla's in the same way."""
    sides: dict[str, Side] = {}
    graphs = options.device == "cuda"
    for side, make in sides_of(name, width, options).items():
        try:
            torch.manual_seed(0)
            sides[f"{side} / eager"] = made = make()
            if graphs:
                sides[f"{side} / graph"] = captured_or_failing(made)
        except Exception as error:  # whatever a library raises
            sides[f"{side} / eager"] = failing(error)
    times, failed = bench.times(sides)
    remark = note(name) if "fla / eager" in times else ""
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
        say(**row, **({"note": remark} if remark and side.startswith("fla") else {}))
    sides.clear()
    gc.collect()
    if graphs:
        torch.cuda.empty_cache()


def profile(name: str, width: int, options: argparse.Namespace, most: int = 14) -> None:
    """Which kernels take the time of a step."""
    from torch.profiler import ProfilerActivity

    for side, make in sides_of(name, width, options).items():
        if side not in ("ours by fla", "fla"):
            continue
        try:
            step = make()
            step()
            torch.cuda.synchronize()
            with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as seen:
                step()
                torch.cuda.synchronize()
            events = sorted(seen.key_averages(), key=lambda e: -e.self_device_time_total)
            total = sum(e.self_device_time_total for e in events)
            top = {e.key[:70]: [e.count, round(e.self_device_time_total)] for e in events[:most]}
            say(layer=name, width=width, side=side, us=round(total), kernels=top)
        except Exception as error:
            say(layer=name, width=width, side=side, error=f"profile: {error}"[:200])


# ---- errors --------------------------------------------------------------------------------------


def drawn(kind: str, d: int, e: int, tokens: int, flips: bool) -> list[Tensor]:
    """Inputs of a recurrence in float64, on the CPU."""
    draw = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(2, HEADS, *shape, generator=draw, dtype=torch.float64)

    q, k = (nn.functional.normalize(normal(tokens, d), dim=-1) for _ in range(2))
    v, state = normal(tokens, e), normal(d, e)
    log_decay = -0.1 * normal(tokens, 1).square()
    if kind == "decayed_sum":
        return [q, k, v, log_decay, state]
    beta = 2 * (2 * normal(tokens, 1)).sigmoid()
    if flips:
        k, beta, log_decay = k[:, :, :1].expand_as(k), torch.full_like(beta, 2.0), 0 * log_decay
    return [q, k, v, beta, log_decay, state]


def results(run: Callable[..., Any], inputs: list[Tensor]) -> list[Tensor]:
    """Outputs, the last state, and the gradients of all inputs; autocast in the forward pass."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    device = leaves[0].device.type
    with torch.autocast(device, torch.bfloat16):
        y, state = run(*leaves)
    draw = torch.Generator().manual_seed(1)
    above = [
        torch.randn(t.shape, generator=draw, dtype=torch.float64).to(t.device, t.dtype)
        for t in (y, state)
    ]
    return [y.detach(), state.detach(), *torch.autograd.grad((y, state), leaves, above)]


def own_delta(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The function of fla's DeltaNet, which knows of no decay."""
    from fla.ops.delta_rule import chunk_delta_rule

    turned = (x.bfloat16().transpose(1, 2) for x in (q, k, v))
    y, last = chunk_delta_rule(
        *turned,
        beta.squeeze(-1).transpose(1, 2),
        scale=1.0,
        initial_state=state,
        output_final_state=True,
    )
    return y.transpose(1, 2), last + 0 * log_decay.sum()


def errors(width: int, options: argparse.Namespace) -> None:
    """How far each way is from the loop over tokens in float64."""
    d = width // HEADS
    cases = {
        ("delta_rule", False): (d, d),
        ("delta_rule", True): (d, d),
        ("decayed_sum", False): (STATE, 2 * d),
    }
    for (kind, flips), (keys, values) in cases.items():
        exact = [x.to(options.device) for x in drawn(kind, keys, values, options.tokens, flips)]
        names = ["y", "last", "q", "k", "v", "beta", "log_decay", "state"]
        if kind == "decayed_sum":
            names.remove("beta")
        ways: dict[str, Callable[..., Any]] = {
            "ours": (delta if kind == "delta_rule" else decayed).in_chunks,
            "ours by fla": getattr(fla, kind),
        }
        if flips:
            ways["chunk_delta_rule of fla"] = own_delta
        wanted = results(getattr(reference, kind), exact)
        for way, run in ways.items():
            row = {"recurrence": kind, "flips": flips, "width": width, "way": way}
            try:
                got = results(run, [x.float() for x in exact])
                off = (float((a - b).norm() / b.norm()) for a, b in zip(got, wanted, strict=True))
                numbers = {n: float(f"{o:.1e}") for n, o in zip(names, off, strict=True)}
                say(**row, errors=numbers)
            except Exception as error:
                say(**row, error=f"{type(error).__name__}: {error}"[:200])


# ---- fewer choices, compiled beforehand ----------------------------------------------------------


def limit(everything: bool, compile_only: bool = False) -> None:
    """Leave kernels of fla fewer choices, and time them for less long."""
    import fla.layers  # noqa: F401  (which loads the kernels)
    from triton.runtime.autotuner import Autotuner
    from triton.testing import do_bench

    def quick(run: Callable[[], object], quantiles: Sequence[float]) -> Any:
        if compile_only:
            run()
            return [0.0] * len(quantiles)
        return do_bench(run, warmup=2, rep=10, quantiles=quantiles)

    for tuner in (each for each in gc.get_objects() if isinstance_safe(each, Autotuner)):
        tuner.__dict__["do_bench"], tuner.cache_results = quick, False
        if not everything and len(tuner.configs) > FEW:
            few = [c for c in tuner.configs if c.num_warps in (2, 4) and c.num_stages in (2, 3)]
            tuner.configs = few or tuner.configs


def isinstance_safe(each: object, kind: type) -> bool:
    """`isinstance` that wakes no lazy object."""
    return kind in type(each).__mro__


def compile_steps(
    name: str, width: int, sides: tuple[str, ...], options: argparse.Namespace
) -> None:
    """In a process of its own: compile what some sides need."""
    prepare(options, compile_only=True)
    with precision("bf16", torch.device(options.device)):
        for side in sides:
            sides_of(name, width, options)[side]()()


def prepare(options: argparse.Namespace, compile_only: bool = False) -> None:
    """Set fla up; where it is not installed, its sides will say so."""
    try:
        limit(options.tune == "all", compile_only)
        if refused():
            import fla.ops.gated_delta_rule.chunk as gated

            gated.chunk_bwd_dqkwg = instead
    except ImportError as error:
        say(error=f"fla: {error}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", nargs="+", choices=LAYERS, default=[*LAYERS])
    parser.add_argument("--widths", nargs="+", type=int, default=[128, 256, 512])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=150, help="at most, to compile beforehand")
    parser.add_argument("--tune", choices=["few", "all"], default="few")
    parser.add_argument("--errors", action="store_true")
    parser.add_argument("--profile", action="store_true", help="kernels at the last width")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args(arguments)
    began = time.perf_counter()
    if options.device == "cuda":
        import recurrences_gpu  # this file, under the name by which a child finds it

        jobs = [
            (name, width, sides, options)
            for sides, names in ((("ours by fla",), BY_FLA), (("fla", "fla bf16"), LAYERS[:-1]))
            for width in options.widths[::-1]
            for name in names[::-1]
            if name in options.layers
        ]
        precompile(recurrences_gpu.compile_steps, jobs, options.seconds)
        say(device=torch.cuda.get_device_name(), torch=torch.__version__)
    prepare(options)
    say(seconds=round(time.perf_counter() - began), of="compiling")
    bench = Bench(torch.device(options.device), 1e6, options.repeats)
    with precision("bf16", bench.device):
        for width in options.widths:
            if options.errors:
                errors(width, options)
            for name in options.layers:
                measure(bench, name, width, options)
        for name in options.layers if options.profile else ():
            profile(name, options.widths[-1], options)
    say(seconds=round(time.perf_counter() - began), of="all")


if __name__ == "__main__":
    main()
