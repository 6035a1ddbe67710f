"""`attention(scheme, heads=4, weights=softmax, dropout=0)`: causal multi-head attention.

Linear maps for q, k, v without bias, the output map with one. Where position enters is the
scheme's business, how scores become weights that of the weights: `attention(rope)`,
`attention(alibi, weights=entmax)`, ... They combine freely, save that a scheme which makes
weights of its own (`tra`, `stick_breaking`) takes no others, and one without queries
(`position_only`) none that scale them (`scalable`, `temperature`, `asentmax`).

A softmax without bias, or with one that depends on positions alone, is torch's fused attention, in
16 bit with the bias rounded to that; everything else, and in training every bias too large to hold,
goes a block of queries at a time.

`dropout` is of the *logits*, in training: a share of them is 0 and the rest over 1 - share, before
weights are made of them. No fused kernel does that, so it goes a block of queries at a time too.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from outlast.errors import OutlastError, bad_value
from outlast.kernels.attention import attend, attend_packed
from outlast.mixers.attention import blocks
from outlast.mixers.attention.schemes.base import Scheme
from outlast.mixers.attention.weights.base import Weights
from outlast.mixers.base import Linear, Mixer, linear
from outlast.mixers.chance import check_share
from outlast.registry import mixers, schemes, weightings
from outlast.specs import Spec


class Cache(NamedTuple):
    """What is known of the tokens so far.

    `keys` and `values` (batch, heads, tokens, head width); `marks` (batch, heads, tokens, any
    number) what the scheme noted of each; `carry` (batch, heads, tokens) what the weights keep;
    `places` (tokens,) where they stand, if not one after the other and the scheme asks for it.
    """

    keys: Tensor
    values: Tensor
    marks: Tensor | None = None
    carry: Tensor | None = None
    places: Tensor | None = None


@mixers.register("attention")
class Attention(Mixer):
    """Causal multi-head attention; the scheme decides how position enters."""

    pathway = "attention"

    def __init__(
        self,
        width: int,
        scheme: Spec = Spec("nope"),
        heads: int = 4,
        weights: Spec = Spec("softmax"),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.dropout = check_share(dropout)
        if heads < 1 or width % heads:
            raise bad_value("heads", heads, f"a divisor of the width, {width}")
        self.heads = heads
        self.qkv = Linear(width, 3 * width, bias=False)
        self.out = Linear(width, width)
        self.scheme: Scheme = schemes.build(scheme, width=width, heads=heads)
        self.weights: Weights = weightings.build(weights, width=width, heads=heads)
        self.ceiling, self.placed = self.scheme.ceiling, self.scheme.placed
        if self.scheme.weighs and self.weights.spec != Spec("softmax"):
            raise bad_value(
                "weights",
                self.weights.spec,
                f"none beside {self.scheme.spec.name}, which makes weights of its own",
            )
        if self.weights.sharpens and not self.scheme.queried:
            raise bad_value(
                "weights",
                self.weights.spec,
                f"none that scales queries beside {self.scheme.spec.name}, which makes no use of "
                "them",
            )

    def forward(self, x: Tensor, state: Cache | None = None) -> tuple[Tensor, Cache]:
        seen, state = self._seen(x, state)
        return self.out(seen), state

    def unbiased(
        self, x: Tensor, state: Cache | None = None
    ) -> tuple[Tensor, Tensor | None, Cache]:
        seen, state = self._seen(x, state)
        return linear(seen, self.out.weight), self.out.bias, state

    def _seen(self, x: Tensor, state: Cache | None) -> tuple[Tensor, Cache]:
        """What the heads bring, side by side, (batch, tokens, width)."""
        before = 0 if state is None else state.keys.shape[-2]
        end = before + x.shape[1]
        if self.ceiling is not None and end > self.ceiling:
            raise OutlastError(
                f"attention({self.scheme.spec}) takes at most {self.ceiling} tokens, got {end}: "
                f"raise its ceiling or use a scheme without one"
            )
        counted = torch.arange(end, device=x.device)
        places = self._places(counted, state)
        positions = places[before:]
        projected = self.qkv(self.scheme.embed(x, positions))
        packed = projected.unflatten(-1, (3, self.heads, -1))
        q, k, v = made = packed.permute(2, 0, 3, 1, 4).unbind()
        at_once = self.scheme.unpacked(packed, positions)
        if at_once is None:
            q, k = self.scheme.rotate(q, k, positions)
        else:
            q, k, v = at_once
        q = self.weights.sharpen(q, x, counted[before:])
        v = self.weights.spread(self.scheme.values(x, v))
        marks, carry = self.scheme.marks(x), None
        if state is not None:
            k, v = torch.cat([state.keys, k], -2), torch.cat([state.values, v], -2)
            if marks is not None and state.marks is not None:
                marks = torch.cat([state.marks, marks], -2)
            carry = state.carry
        untouched = all(now is then for now, then in zip((q, k, v), made, strict=True))
        y, carry = self._look(q, k, v, places, marks, carry, packed if untouched else None)
        y = self.weights.gather(y, x)
        drawn = None if places is counted else places
        return y.transpose(1, 2).flatten(2), Cache(k, v, marks, carry, drawn)

    def _places(self, counted: Tensor, state: Cache | None) -> Tensor:
        """Where all tokens so far stand, (keys,): one after the other if nothing else is told."""
        given, kept = self.told.positions, None if state is None else state.places
        if not self.placed or (given is None and kept is None):
            return counted
        if given is None:
            raise OutlastError(
                "the tokens so far have positions of their own: give positions= to go on from them"
            )
        before = counted.shape[0] - given.shape[0]
        return torch.cat([counted[:before] if kept is None else kept, given.to(counted)])

    def _made(self, q: Tensor, k: Tensor, v: Tensor, marks: Tensor | None) -> Tensor | None:
        """What the queries get, from a kernel made for the scheme or the weights, if there is."""
        if self.scheme.weighs or self.weights.is_softmax:
            drawn = self.placed and self.told.positions is not None
            return self.scheme.fused(q, k, v, marks, drawn)
        plain = self.scheme.pointwise and type(self.scheme).bias is Scheme.bias
        return self.weights.attend(q, k, v) if plain else None

    def _look(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        positions: Tensor,
        marks: Tensor | None,
        carry: Tensor | None,
        packed: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """What each query makes of the values; `packed` is all three, where they are as made.

        `positions` (keys,) are those of the keys.
        """
        key = self.told.key if self.dropout else None
        if key is None:
            made = self._made(q, k, v, marks)
            if made is not None:
                return made, carry
        scores = self.heads * k.shape[-2] * self.scheme.heavy  # of one query
        if key is None and self.scheme.pointwise and self.weights.is_softmax:
            if type(self.scheme).bias is Scheme.bias:
                return attend(q, k, v) if packed is None else attend_packed(packed), carry
            # the bias is the same for the whole batch. To train in several blocks of it under
            # vmap, torch's fused attention would run seed by seed
            if not torch.is_grad_enabled() or q.shape[-2] * scores <= blocks.BUDGET:
                fused = blocks.Fused(self.scheme)
                return blocks.in_blocks(fused, q, k, v, positions, marks, carry, scores)
        kept = q.dtype
        wide = torch.promote_types(kept, torch.float32)
        with torch.autocast(q.device.type, enabled=False):
            q, k, v = q.to(wide), k.to(wide), v.to(wide)
            look = blocks.Look(self.scheme, self.weights, self.dropout)
            rows = scores * q.shape[0]
            y, carry = blocks.in_blocks(look, q, k, v, positions, marks, carry, rows, key)
        return y.to(kept), carry
