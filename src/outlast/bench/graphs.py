"""A run as a CUDA graph, so that the host's share of it is gone; and what the GPU did in one."""

from __future__ import annotations

import re

import torch

from outlast.bench.timing import Side

#: what a kernel's name tells of its kind: ours are called by what they do
KINDS = {
    "products": re.compile("gemm|gemv|cutlass|cublas|nvjet|xmma|splitk", re.IGNORECASE),
    **{
        room: re.compile(f"^_?{room}_")
        for room in ("norm", "gelu", "glu", "lstm", "attention", "heads", "loss", "adamw")
    },
}


def captured(side: Side) -> Side:
    """Warm up on a side stream, record one run there, and give its replay."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            side()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    # on the same stream: a gradient is handed over where its leaf was first used
    with torch.cuda.graph(graph, stream=aside):
        # a graph knows addresses alone: what it reads (the side has it) and writes must outlive it
        kept = (side, side())

    def replay() -> object:
        graph.replay()
        return kept[1]

    return replay


def busy(side: Side) -> float | None:
    """The share of one run's time in which the GPU does anything; None where it cannot be seen."""
    return covered(sorted((start, end) for _, start, end in spans(side)))


def spans(side: Side) -> list[tuple[str, float, float]]:
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
    """The kind of a kernel: a product, one of ours, or torch's sums, copies and the like."""
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
