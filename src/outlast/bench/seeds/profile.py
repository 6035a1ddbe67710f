"""What the GPU does in one run, as torch's profiler sees it."""

from __future__ import annotations

import re

import torch

from outlast.bench.timing import Side

#: the kind of a kernel by its name: ours are called by what they do
KINDS = {
    "matmuls": re.compile("gemm|gemv|cutlass|cublas|nvjet|xmma|splitk", re.IGNORECASE),
    **{
        room: re.compile(f"^_?{room}_")
        for room in ("norm", "gelu", "glu", "lstm", "attention", "heads", "loss", "adamw")
    },
}


def busy_share(side: Side) -> float | None:
    """The share of one run's time in which the GPU does anything; None where it cannot be seen."""
    return covered(sorted((start, end) for _, start, end in kernel_spans(side)))


def kernel_spans(side: Side) -> list[tuple[str, float, float]]:
    """What the GPU did in one run, as far as it can be seen: names, starts and ends in us."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        side()
        torch.cuda.synchronize()
    return [
        (e.name, e.time_range.start, e.time_range.end)
        for e in profiler.events() or []
        if e.device_type.name == "CUDA"
    ]


def kind_of(name: str) -> str:
    """The kind of a kernel: a matmul, one of ours, or torch's sums, copies and the like."""
    return next((kind for kind, names in KINDS.items() if names.search(name)), "others")


def covered(spans: list[tuple[float, float]]) -> float | None:
    """The share of the time from the first start to the last end that sorted spans cover."""
    if not spans:
        return None
    reached = begun = spans[0][0]
    total = 0.0
    for start, end in spans:
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total / (reached - begun) if reached > begun else None
