"""`random_positions(range)`: positions drawn from a range longer than any sequence (2305.16843).

Ruoss et al. (2023): a sequence of n tokens gets n of the positions 0 to range - 1 in increasing
order. Every subset is equally likely. So a model has met every position and distance that a longer
sequence will have. The method works with any scheme that uses positions: absolute, rotary and bias.
The others (`nope`, `cope`, `forget`, `stick_breaking`, `matchability`, and `tra` without plain
distance) ignore it, and so do weights, which count the keys.

From the authors' code: the range of 2048, one draw for a whole batch and for all layers, a new draw
at each step, and draws in tests as well. There `relative` draws distances; here positions are drawn
and distances follow (ours). There a batch has one length; here a shorter row has the first of its
batch's positions (ours). In a test all sequences of one length have the same draw (ours), a
function of their length alone. If a test is longer than the range, positions are counted. In chunks
or token by token, each call needs its part of `model.positions(all tokens)`.
"""

from __future__ import annotations

from outlast.errors import bad_value, require
from outlast.methods.base import Control, Method, MethodState, Setup
from outlast.registry import methods

#: the largest range: a float32 holds every position up to it exactly
MOST = 2**24


@methods.register("random_positions")
class RandomPositions(Method):
    """Positions drawn from a longer range, for any scheme that has positions.

    Args:
        range: How many positions there are to draw from.
    """

    paper = "arXiv 2305.16843"

    def __init__(self, range_: int = 2048) -> None:
        require(1 <= range_ <= MOST, "range", range_, f"a number of positions from 1 to {MOST:,}")
        self.range = range_

    def begin(self, setup: Setup) -> MethodState:
        if self.range < setup.tokens:
            accepted = f"at least {setup.tokens}, the tokens of a training sequence"
            raise bad_value("range", self.range, accepted)
        if setup.ceiling is not None and self.range > setup.ceiling:
            accepted = f"at most {setup.ceiling}, the model's limit; or raise its ceiling"
            raise bad_value("range", self.range, accepted)
        return {}

    def control(self, step: int, state: MethodState, control: Control) -> None:
        control.span = self.range
