"""`hadamard`: the Hadamard attention of HART (Chen et al., arXiv 2501.01023), cut to the past.

::

    q, k = unit(W_q x), unit(W_k x)          unit makes a token's vector one of length 1
    g    = ELU(q * k)                        * is a product entry by entry
    h_0  = (g_0 + 1) * v                     Hadamard attention
    h_i  = g_i * conv_i(h_{i-1})             conv_i sees the last 2 i + 1 tokens
    y    = W [h_0, h_1, h_2]

What is known: the weight of an entry is the product of q and k *of the same token*. So nothing is
summed over tokens, and the cost is linear. Tokens meet in the convolutions alone (the paper's
MKOI). That q and k have length 1, that each h_i has half the width of the last one, and how many
tokens a convolution sees are from the authors' code.

Little passes between tokens at first. The authors' code makes q and k of length 1 over all channels
of a token, and so do we. An entry of g is then about one over the number of channels, and each h_i
has one more such factor. With new weights of width 128, another token moves its own output by 4 (as
a Euclidean length). It moves the next output by 0.004, and the fourth one after it by 0.000005.

What is our reading: the paper is about images, so its convolutions see neighbours on all sides.
Here they see the token and those before it. Its learned temperature is left out: q and k have
length 1 after it.

So this mixer has no state of its own: it remembers a few tokens, as `conv` does, and cannot track a
state. Weights between two tokens, entry by entry, would need a sum over all pairs, because ELU(q *
k) + 1 does not split into a product. With ELU(q) + 1 and ELU(k) + 1 it does: that is
`linear_attention` with as many heads as the width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outlast.arguments import check_whole
from outlast.kernels.linear_recurrence.chunks import at_least_single
from outlast.mixers.base import Linear, Mixer
from outlast.mixers.heads import unit
from outlast.registry import mixers

#: the last tokens that each convolution will need, (batch, 2 i, width of h_{i-1}) in float32
HadamardState = tuple[Tensor, ...]
#: with this many convolutions the last one sees 17 tokens
MOST_CONVOLUTIONS = 8


@mixers.register("hadamard")
class Hadamard(Mixer):
    """Hadamard attention: products of queries, keys and values entry by entry, and convolutions.

    Args:
        convolutions: How many causal convolutions follow; with 0 a token sees itself alone.
    """

    pathway = "recurrent"
    holds_state = False

    def __init__(self, width: int, convolutions: int = 2) -> None:
        super().__init__()
        check_whole("convolutions", convolutions, 0, MOST_CONVOLUTIONS)
        self.widths = [max(1, width >> i) for i in range(convolutions + 1)]
        total = sum(self.widths)
        self.vqk = Linear(width, width + 2 * total, bias=False)
        #: each is a linear map of the last tokens side by side, the oldest one first
        self.convolutions = nn.ModuleList(
            Linear((2 * i + 1) * self.widths[i - 1], self.widths[i])
            for i in range(1, convolutions + 1)
        )
        self.out = Linear(total, width, bias=False)

    def forward(
        self, x: Tensor, state: HadamardState | None = None
    ) -> tuple[Tensor, HadamardState]:
        total = sum(self.widths)
        projected = at_least_single(self.vqk(x))
        h, q, k = projected.split([self.widths[0], total, total], -1)
        gate, *gates = F.elu(unit(q) * unit(k)).split(self.widths, -1)
        h = (gate + 1) * h
        if state is None:
            state = tuple(
                h.new_zeros(h.shape[0], 2 * i, width) for i, width in enumerate(self.widths[:-1], 1)
            )
        parts, seen_last = [h], []
        for convolution, before, gate in zip(self.convolutions, state, gates, strict=True):
            seen = torch.cat([before, h], 1)
            tokens, back = x.shape[1], before.shape[1]
            window = torch.cat([seen[:, i : i + tokens] for i in range(back + 1)], -1)
            h = gate * at_least_single(convolution(window))
            parts.append(h)
            seen_last.append(seen[:, tokens:])
        return self.out(torch.cat(parts, -1).to(x.dtype)), tuple(seen_last)
