"""`tra`: threshold relative attention (2503.23174): distance counted over relevant keys alone.

For each head of width d, with q and k RMS-normalised (no scale, eps 1e-6) and s_ij = q_i·k_j/√d:

1. key j is kept for query i if s_ij > threshold (0), without gradient through the decision;
2. c_ij, the contextual distance, counts the kept keys from j to i, both included;
3. δ_i = log σ(w·x_i + b) is a gate of the query's token;
4. weights are the softmax over the kept keys of s_ij + δ_i c_ij; with no key kept the output is 0.

Scores [2, -1, 3, -2, 1] of the fifth query keep keys 1, 3 and 5 at distances 3, 2 and 1, and the
logits are 2+3δ, 3+2δ and 1+δ. No other position anywhere.

Ablations of the published form (the first four), and variants of ours:

    tra(gate=none)                          the threshold alone
    tra(threshold=none, distance=plain)     the gate with plain distance, i-j+1
    tra(distance=plain)                     the threshold with plain distance
    tra(norm=false)                         without QK-norm
    tra(gate=key)                           δ_j of the key's token in place of δ_i
    tra(threshold=learned)                  a threshold θ for each head, 0 at the start: kept where
                                            s > θ, with weight exp(s - θ) - 1 in place of exp(s),
                                            which has a gradient in θ and no jump at it
    tra(sharpen=true)                       s_ij (1 + a log N_i), N_i the number kept, a > 0 learned
                                            for each head, 0.43 at the start (as in `scalable`)

It makes its own weights and takes no others. With `attention(tra, dropout=0.01)`, as in the
authors' notebook, a share of the logits s_ij + δ_i c_ij of the kept keys is set to 0 in each step
of training, and the rest is divided by 1 - share. Dropout does not change which keys are kept.

Path: `kernels.tra`. It also serves `threshold=none`, where all keys count and distance is plain.
With `sharpen` it runs twice: once to count, once with sharper queries. Plain distance among kept
keys, `gate=key`, a learned threshold, and dropout in training go a block of queries at a time.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outlast.errors import incompatible
from outlast.kernels.heads import normed_heads, rms
from outlast.kernels.tra import threshold_relative_attention
from outlast.mixers.attention.schemes.base import Change, Scheme, distances, scaled_products
from outlast.mixers.attention.schemes.forget import log_gates
from outlast.mixers.base import Linear
from outlast.registry import schemes


@schemes.register("tra")
class Tra(Scheme):
    """Threshold relative attention: distance counted over the keys that pass a threshold.

    Args:
        threshold: Keys with a score above it are kept; `none` keeps all, any number is accepted.
        gate: Whose token sets the decay with distance; `none` is no decay.
        distance: Counted over the kept keys (`contextual`) or over all (`plain`).
        norm: Whether queries and keys are RMS-normalised.
        sharpen: Whether scores grow with the log of the number of kept keys.
    """

    scores_memory: ClassVar[int] = 2

    def __init__(
        self,
        width: int,
        heads: int,
        threshold: float | Literal["learned"] | None = 0.0,
        gate: Literal["query", "key"] | None = "query",
        distance: Literal["contextual", "plain"] = "contextual",
        norm: bool = True,
        sharpen: bool = False,
    ) -> None:
        super().__init__(width, heads)
        if gate is None and distance == "plain":
            raise incompatible(
                "distance=plain", "gate=none", "without a gate there is no distance to count"
            )
        self.fixed = None if threshold == "learned" else threshold
        self.learned = threshold == "learned"
        self.side, self.distance, self.norm = gate, distance, norm
        self.uses_positions = distance == "plain"
        if gate is not None:
            self.gate = Linear(width, heads)
        if self.learned:
            self.threshold = nn.Parameter(torch.zeros(heads))  # vectors: not decayed
        # through a softplus: below 0 a score would change its sign, and its key would be dropped
        start = math.log(math.expm1(0.43))
        self.gain = nn.Parameter(torch.full((heads,), start)) if sharpen else None

    def rotate(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        return (rms(q), rms(k)) if self.norm else (q, k)

    def unpacked(self, packed: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        overridden = type(self).rotate is not Tra.rotate
        return normed_heads(packed) if self.norm and not overridden else None

    def token_features(self, x: Tensor) -> Tensor | None:
        return None if self.side is None else log_gates(self.gate, x)

    def fused(
        self, q: Tensor, k: Tensor, v: Tensor, token_features: Tensor | None, drawn: bool
    ) -> Tensor | None:
        """The cases of `kernels.tra`: a gate of the query, or none, over kept keys or over all."""
        keeps_all = self.fixed is None and not self.learned
        counted = self.distance == "contextual" or (keeps_all and not drawn)
        # sharper queries keep the same keys only if the threshold is 0
        can_sharpen = self.gain is None or keeps_all or self.fixed == 0
        if self.learned or self.side == "key" or not counted or not can_sharpen:
            return None
        if token_features is None:
            gate = q.new_zeros(q.shape[:-1])
        else:
            gate = token_features[..., -q.shape[-2] :, 0]
        threshold = -math.inf if self.fixed is None else self.fixed
        norm, attend = self.norm, threshold_relative_attention
        if self.gain is None:
            return attend(q, k, v, gate, threshold=threshold, normalised=norm)
        with torch.no_grad():
            parts = attend(q, k, v, gate, threshold=threshold, normalised=norm, return_parts=True)
        sharpness = self._sharpness(parts.kept[..., None].to(gate.dtype))
        return attend(q * sharpness.to(q.dtype), k, v, gate, threshold=threshold)

    def weigh(
        self,
        q: Tensor,
        k: Tensor,
        token_features: Tensor | None,
        positions: Tensor,
        allowed: Tensor,
        keys: Tensor,
        change: Change,
    ) -> Tensor:
        scores = scaled_products(q, k)
        kept = self._kept(scores, allowed)
        logits = scores
        if self.gain is not None:
            logits = logits * self._sharpness(kept.sum(-1, keepdim=True).to(scores.dtype))
        if self.learned:
            above = (scores - self._theta(scores)).masked_fill(~kept, 1)
            logits = logits - scores + above.expm1().log()
        if token_features is not None:
            delta = token_features[..., 0].to(scores.dtype)
            gate = delta[..., None, :] if self.side == "key" else delta[..., -q.shape[-2] :, None]
            logits = logits + gate * self._distance(kept.to(scores.dtype), positions, keys)
        return softmax_over(change(logits), kept)

    def _sharpness(self, count: Tensor) -> Tensor:
        """1 + a log N of each query, (batch, heads, queries, 1)."""
        assert self.gain is not None  # for the type checker: the callers have checked it
        gain = F.softplus(self.gain.to(count.dtype))
        return 1 + gain[:, None, None] * count.clamp_min(1).log()

    def _theta(self, scores: Tensor) -> Tensor:
        return self.threshold.to(scores.dtype)[:, None, None]

    def _kept(self, scores: Tensor, allowed: Tensor) -> Tensor:
        if self.learned:
            return (scores.detach() > self._theta(scores).detach()) & allowed
        return allowed.expand_as(scores) if self.fixed is None else (scores > self.fixed) & allowed

    def _distance(self, kept: Tensor, positions: Tensor, keys: Tensor) -> Tensor:
        if self.distance == "plain":
            return distances(positions, keys) + 1
        so_far = kept.cumsum(-1)  # whole numbers, so exact
        return so_far[..., -1:] - so_far + kept


def softmax_over(logits: Tensor, kept: Tensor) -> Tensor:
    """The softmax over the kept keys, (batch, heads, queries, keys).

    A row that keeps no key is 0 everywhere.
    """
    most = logits.detach().masked_fill(~kept, float("-inf")).amax(-1, keepdim=True)
    # on many CPUs exp is slow where its result is almost 0: e**-80 is small enough
    shifted = (logits - most).masked_fill(~kept, 0).clamp(min=-80)
    parts = shifted.exp() * kept
    total = parts.sum(-1, keepdim=True)
    return parts / total.masked_fill(total == 0, 1)
