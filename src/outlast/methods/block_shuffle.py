"""`block_shuffle(block, share)`: training text with its blocks of tokens in another order.

After the shuffling branch of 2501.04376, which shuffles the tokens of an image and keeps near ones
together, so that a detector cannot lean on where something stands. We know it from its abstract.
There a label is that of the whole image. Here every token has its own answer, the token that
follows, and this goes with the token: it is what follows in the text, also at the end of a block,
where another block now follows (ours). There outputs with and without shuffling are drawn together
by losses of their own; here is no such loss (ours).

It is for `text` alone. The other tasks draw every sequence anew, item by item. Where the order of
items does not matter to the sampler, a shuffled sequence with its true answers is one more draw of
the same kind. Anywhere else its answers would no longer be true.
"""

from __future__ import annotations

from outlast.errors import bad_value, incompatible, require
from outlast.methods.base import Control, Method, MethodState, Setup
from outlast.registry import methods


@methods.register("block_shuffle")
class BlockShuffle(Method):
    """Blocks of tokens in another order, in a share of the sequences of text.

    Args:
        block: How many tokens a block has.
        share: The share of sequences that are shuffled.
    """

    paper = "arXiv 2501.04376"

    def __init__(self, block: int = 16, share: float = 0.5) -> None:
        require(block >= 1, "block", block, "a number of tokens >= 1")
        require(0 < share <= 1, "share", share, "a share of the sequences > 0 and up to 1")
        self.block, self.share = block, share

    def check(self, setup: Setup) -> None:
        if not setup.reads_text:
            reason = "it is for text; this task draws its sequences anew, item by item"
            raise incompatible(str(self.spec), setup.named_task, reason)
        if self.block >= setup.tokens:
            accepted = f"below {setup.tokens}, the tokens of a training sequence"
            raise bad_value("block", self.block, accepted)

    def control(self, step: int, state: MethodState, control: Control) -> None:
        control.shuffle = {"share": self.share, "block": float(self.block)}
