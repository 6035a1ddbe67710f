"""`state_passing` and `state_noise`: recurrent layers begin with a state that is not empty.

Buitrago and Gu (arXiv 2507.02782): recurrent models fail past their training length because they
have met too few of the states that longer sequences lead to. They train on with sequences that
begin with the last state of another sequence, or with noise. In language models 500 steps after
training are enough. That much is from their abstract. A run of its own does it after training::

    outlast train --start-from runs/a --method state_passing --steps 500 --out runs/b

``from=0.95`` does it in the last twentieth of training. Then take ``--schedule constant``: with the
default schedule the learning rate is nearly 0 by then.

``state_passing`` takes the last state of another sequence of the *same* step, which passes through
the model once more without gradients. So nothing is carried from step to step, and a step costs one
forward pass more. A shorter sequence is repeated until its row is full. ``state_noise`` draws each
number of the state from a normal distribution with the mean and `scale` times the spread that this
number has over those last states. So a number that is never negative may become so, such as the
normaliser of `slstm`. Both forms are ours, and so are drawing by sequence with probability `p`, and
its default.

Attention begins with nothing, and so does every sequence of a test. In a task whose state counts
from the first token, such as a sum, a state that is passed makes the answer ambiguous.
"""

from __future__ import annotations

from outlast.errors import bad_value, incompatible, require
from outlast.methods.base import Control, Method, MethodState, Setup
from outlast.methods.triggers import BEFORE_THE_END, as_step, check_before_end
from outlast.registry import methods


class _InitialState(Method):
    """What both have in common: the sequences that have a state, and from which step on."""

    paper = "arXiv 2507.02782"

    def __init__(self, p: float, first: int | float) -> None:
        require(0 < p <= 1, "p", p, "a probability > 0 and up to 1")
        as_step(first, 1, "from", BEFORE_THE_END)
        self.p, self.first = p, first

    def check(self, setup: Setup) -> None:
        if "recurrent" not in setup.pathways:
            reason = "it has no recurrent mixer that could begin with a state"
            raise incompatible(str(self.spec), f"model={setup.model}", reason)
        if setup.batch_size == 1:
            accepted = "2 or more: a sequence begins with the state of another one of its step"
            raise bad_value("batch_size", 1, accepted)
        check_before_end(self.first, setup.steps, "from")

    def begin(self, setup: Setup) -> MethodState:
        self.begins = as_step(self.first, setup.steps, "from")
        return {}


@methods.register("state_passing")
class StatePassing(_InitialState):
    """Recurrent layers begin some sequences with the last state of another sequence.

    After training: ``outlast train --start-from RUN --method state_passing --steps 500 --out NEW``.

    Args:
        p: The probability that a sequence does so.
        from: The step, or the share of training, from which on.
    """

    def __init__(self, p: float = 0.5, from_: int | float = 0) -> None:
        super().__init__(p, from_)

    def control(self, step: int, state: MethodState, control: Control) -> None:
        if step >= self.begins:
            control.initial_state["passed"] = self.p


@methods.register("state_noise")
class StateNoise(_InitialState):
    """Recurrent layers begin some sequences with noise that is like the last states of others.

    Args:
        scale: A factor on the spread of the noise.
        p: The probability that a sequence does so.
        from: The step, or the share of training, from which on.
    """

    def __init__(self, scale: float = 1.0, p: float = 0.5, from_: int | float = 0) -> None:
        super().__init__(p, from_)
        require(scale > 0, "scale", scale, "a factor > 0")
        self.scale = scale

    def control(self, step: int, state: MethodState, control: Control) -> None:
        if step >= self.begins:
            control.initial_state |= {"noise": self.p, "scale": self.scale}
