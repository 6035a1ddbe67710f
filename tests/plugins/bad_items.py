"""Items of another package, each with one fault. `FAULTS` says which rule finds it."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any, Literal

import msgspec
import torch
import torch.nn.functional as F

from outlast.methods import Method
from outlast.mixers import Mixer
from outlast.mixers.attention.schemes import Scheme
from outlast.mixers.attention.weights import Weights
from outlast.mixers.base import Linear
from outlast.registry import studies
from outlast.specs import Layout, parse_layout
from outlast.tasks import Batch
from outlast.tasks.parity import Parity

#: by kind and name of the item: the rule that it breaks
FAULTS: dict[tuple[str, str], str] = {}


def breaks(kind: str, rule: str) -> Any:
    """Decorator: an item of a kind that breaks a rule."""

    def keep(factory: Any) -> Any:
        FAULTS[kind, factory.__name__] = rule
        return factory

    return keep


# ---- tasks -------------------------------------------------------------------------------------


@breaks("task", "sample depends on the generator alone")
class GlobalDraws(Parity):
    def sample(self, length, batch, generator):
        return super().sample(
            length, batch, torch.Generator().manual_seed(int(torch.randint(99, ())))
        )


@breaks("task", "ids stay within the vocabulary")
class AnswerTooHigh(Parity):
    def __init__(self) -> None:
        super().__init__()
        self.classes = 1


@breaks("task", "chance level is what a guess gets")
class ChanceTooLow(Parity):
    def chance_level(self, part):
        return 1 / self.vocabulary


@breaks("task", "chance level is what a guess gets")
class ChanceTooHigh(Parity):
    def chance_level(self, part):
        return 0.9


@breaks("task", "range draws every length")
class LongestOnly(Parity):
    def sample(self, length, batch, generator):
        return super().sample(length if isinstance(length, int) else length[1], batch, generator)


@breaks("task", "sample agrees with solve")
class WrongSolver(Parity):
    def solve(self, inputs):
        return [None if answer is None else 1 - answer for answer in super().solve(inputs)]


@breaks("task", "joint samples equal each seed alone")
class RowsSeeEachOther(Parity):
    samples_jointly = True

    def sample(self, length, batch, generator):
        drawn = super().sample(length, batch, generator)
        return Batch(drawn.inputs.roll(1, 0), drawn.targets.roll(1, 0), drawn.part.roll(1, 0))


@breaks("task", "sampling never makes the host wait")
class WaitsForTheDevice(Parity):
    def sample(self, length, batch, generator):
        drawn = super().sample(length, batch, generator)
        assert drawn.inputs.max().item() < self.vocabulary
        return drawn


@breaks("task", "impossible length is refused")
class TakesAnyLength(Parity):
    def sample(self, length, batch, generator):
        low, high = (length, length) if isinstance(length, int) else length
        low = max(low, self.shortest)
        return super().sample((low, max(low, high)), batch, generator)


@breaks("task", "parts have usable names")
class PartCalledJoint(Parity):
    def __init__(self) -> None:
        super().__init__(supervision="outcome")
        self.parts = ("joint",)


@breaks("task", "can be built")
class RaisesWhenBuilt(Parity):
    def __init__(self) -> None:
        raise RuntimeError("no such file")


# ---- mixers ------------------------------------------------------------------------------------


class Plain(Mixer):
    pathway = "recurrent"

    def __init__(self, width: int) -> None:
        super().__init__()
        self.out = Linear(width, width)

    def forward(self, x, state=None):
        return self.out(x), state


@breaks("mixer", "is causal")
class SeesLaterTokens(Plain):
    def forward(self, x, state=None):
        return self.out(x.mean(1, keepdim=True) + x), None


@breaks("mixer", "chunks equal the whole")
class ForgetsItsState(Plain):
    def forward(self, x, state=None):
        return self.out(x.cumsum(1)), None


@breaks("mixer", "state can be used twice")
class ChangesItsState(Plain):
    def forward(self, x, state=None):
        total = x.new_zeros(len(x), 1, x.shape[2]) if state is None else state
        y = self.out(total + x.cumsum(1))
        total += x.sum(1, keepdim=True).detach()
        return y, total


@breaks("mixer", "rows do not see each other")
class MixesRows(Plain):
    def forward(self, x, state=None):
        return self.out(x - x.mean(0)), state


@breaks("mixer", "output is deterministic")
class DrawsGlobally(Plain):
    def forward(self, x, state=None):
        return F.dropout(self.out(x), 0.5), state


@breaks("mixer", "output is deterministic")
class CountsItsCalls(Plain):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.calls = count(1)

    def forward(self, x, state=None):
        return self.out(x) * next(self.calls), state


@breaks("mixer", "stacked seeds equal each seed alone")
class BranchesOnValues(Plain):
    def forward(self, x, state=None):
        y = self.out(x)
        return (y if y.sum() > 0 else 2 * y), state


class OverSeeds(torch.autograd.Function):
    """What seeds give is right while all are finite; a NaN of one reaches all."""

    @staticmethod
    def forward(x):
        return x + 0 * x.sum(-1, keepdim=True)

    @staticmethod
    def setup_context(ctx, inputs, output):
        return

    @staticmethod
    def backward(ctx, gradient):
        return gradient

    @staticmethod
    def vmap(info, in_dims, x):
        return x + 0 * x.sum(), in_dims[0]


@breaks("mixer", "broken seed changes no other")
class SpreadsNaN(Plain):
    def forward(self, x, state=None):
        return OverSeeds.apply(self.out(x)), state


@breaks("mixer", "long input works or names the ceiling")
class SilentCeiling(Plain):
    ceiling = 20


@breaks("mixer", "gradients are finite")
class DividesByZero(Plain):
    def forward(self, x, state=None):
        return self.out(x / x.norm(dim=-1, keepdim=True)), state


@breaks("mixer", "output has the shape and type of the input")
class AlwaysSingle(Plain):
    def forward(self, x, state=None):
        return self.out(x).float(), state


@breaks("mixer", "spec builds the same mixer")
class NoPathway(Plain):
    pathway = "sideways"


@breaks("mixer", "is causal")
class OneBadOption(Plain):
    """Only one of its options sees later tokens."""

    def __init__(self, width: int, size: int, see: Literal["past", "all"] = "past") -> None:
        super().__init__(width)
        self.size, self.see = size, see

    def forward(self, x, state=None):
        return self.out(x + x.mean(1, keepdim=True) if self.see == "all" else x), state


# ---- attention ---------------------------------------------------------------------------------


@breaks("scheme", "is causal")
class EmbedsTheFuture(Scheme):
    def embed(self, x, positions):
        return x + x.mean(1, keepdim=True)


@breaks("scheme", "can be run")
class LooksUpAFutureDistance(Scheme):
    def bias(self, positions, keys):
        table = torch.zeros(self.heads, 8)
        return table[:, 9 + positions[:, None] - keys].unsqueeze(0)


@breaks("scheme", "chunks equal the whole")
class CountsFromTheFirstQuery(Scheme):
    def bias(self, positions, keys):
        far = 0.3 * (positions[:1] - keys).to(torch.float32)
        return far.square().expand(1, self.heads, len(positions), -1)


@breaks("scheme", "uses queries says whether it does")
class HidesItsQueries(Scheme):
    uses_queries = False


@breaks("scheme", "trains with finite losses")
class WeightThatNeverMoves(Scheme):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.scale = torch.nn.Parameter(torch.ones(width))

    def embed(self, x, positions):
        return x * (1 + 0 * self.scale)


@breaks("weights", "chunks equal the whole")
class DividesByQueries(Weights):
    def normalise(self, scores, carry):
        return scores.softmax(-1) / scores.shape[-2], carry


@breaks("weights", "gradients are finite")
class NoEpsilon(Weights):
    def normalise(self, scores, carry):
        parts = scores.clamp_min(0) ** 2
        return parts / parts.sum(-1, keepdim=True), carry


# ---- methods -----------------------------------------------------------------------------------


@breaks("method", "state from json resumes exactly")
class RemembersInItself(Method):
    blocks = 0

    def control(self, step, state, control):
        control.rate["recurrent"] = 1 / (1 + self.blocks)

    def observe(self, step, losses, state):
        self.blocks += 1
        return []


@breaks("method", "seeds do not share state")
class SharesItsState(Method):
    def __init__(self) -> None:
        self.state: dict[str, Any] = {"blocks": 0}

    def begin(self, setup):
        return self.state

    def observe(self, step, losses, state):
        state["blocks"] += 1
        return []


@breaks("method", "control is a pure function")
class ChangesStateInControl(Method):
    def begin(self, setup):
        return {"calls": 0}

    def control(self, step, state, control):
        state["calls"] += 1


@breaks("method", "controls and events are valid")
class WeighsAnUnknownPart(Method):
    def control(self, step, state, control):
        control.loss_weights["recal"] = 0.0


# ---- presets and studies -----------------------------------------------------------------------


@breaks("preset", "output is deterministic")
def draws_somewhere() -> Layout:
    return parse_layout("DrawsGlobally > mlp")


def _phase1(scale: str) -> Any:
    return studies.entry("phase1").factory(scale=scale)


@breaks("study", "claims are about what is tested")
def claims_of_no_arm(scale: Literal["demo", "paper"] = "demo") -> Any:
    study = _phase1(scale)
    claims = [msgspec.structs.replace(claim, arm="nobody") for claim in study.claims]
    return replace(study, name="claims_of_no_arm", claims=claims)


@breaks("study", "has words and arms with distinct names")
def no_question(scale: Literal["demo", "paper"] = "demo") -> Any:
    return replace(_phase1(scale), name="no_question", question="It is so.")


@breaks("study", "has a demo and a larger scale")
def no_paper(scale: Literal["demo"] = "demo") -> Any:
    return replace(_phase1(scale), name="no_paper")


def good_study(scale: Literal["demo", "paper"] = "demo") -> Any:
    """A study without a fault."""
    return replace(_phase1(scale), name="good_study")


def twice(scale: Literal["demo", "paper"] = "demo") -> Any:
    """A study that has the name of a task."""
    return good_study(scale)


class Twice(Parity):
    """A task that has the name of a study."""
