"""`attention(scheme, heads=4, weights=softmax, dropout=0)`: causal multi-head attention.

The linear maps for q, k, v have no bias, the output map has one. The scheme says where position
enters, the weights say how scores become weights: `attention(rope)`, `attention(alibi,
weights=entmax)`, ... They combine freely, with two exceptions. A scheme that makes its own weights
(`tra`, `stick_breaking`) takes no others. A scheme without queries (`position_only`) takes no
weights that scale queries (`scalable`, `temperature`, `asentmax`).

A softmax without bias, or with a bias of positions alone, is torch's fused attention; in 16 bit the
bias is rounded to 16 bit. Everything else goes a block of queries at a time. So does, in training,
every bias too large to hold.

In training `dropout` sets a share of the *logits* to 0 and divides the rest by 1 - share, before
the weights. No fused kernel does that, so it goes a block of queries at a time too.

A pass may have a window: each query then sees so many keys, itself among them. It is a tensor, one
number for each seed. No fused kernel takes it, so this goes a block of queries at a time as well.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from outlast.errors import OutlastError, bad_value, incompatible
from outlast.kernels.attention import attend, attend_packed
from outlast.mixers.attention import blocks
from outlast.mixers.attention.look import Change, Fused, Hook, HookedLook, Look, Watcher
from outlast.mixers.attention.pure import Inputs, Output
from outlast.mixers.attention.schemes.base import Scheme
from outlast.mixers.attention.weights.base import Weights
from outlast.mixers.base import Linear, Mixer, linear
from outlast.mixers.randomness import check_dropout
from outlast.registry import mixers, schemes, weightings
from outlast.specs import Spec


class Cache(NamedTuple):
    """What is kept of the tokens so far.

    `keys` and `values` are (batch, heads, tokens, head width). `token_features` (batch, heads,
    tokens, features) belong to the scheme, `carry` (batch, heads, tokens) to the weights.
    `positions` (tokens,) are kept if they are not counted and the scheme uses them. If the number
    of tokens to come is known, `room` (batch, heads, all tokens, head width) holds the keys and the
    values, and `keys` and `values` are its first part. Else they are copied at every call.
    """

    keys: Tensor
    values: Tensor
    token_features: Tensor | None = None
    carry: Tensor | None = None
    positions: Tensor | None = None
    room: tuple[Tensor, Tensor] | None = None


@mixers.register("attention")
class Attention(Mixer):
    """Causal multi-head attention; the scheme decides how position enters.

    Args:
        scheme: How position enters: see `outlast list schemes`.
        heads: How many heads share the width.
        weights: How scores become weights: see `outlast list weights`.
        dropout: The share of logits that is set to 0 in a step of training.
    """

    pathway = "attention"
    takes_window = True
    #: for analyses: it sees the weights of every block of queries, and may replace them
    hook: Hook | None = None

    def __init__(
        self,
        width: int,
        scheme: Spec = Spec("nope"),
        heads: int = 4,
        weights: Spec = Spec("softmax"),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.dropout = check_dropout(dropout)
        if heads < 1 or width % heads:
            raise bad_value("heads", heads, f"a divisor of the width, {width}")
        self.heads = heads
        self.qkv = Linear(width, 3 * width, bias=False)
        self.out = Linear(width, width)
        self.scheme: Scheme = schemes.build(scheme, width=width, heads=heads)
        self.weights: Weights = weightings.build(weights, width=width, heads=heads)
        self.ceiling, self.uses_positions = self.scheme.ceiling, self.scheme.uses_positions
        self.chunks_to = self.scheme.chunks_to
        weights_given, scheme_given = f"weights={self.weights.spec}", f"scheme={self.scheme.spec}"
        if self.scheme.weighs and self.weights.spec != Spec("softmax"):
            reason = "this scheme makes its own weights; leave weights out"
            raise incompatible(weights_given, scheme_given, reason)
        if self.weights.sharpens and not self.scheme.uses_queries:
            reason = "these weights scale queries, and this scheme uses none"
            raise incompatible(weights_given, scheme_given, reason)

    def forward(self, x: Tensor, state: Cache | None = None) -> tuple[Tensor, Cache]:
        heads, state = self._heads(x, state)
        return self.out(heads), state

    def fixable(self) -> dict[str, tuple[str, slice]]:
        width = self.out.in_features
        return {
            "qk": ("qkv.weight", slice(0, 2 * width)),
            "values": ("qkv.weight", slice(2 * width, 3 * width)),
        }

    def unbiased(
        self, x: Tensor, state: Cache | None = None
    ) -> tuple[Tensor, Tensor | None, Cache]:
        heads, state = self._heads(x, state)
        return linear(heads, self.out.weight), self.out.bias, state

    def _heads(self, x: Tensor, state: Cache | None) -> tuple[Tensor, Cache]:
        """The outputs of all heads side by side, (batch, tokens, width)."""
        before = 0 if state is None else state.keys.shape[-2]
        end = before + x.shape[1]
        if self.ceiling is not None and end > self.ceiling:
            raise OutlastError(
                f"attention({self.scheme.spec}) takes at most {self.ceiling} tokens, got {end}: "
                f"raise its ceiling or use a scheme without one"
            )
        if before and self.chunks_to is not None and end > self.chunks_to:
            raise OutlastError(
                f"attention({self.scheme.spec}) takes at most {self.chunks_to} tokens in chunks, "
                f"got {end}: past that its angles depend on the length of the whole sequence, so "
                f"give all tokens at once"
            )
        counted = torch.arange(end, device=x.device)
        all_positions = self._positions(counted, state)
        positions = all_positions[before:]
        projection = self.qkv(self.scheme.embed(x, positions))
        packed = projection.unflatten(-1, (3, self.heads, -1))
        q, k, v = projected = packed.permute(2, 0, 3, 1, 4).unbind()
        unpacked = self.scheme.unpacked(packed, positions)
        if unpacked is None:
            q, k = self.scheme.rotate(q, k, positions)
        else:
            q, k, v = unpacked
        window, queries = self.context.window, counted[before:]
        in_sight = queries if window is None else torch.minimum(queries, window - 1)
        q = self.weights.sharpen(q, x, in_sight)
        v = self.weights.spread(self.scheme.values(x, v))
        token_features, carry = self.scheme.token_features(x), None
        k, v, room = self._remember(state, k, v)
        if state is not None:
            if token_features is not None and state.token_features is not None:
                token_features = torch.cat([state.token_features, token_features], -2)
            carry = state.carry
        unchanged = all(now is then for now, then in zip((q, k, v), projected, strict=True))
        key = self.context.key if self.dropout else None
        inputs = Inputs(all_positions, carry, token_features, q, k, v, key, window)
        y, carry = self._look(inputs, packed if unchanged else None)
        y = self.weights.gather(y, x)
        drawn = None if all_positions is counted else all_positions
        return y.transpose(1, 2).flatten(2), Cache(k, v, token_features, carry, drawn, room)

    def _remember(
        self, state: Cache | None, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor] | None]:
        """The keys and values so far, these last; and the room they lie in, if there is one."""
        total, before = self.context.total, 0 if state is None else state.keys.shape[-2]
        end, room = before + k.shape[-2], None if state is None else state.room
        if state is None and total is not None and total > end:
            room = _make_room(k, total), _make_room(v, total)
        if room is not None and end <= room[0].shape[-2]:
            for kept, new in zip(room, (k, v), strict=True):
                kept[..., before:end, :] = new
            return room[0][..., :end, :], room[1][..., :end, :], room
        if state is None:
            return k, v, None
        return torch.cat([state.keys, k], -2), torch.cat([state.values, v], -2), None

    def _positions(self, counted: Tensor, state: Cache | None) -> Tensor:
        """The positions of all tokens so far, (keys,). Without a context they are counted."""
        new, cached = self.context.positions, None if state is None else state.positions
        if not self.uses_positions or (new is None and cached is None):
            return counted
        if new is None:
            raise OutlastError(
                "the tokens so far have drawn positions: give positions= for the tokens that follow"
            )
        before = counted.shape[0] - new.shape[0]
        return torch.cat([counted[:before] if cached is None else cached, new.to(counted)])

    def _by_kernel(self, inputs: Inputs) -> Tensor | None:
        """The output of a kernel for the scheme or for the weights, if there is one."""
        q, k, v = inputs.q, inputs.k, inputs.v
        if self.scheme.weighs or self.weights.is_softmax:
            drawn = self.uses_positions and self.context.positions is not None
            return self.scheme.fused(q, k, v, inputs.token_features, drawn)
        unbiased = self.scheme.has_plain_scores and type(self.scheme).bias is Scheme.bias
        return self.weights.attend(q, k, v) if unbiased else None

    def _look(self, inputs: Inputs, packed: Tensor | None) -> Output:
        """The output of the queries (batch, heads, queries, head width), and the carry.

        `packed` holds q, k and v in one tensor, if they are as projected.
        """
        queries, keys = inputs.q.shape[-2], inputs.k.shape[-2]
        first = self.hook.first if isinstance(self.hook, Watcher) else 0
        unseen = min(first - (keys - queries), queries)
        if unseen <= 0 or inputs.key is not None:
            return self._look_by(self.hook, inputs, packed)
        if unseen == queries:
            return self._look_by(None, inputs, packed)
        before, carry = self._look_by(None, inputs.until(unseen), None)
        seen = inputs._replace(q=inputs.q[..., unseen:, :], carry=carry)
        after, carry = self._look_by(self.hook, seen, None)
        return torch.cat([before, after], -2), carry

    def _look_by(self, hook: Hook | None, inputs: Inputs, packed: Tensor | None) -> Output:
        """`_look` with this hook for all queries."""
        q, k, v = inputs.q, inputs.k, inputs.v
        is_plain = self.scheme.has_plain_scores and self.weights.is_softmax
        is_unbiased = is_plain and type(self.scheme).bias is Scheme.bias
        # no kernel drops logits, hands out its weights or keeps to a window
        needs_scores = any(part is not None for part in (inputs.key, hook, inputs.window))
        if isinstance(hook, Change) and is_unbiased and inputs.key is inputs.window is None:
            return hook.attend(q, k, v), inputs.carry
        if not needs_scores:
            output = self._by_kernel(inputs)
            if output is not None:
                return output, inputs.carry
        scores = self.heads * k.shape[-2] * self.scheme.scores_memory  # of one query
        if not needs_scores and is_plain:
            if is_unbiased:
                return attend(q, k, v) if packed is None else attend_packed(packed), inputs.carry
            # The bias is one for the whole batch. In training several blocks of it under vmap
            # would make torch's fused attention run seed by seed.
            if not torch.is_grad_enabled() or q.shape[-2] * scores <= blocks.BUDGET:
                return blocks.in_blocks(Fused(self.scheme), inputs, scores)
        wide = torch.promote_types(q.dtype, torch.float32)
        with torch.autocast(q.device.type, enabled=False):
            inputs = inputs._replace(q=q.to(wide), k=k.to(wide), v=v.to(wide))
            look = Look(self.scheme, self.weights, self.dropout)
            hooked = look if hook is None else HookedLook(look, hook)
            y, carry = blocks.in_blocks(hooked, inputs, scores * q.shape[0])
        return y.to(q.dtype), carry


def _make_room(first: Tensor, total: int) -> Tensor:
    """Room for so many tokens like the first ones, (batch, heads, total, head width)."""
    return first.new_zeros(*first.shape[:-2], total, first.shape[-1])
