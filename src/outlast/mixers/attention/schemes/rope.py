"""`rope`: queries and keys are rotated by their position (Su et al., 2104.09864).

Pair i of a head of width d turns by position * base^(-2i/d), so scores depend on the distance.
To go past the training length `original`, by `factor`, on trained weights:

    rope(scaling=linear, factor=4)                every position / factor (2306.15595)
    rope(scaling=ntk, factor=4)                   base * factor^(d/(d-2)) ("NTK-aware")
    rope(scaling=yarn, factor=4, original=512)    slow pairs / factor, fast ones as they are, a
                                                  ramp between (2309.00071)

YaRN's ramp runs from pairs that turn once within `original` to those that turn 32 times, and its
scores are multiplied by (0.1 ln factor + 1)^2, half of it on q and half on k.

NTK and YaRN come in two conventions. `convention=paper`, the default, is the text of the YaRN
paper. `convention=transformers` is what Hugging Face's transformers computes:

    ntk     transformers has "dynamic NTK" only. Up to `original` tokens it is plain rope. A longer
            sequence, of n tokens, has base * (factor * n/original - factor + 1)^(d/(d-2)). The
            paper's base depends on no length. As the angles depend on n, past `original` tokens
            a sequence must be given at once. In chunks it is refused. (The library keeps the base
            of the longest sequence so far. Here each sequence has its own.)
    yarn    The ramp is linear in the index of the pair. The paper's is linear in the number of
            turns. The ends of the ramp are rounded outwards to whole pairs (the library's default,
            truncate=True). The scores are multiplied as in the paper. The authors' code has the
            same ramp.

Angles and rotation are in float32, whatever autocast is in force.

Path: `kernels.heads` for the rotation, torch's fused attention.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from outlast.arguments import check_choice
from outlast.errors import bad_value, incompatible, require
from outlast.kernels.heads import turn, turned_heads
from outlast.mixers.attention.schemes.base import Convention, Scheme
from outlast.registry import schemes

#: turns within the training length at which YaRN's ramp begins and ends
_SLOW, _FAST = 1, 32
#: fewer tokens than this are less than one turn of the fastest pair
_ONE_TURN = math.ceil(2 * math.pi)


@schemes.register("rope")
class Rope(Scheme):
    """Rotary position embedding, with the scalings that stretch it.

    Args:
        base: The base of the angles: a larger one turns slow pairs more slowly.
        scaling: How positions past the training length are brought back into it.
        factor: How many times the training length is to be reached.
        original: The training length in tokens, >= 1; `yarn` needs it, and `ntk` of transformers.
        convention: How `ntk` and `yarn` are computed: as in the papers, or as in transformers.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        base: float = 10_000.0,
        scaling: Literal["linear", "ntk", "yarn"] | None = None,
        factor: float = 1.0,
        original: int | None = None,
        convention: Convention = "paper",
    ) -> None:
        super().__init__(width, heads)
        head = width // heads
        require(head % 2 == 0, "heads", heads, f"a number that makes {width}/heads even")
        require(base > 1, "base", base, "a number > 1")
        require(factor >= 1, "factor", factor, "a number >= 1")
        check_choice("convention", convention, Convention)
        _check_scaling(scaling, factor, original, convention)
        self.is_dynamic = scaling == "ntk" and convention == "transformers"
        self.chunks_to = original if self.is_dynamic else None
        if scaling == "ntk" and not self.is_dynamic and head > 2:
            base *= factor ** (head / (head - 2))
        self.base, self.scaling, self.factor, self.original = base, scaling, factor, original
        self.convention = convention

    def rotate(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = self.turns(q, positions)
        return turn(q, cos, sin), turn(k, cos, sin)

    def unpacked(self, packed: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        return turned_heads(packed, *self.turns(packed, positions))

    def turns(self, q: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine of each pair's angle, (tokens, head width / 2), float32 or wider."""
        angle = positions[:, None] * self._speeds(q.shape[-1], positions)
        cos, sin = angle.cos(), angle.sin()
        if self.scaling == "yarn":
            scale = 0.1 * math.log(self.factor) + 1
            cos, sin = cos * scale, sin * scale
        wide = torch.promote_types(q.dtype, torch.float32)
        return cos.to(wide), sin.to(wide)

    def _speeds(self, d: int, positions: Tensor) -> Tensor:
        """How far each pair turns from one position to the next, (d / 2,)."""
        powers = -torch.arange(0, d, 2, device=positions.device) / d
        speed = self.base**powers
        if self.scaling == "linear":
            speed = speed / self.factor
        if self.is_dynamic and self.original is not None and d > 2:
            times_longer = (positions[-1] + 1) / self.original
            stretch = (self.factor * times_longer - self.factor + 1).clamp(min=1)
            speed = speed * stretch ** (powers * (d / (d - 2)))
        if self.scaling == "yarn" and self.original is not None:
            kept = self._kept(speed, self.original)
            speed = speed * (kept + (1 - kept) / self.factor)
        return speed

    def _kept(self, speed: Tensor, original: int) -> Tensor:
        """YaRN's ramp: 1 for pairs that keep their speed, 0 for those slowed by the factor."""
        if self.convention == "paper":
            turns = original * speed / (2 * math.pi)
            return ((turns - _SLOW) / (_FAST - _SLOW)).clamp(0, 1)
        pairs = speed.shape[0]

        def pair_that_turns(times: int) -> float:
            return pairs * math.log(original / (2 * math.pi * times)) / math.log(self.base)

        first = max(math.floor(pair_that_turns(_FAST)), 0)
        last = min(math.ceil(pair_that_turns(_SLOW)), 2 * pairs - 1)
        pair = torch.arange(pairs, device=speed.device)
        return 1 - ((pair - first) / (last - first or 0.001)).clamp(0, 1)


def _check_scaling(
    scaling: str | None, factor: float, original: int | None, convention: Convention
) -> None:
    """Refuse arguments that do not go together."""
    by_transformers = convention == "transformers"
    if scaling is None and (factor != 1 or original is not None):
        raise bad_value("scaling", "none", "linear | ntk | yarn if factor or original is set")
    if by_transformers and scaling not in ("ntk", "yarn"):
        reason = "the conventions differ with scaling=ntk and scaling=yarn alone"
        raise incompatible("convention=transformers", f"scaling={scaling or 'none'}", reason)
    if (scaling == "yarn" or by_transformers) != (original is not None):
        accepted = (
            "the training length in tokens with scaling=yarn or convention=transformers, none "
            "otherwise"
        )
        raise bad_value("original", original or "none", accepted)
    if scaling is not None and factor == 1:
        raise bad_value("factor", factor, f"a number > 1 with scaling={scaling}")
    require(original is None or original >= 1, "original", original, "a whole number >= 1")
    if scaling == "yarn" and by_transformers and original is not None and original < _ONE_TURN:
        accepted = f"at least {_ONE_TURN} tokens with convention=transformers, one turn of a pair"
        raise bad_value("original", original, accepted)
