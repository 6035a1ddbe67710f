"""`random_windows(from, to)`: each step of training, attention sees a window of another size.

Short windows make a hybrid of recurrence and attention use its recurrence for what lies far back.
Long windows keep what attention is good at. The paper (SWAX, 2509.24552) trains with both by
chance, and does better on short and on long contexts than with either. We know it from its
abstract and from summaries, which name two sizes, a short and a long one. That the last tenth of
training has the long one alone is from memory::

    random_windows(from=4, draw=ends)      two sizes as in the paper; the long one is all keys
    random_windows(from=4, to=16)          any size from 4 to 16 (ours)

A query with a window of w sees itself and the w - 1 tokens before it. All attention of a model has
the same window in a step (ours), and each seed draws its own. Weights that count keys (`scalable`,
`asentmax`) count those in the window. The convolutions of `dape` see two keys past its edge. From
`until` on, and in every test, attention sees all keys; in the paper tests have a window as well.
`outlast analyse ablation` tests within a window, and ``model(tokens, window=torch.tensor(8))`` runs
a model within one.

Cost: no fused kernel has a window of which only the device knows the size. Attention in training
then goes a block of queries at a time, with tables of all its scores, however small the window.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from outlast.errors import bad_value, incompatible, require
from outlast.methods.base import Control, Method, MethodState, Setup
from outlast.registry import methods


@methods.register("random_windows")
class RandomWindows(Method):
    """Attention within a window, whose size each step of training draws anew.

    Args:
        from: The smallest window; 1 is the token itself.
        to: The largest window; by default the tokens of the longest training sequence.
        draw: Any size between the two, or one of these two alone.
        until: The share of training from which on attention sees all keys.
    """

    paper = "arXiv 2509.24552"

    def __init__(
        self,
        from_: int = 4,
        to: int | None = None,
        draw: Literal["range", "ends"] = "range",
        until: float = 0.9,
    ) -> None:
        require(from_ >= 1, "from", from_, "a number of keys >= 1")
        if to is not None:
            require(to >= from_, "to", to, f"a number of keys from from={from_} on")
        require(0 < until <= 1, "until", until, "a share of training > 0 and up to 1")
        self.smallest, self.largest, self.draw, self.until = from_, to, draw, until

    def check(self, setup: Setup) -> None:
        if not setup.takes_window:
            reason = "it has no attention that could be kept to a window"
            raise incompatible(str(self.spec), f"model={setup.model}", reason)
        if self.smallest > setup.tokens:
            accepted = f"at most {setup.tokens}, the tokens of a training sequence"
            raise bad_value("from", self.smallest, accepted)

    def begin(self, setup: Setup) -> MethodState:
        largest = max(setup.tokens, self.smallest) if self.largest is None else self.largest
        every = range(self.smallest, largest + 1)
        self.sizes: Sequence[int] = every if self.draw == "range" else (self.smallest, largest)
        self.end = self.until * setup.steps
        return {}

    def control(self, step: int, state: MethodState, control: Control) -> None:
        if step < self.end:
            control.windows = self.sizes
