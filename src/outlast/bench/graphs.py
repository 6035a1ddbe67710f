"""A run as a CUDA graph, so that the host's share of the time is gone."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from outlast.bench.timing import FAILURES, Bench, Side

REPLAYED = "replay of a CUDA graph"


def captured(side: Side) -> Side:
    """Warm up on a side stream, record one run there, and return its replay."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            side()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # on the same stream: a gradient is handed over where its leaf was first used
    with torch.cuda.graph(graph, stream=stream):
        # a graph knows addresses alone: what it reads (the side has it) and writes must outlive it
        kept = (side, side())

    def replay() -> object:
        graph.replay()
        return kept[1]

    return replay


def compare_replays(
    bench: Bench,
    section: str,
    what: str,
    sides: Mapping[str, Side],
    errors: Mapping[str, float],
    note: str,
) -> None:
    """`Bench.compare`, on a GPU with each side as the replay of a CUDA graph, which is noted."""
    if bench.device.type == "cuda":
        sides = {name: captured_or_failing(side) for name, side in sides.items()}
        note = f"{note}, {REPLAYED}"
    bench.compare(section, what, sides, errors, note)


def captured_or_failing(side: Side) -> Side:
    """The replay of a side; one that cannot be captured fails when it is timed."""
    try:
        return captured(side)
    except FAILURES as error:
        reason = str(error)

    def fail() -> None:
        raise RuntimeError(reason)

    return fail
