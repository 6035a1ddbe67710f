"""`abc(bias)`: a fixed bias, found in the attention of a trained model (Duan et al., 2310.11984).

Attention bias calibration has two stages. First a model learns short sequences. From its attention
on those that it gets right, averaged along lines, comes a bias for every length. Entries that are
not above mean + c std become -inf. Then a new model is trained with that bias. The paper reports
over 99 % at ten times the length on arithmetic, with an encoder and a decoder.

`bias` names the lines of each head, heads divided by ``;``. One part alone is for all heads::

    d1              each query sees the token one before it
    d0 d3=-0.5      itself, and with a bias of -0.5 the token three before it
    p0              the first token of the sequence
    all             everything, without a bias

`outlast.analysis.calibration` writes it from a trained model: the two stages are there. That a line
has its average less the largest one as bias is from memory. Ours: a line is a distance or a place,
so what extends is what does not depend on the length. In `addition` the digits to be added lie
farther apart in longer numbers, and a row of ours has no second axis as the cross-attention of the
paper has. A query on no line sees itself: its own token has at least a bias of -30. Where two lines
cross, the larger bias counts.

Path: a bias of positions alone, so torch's fused attention while its table fits (`attention`).
"""

from __future__ import annotations

import math
import re
from typing import ClassVar

import torch
from torch import Tensor

from outlast.errors import bad_value
from outlast.mixers.attention.schemes.base import Scheme, distances
from outlast.registry import schemes

#: of a query's own token, if no line says otherwise: almost nothing beside any other token
ITSELF = -30.0
#: the farthest distance or place of a line, and the largest bias in size
FARTHEST, LARGEST = 100_000, 1000.0
ALL = "all"
_LINE = re.compile(r"([dp])(\d{1,7})(?:=(-?\d+(?:\.\d+)?(?:e-?\d+)?))?")

#: the bias of each distance and of each place that is on a line, for one head
Lines = tuple[dict[int, float], dict[int, float]]


def read_lines(bias: str, heads: int) -> list[Lines | None]:
    """The lines of each head; None where a head sees everything."""
    accepted = (
        f'lines such as "d1 p0=-0.5" for all heads, or such a part for each of {heads} heads with '
        f"; between, distances and places up to {FARTHEST}, or {ALL}"
    )
    parts = [part.split() for part in bias.split(";")]
    if not all(parts) or len(parts) not in (1, heads):
        raise bad_value("bias", bias, accepted)
    read: list[Lines | None] = []
    for words in parts * (heads if len(parts) == 1 else 1):
        lines: Lines = ({}, {})
        for word in words if words != [ALL] else ():
            match = _LINE.fullmatch(word)
            if not match or int(match[2]) > FARTHEST or abs(float(match[3] or 0)) > LARGEST:
                raise bad_value("bias", bias, accepted)
            lines["dp".index(match[1])][int(match[2])] = float(match[3] or 0)
        read.append(None if words == [ALL] else lines)
    return read


@schemes.register("abc")
class Abc(Scheme):
    """Attention bias calibration: each head sees the lines that a trained model looked along.

    Args:
        bias: The lines of each head, as `outlast.analysis.calibration` writes them.
    """

    masks: ClassVar[bool] = True
    by_distance: Tensor
    by_place: Tensor

    def __init__(self, width: int, heads: int, bias: str) -> None:
        super().__init__(width, heads)
        read = read_lines(bias, heads)
        for axis, name in enumerate(("by_distance", "by_place")):
            size = max([0, *(number + 1 for lines in read if lines for number in lines[axis])])
            rows = [
                [0.0] * (size + 1)
                if lines is None
                else [lines[axis].get(number, -math.inf) for number in range(size + 1)]
                for lines in read
            ]
            self.register_buffer(name, torch.tensor(rows), persistent=False)

    def bias(self, positions: Tensor, keys: Tensor) -> Tensor:
        back = distances(positions, keys)
        along = self.by_distance[:, back.clamp(0, self.by_distance.shape[1] - 1)]
        at = self.by_place[:, keys.clamp_max(self.by_place.shape[1] - 1)]
        bias = torch.maximum(along, at[:, None])
        return torch.where(back == 0, bias.clamp_min(ITSELF), bias).unsqueeze(0)
