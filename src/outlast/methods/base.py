"""The interface of every method.

A method never touches a model or an optimiser. Before each step it edits the `Control` of that
step, as a pure function of the step and of a small state. After each block it sees the losses of
the block and may change that state. The state is plain JSON, so a run that was killed and resumed
is bit for bit the run that was not::

    state = method.begin(setup)                      # {} or a few numbers
    for block in training:
        for step in block:
            control = Control.plain(setup)
            method.control(step, state, control)     # open gates, weigh losses, pick lengths
            ... one optimiser step under that control ...
        events = method.observe(step, losses, state) # pull triggers
        if method.held_out(state):                   # multiples of the training length
            method.observe_held_out(step, held_out_losses, state)

Each seed has its own state, so each seed switches on its own.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outlast.mixers.base import Pathway
from outlast.specs import Spec

PATHWAYS: tuple[Pathway, ...] = ("recurrent", "attention", "pointwise")
#: controls by pathway: every sublayer has a buffer of that name, and a mode (`gate_mode`)
SUBLAYER_CONTROLS = ("gate", "upstream_grad", "keep")
#: parts of the weights that can be fixed by themselves (`Mixer.fixable`)
FIXABLE = ("qk", "values")
#: how a recurrent layer begins a training sequence: the share of sequences that begin with the last
#: state of another one, the share that begin with noise, and the scale of that noise
INITIAL_STATE = ("passed", "noise", "scale")
MethodState = dict[str, Any]
#: for each part of the task, its loss at each step of the block
Losses = dict[str, Sequence[float]]
#: for each multiple of the training length, the loss of each part on held-out sequences
HeldOutLosses = Mapping[float, Mapping[str, float]]
#: what stands for a held-out loss that is not finite: a long sequence may overflow
WORST_LOSS = 1e9


@dataclass(frozen=True)
class Setup:
    """What a method may know of the run it is part of."""

    steps: int
    parts: tuple[str, ...]
    lengths: tuple[int, int]
    #: the most tokens of a training sequence, and the most that the model can take (None: no limit)
    tokens: int = 0
    ceiling: int | None = None
    #: the model's line, and the pathways that its sublayers have
    model: str = ""
    pathways: tuple[Pathway, ...] = PATHWAYS
    #: the parts of its weights that can be fixed
    fixable: tuple[str, ...] = FIXABLE
    #: the longest length that the task can make (None: no limit)
    longest: int | None = None
    #: whether any of its attention can be kept to a window
    takes_window: bool = True
    #: between how many pairs of sublayers, one after the other, tokens can be mixed
    mixing_points: int = 1
    #: of the task: whether it reads text, and `Task.answers_are_states`
    reads_text: bool = True
    answers_are_states: bool = True
    #: the task's line in its short form
    task: str = ""
    #: the loss of a guess at an answer, by part; empty if it is not known
    guesses: Mapping[str, float] = field(default_factory=dict)
    #: the sequences of a step; None: it is not known
    batch_size: int | None = None

    @property
    def named_task(self) -> str:
        """The task as an error names it: ``task=addition (parts: sum)``."""
        return f"task={self.task or '?'} (parts: {', '.join(self.parts)})"


def _ones() -> dict[Pathway, float]:
    return dict.fromkeys(PATHWAYS, 1.0)


@dataclass
class Control:
    """One step of one seed: everything a method may change.

    A field that is a dict of numbers, or one float, is a table of the plan under its own name.
    """

    #: of the loss of each part of the task
    loss_weights: dict[str, float]
    #: shortest and longest sequence; read at the first step of a block
    lengths: tuple[int, int]
    #: the range that positions are drawn from, 0 if they are counted; read at the first step of a
    #: block
    span: int = 0
    #: sizes of attention's window: each step draws one; with none attention sees all keys so far
    windows: Sequence[int] = ()
    gate: dict[Pathway, float] = field(default_factory=_ones)
    upstream_grad: dict[Pathway, float] = field(default_factory=_ones)
    #: the share of a step's sequences to which the pathway adds anything; all of them in a test
    keep: dict[Pathway, float] = field(default_factory=_ones)
    #: a factor on the learning rate
    rate: dict[Pathway, float] = field(default_factory=_ones)
    #: 1 where a part of the weights is left as it is: no gradient, no decay
    fixed: dict[str, float] = field(default_factory=lambda: dict.fromkeys(FIXABLE, 0.0))
    #: the share of sequences whose blocks of tokens are shuffled, and the tokens of a block
    shuffle: dict[str, float] = field(default_factory=lambda: {"share": 0.0, "block": 0.0})
    #: the share of tokens to exchange for tokens of other sequences that have the same answer
    mix: float = 0.0

    #: of recurrent layers; by default every sequence begins with no state
    initial_state: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(INITIAL_STATE, 0.0)
    )

    @classmethod
    def plain(cls, setup: Setup) -> Control:
        """Train all pathways on all parts."""
        return cls(dict.fromkeys(setup.parts, 1.0), setup.lengths)

    def learns(self, pathway: Pathway) -> bool:
        """Whether the weights of this pathway move at all."""
        return self.rate[pathway] > 0 and self.gate[pathway] > 0


@dataclass(frozen=True)
class Event:
    """An entry for the metrics. ``restart`` asks for fresh weights for that seed."""

    name: str
    details: dict[str, Any] = field(default_factory=dict)


class Method(ABC):
    """Base of every method. Without overrides it does nothing."""

    spec: Spec
    paper: str = ""
    #: the decay of the average of the weights, if this method wants one
    average: float | None = None
    #: whether it may ask for fresh weights by an event ``restart``; not in a run that starts from
    #: the weights of another one
    restarts: bool = False

    def check(self, setup: Setup) -> None:
        """Raise if a new run with this method makes no sense. It is not called on resume."""
        return

    def begin(self, setup: Setup) -> MethodState:
        """The state before the first step. Arguments that do not fit the run are refused here."""
        return {}

    def control(self, step: int, state: MethodState, control: Control) -> None:
        """Edit the control of step number `step` (from 0)."""
        return

    def observe(self, step: int, losses: Losses, state: MethodState) -> list[Event]:
        """Look at the losses after `step` steps, and update the state in place."""
        return []

    def held_out(self, state: MethodState) -> tuple[float, ...]:
        """Multiples of the training length of which it wants held-out losses after this block."""
        return ()

    def observe_held_out(self, step: int, losses: HeldOutLosses, state: MethodState) -> None:
        """Look at the losses of held-out sequences after `step` steps, after `observe`.

        They are always the same sequences. All losses are finite.
        """
        return
