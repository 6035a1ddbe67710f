"""`python -m docs_site.pictures`: the pictures of the pages under "Explanation".

Each is computed by the code that it explains: a method's own controls, the operations' own weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from docs_site import DOCS
from outlast.kernels.tra import threshold_relative_attention
from outlast.methods.base import Control, Setup
from outlast.registry import methods
from outlast.reporting.style import INK, MUTED, PALETTE, drawing

#: of the example of TRA: what each token is, and its score for the last one
TOKENS = ("w", "1", "i", "0", "w", "0", "i", "1", "r")
SCORES = (2.0, -1.0, -2.0, -1.5, 2.0, -1.0, -2.0, -1.2, -0.5)
#: one more kept key of distance lowers a logit by so much
GATE = -1.5


def dilution() -> Figure:
    """What weight a softmax leaves on one key that scores higher than all others."""
    figure, axes = _panels(1, "keys that compete", height=2.4)
    lengths = [2**i for i in range(3, 13)]
    for number, gap in enumerate((4, 6, 8)):
        scores = [torch.cat([torch.tensor([float(gap)]), torch.zeros(n - 1)]) for n in lengths]
        plain = [float(s.softmax(0)[0]) for s in scores]
        # the factor of `attention(weights=scalable)` at its start: 0.43 log n
        scaled = [float((0.43 * math.log(n) * s).softmax(0)[0])
                  for n, s in zip(lengths, scores, strict=True)]  # fmt: skip
        colour = PALETTE[number]
        axes[0].plot(lengths, plain, color=colour, label=f"softmax, score {gap}")
        axes[0].plot(lengths, scaled, color=colour, linestyle="--", label=f"scalable, {gap}")
    axes[0].set_xscale("log", base=2)
    axes[0].set_xticks(lengths[1::2], [f"{n:,}" for n in lengths[1::2]])
    axes[0].set_ylabel("weight on the right key")
    axes[0].axvline(32, color=MUTED, linewidth=0.8)
    axes[0].annotate("trained to here", (32, 0.03), (36, 0.03), color=MUTED, fontsize=7)
    figure.legend(ncols=3, loc="outside upper center", fontsize=7)
    return figure


def phases() -> Figure:
    """Gate, rate and losses in each mode of DAT, as the method itself sets them."""
    modes = ("skip", "freeze", "ramp", "detach")
    figure, axes = _panels(len(modes), "training step", height=1.1)
    setup = Setup(steps=2000, parts=("state", "running", "recall"), lengths=(2, 12),
                  model="lstm > attention > mlp")  # fmt: skip
    steps = range(0, setup.steps, 10)
    readings: list[tuple[str, Callable[[Control], float]]] = [
        ("attention: gate", lambda c: c.gate["attention"]),
        ("attention: rate", lambda c: c.rate["attention"] if c.gate["attention"] else 0.0),
        ("attention: gradient upstream", lambda c: c.upstream_grad["attention"]),
        ("recall loss", lambda c: c.loss_weights["recall"]),
    ]
    for mode, axis in zip(modes, axes, strict=True):
        method = methods.build(f"dat(mode={mode}, switch=0.3)")
        state = method.begin(setup)
        controls = []
        for step in range(setup.steps):
            if step and step % 50 == 0:
                losses = {part: [0.5] * 50 for part in setup.parts}
                method.observe(step, losses, state)
            control = Control.plain(setup)
            method.control(step, state, control)
            controls.append(control)
        for number, (name, read) in enumerate(readings):
            values = [read(controls[step]) + 0.015 * number for step in steps]
            axis.plot(steps, values, color=PALETTE[number], label=name, linewidth=1.2)
        axis.set_title(f"mode={mode}")
        axis.set_ylim(-0.08, 1.15)
        axis.set_yticks([0, 1])
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, ncols=4, loc="outside upper left", fontsize=7)
    return figure


def threshold() -> Figure:
    """One query of TRA on a flip-flop row: scores, distances over kept keys, weights."""
    scores = torch.tensor(SCORES)
    places = range(len(SCORES))
    weights = _tra_weights(scores)
    plain = scores.softmax(0)
    kept = scores > 0
    distance = kept.flip(0).cumsum(0).flip(0) * kept
    figure, axes = _panels(3, "", height=1.25)
    colours = [PALETTE[0] if keep else PALETTE[6] for keep in kept]
    axes[0].bar(places, SCORES, color=colours)
    axes[0].axhline(0, color=INK, linewidth=0.8)
    axes[0].set_title("1. scores of the last token; those not above 0 are dropped (grey)")
    axes[1].bar(places, distance.tolist(), color=PALETTE[4])
    axes[1].set_title("2. distance, counted over the kept keys alone")
    axes[2].bar([p - 0.2 for p in places], plain.tolist(), 0.4, color=PALETTE[6], label="softmax")
    axes[2].bar([p + 0.2 for p in places], weights.tolist(), 0.4, color=PALETTE[1], label="TRA")
    axes[2].set_title("3. weights: the nearest write counts")
    axes[2].legend(loc="upper left", bbox_to_anchor=(0.62, 1.0))
    for axis in axes:
        axis.set_xticks(list(places), list(TOKENS))
    return figure


def _tra_weights(scores: torch.Tensor) -> torch.Tensor:
    """The weights of one query: what attention gives for values that are the unit vectors."""
    n = len(scores)
    q, k = torch.zeros(1, 1, 1, n), torch.eye(n)[None, None]
    q[0, 0, 0] = scores
    gate = torch.full((1, 1, 1), GATE)
    out = threshold_relative_attention(q, k, k, gate, scale=1.0, backend="reference")
    return out[0, 0, 0]


def _panels(rows: int, label: str, height: float) -> tuple[Figure, list[Any]]:
    figure = Figure(figsize=(6.4, rows * height + 0.5), layout="constrained")
    axes = [figure.add_subplot(rows, 1, row + 1) for row in range(rows)]
    axes[-1].set_xlabel(label)
    return figure, axes


PICTURES = {
    "explain-dilution": dilution,
    "explain-phases": phases,
    "explain-threshold": threshold,
}


def draw(folder: Path) -> list[Path]:
    """Write every picture into a folder."""
    paths = []
    for name, make in PICTURES.items():
        with drawing():
            figure = make()
            paths.append(folder / f"{name}.png")
            figure.savefig(paths[-1], dpi=160, facecolor="white", metadata={"Software": None})
    return paths


if __name__ == "__main__":
    draw(DOCS / "img")
