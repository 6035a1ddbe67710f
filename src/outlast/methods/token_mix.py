"""`token_mix(share)`: inside the model, tokens change places with tokens of the same answer.

After the mixing branch of 2501.04376, which mixes tokens in the latent space between two images of
one label, so that a detector cannot lean on what else is in the image. We know it from its
abstract. There a label is that of the whole image. Here a token has its own answer. At a point
between two sublayers, which each step draws anew, row i of the batch gets tokens of another row:
a share of those whose answer is the same at the same place. That row is the same for all rows: i
plus a number that the step draws (ours). Later sublayers read the exchanged tokens. So what they
are given of a token must be its answer, the state, and not how the sequence came there. There
outputs with and without mixing are drawn together by losses of their own; here is no such loss
(ours).

Answers stay true where later ones need nothing else of a token with an answer: `modsum`, `parity`
and `permutation`, and `composite(layout=interleaved)`, whose lone digits are not asked for again.
Other tasks are refused. So are tasks that ask at the end alone, where nothing is left to read the
tokens. A first sublayer that does not hold the state yet passes on the wrong item: a large share
is a large disturbance.
"""

from __future__ import annotations

from outlast.errors import incompatible, require
from outlast.methods.base import Control, Method, MethodState, Setup
from outlast.registry import methods


@methods.register("token_mix")
class TokenMix(Method):
    """Tokens of the same answer change places between sequences, inside the model.

    Args:
        share: The share of tokens to exchange, of those whose partner has the same answer.
    """

    paper = "arXiv 2501.04376"

    def __init__(self, share: float = 0.1) -> None:
        require(0 < share <= 1, "share", share, "a share of the tokens > 0 and up to 1")
        self.share = share

    def check(self, setup: Setup) -> None:
        if not setup.answers_are_states:
            reason = "later answers need more of a token than the answer that is due there"
            raise incompatible(str(self.spec), setup.named_task, reason)
        if "running" not in setup.parts:
            reason = "the state is asked at the end alone: take supervision=aligned"
            raise incompatible(str(self.spec), setup.named_task, reason)
        if setup.mixing_points < 1:
            reason = "it has no two sublayers, one after the other, to mix tokens between"
            raise incompatible(str(self.spec), f"model={setup.model}", reason)

    def control(self, step: int, state: MethodState, control: Control) -> None:
        control.mix = self.share
