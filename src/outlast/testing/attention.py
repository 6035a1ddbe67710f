"""What every scheme and all weights of attention must hold to, beside the rules for mixers.

A scheme is tested as `attention(scheme, heads=2)`, weights as `attention(heads=2, weights=...)`.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from outlast.errors import SpecError
from outlast.mixers.attention import Attention, compiled
from outlast.mixers.attention.look import Look
from outlast.mixers.attention.schemes.base import Scheme
from outlast.mixers.attention.weights.base import Weights
from outlast.models import build_model
from outlast.registry import mixers, schemes, weightings
from outlast.testing.compare import close, randn
from outlast.testing.rules import NotApplicable, RuleSet, require
from outlast.testing.subjects import TOKENS, Subject, plain_lines
from outlast.testing.training import InMemory, small_run

WIDTHS = (8, 16, 32, 64, 128)
HEADS = 2
#: of a layer: a subject whose line is `attention(...)`
RULES = RuleSet[Subject]()
#: the same, by code that is compiled
COMPILED_RULES = RuleSet[Subject]()
#: of the line of a scheme
SCHEME_RULES = RuleSet[str]()
#: of the line of weights
WEIGHTS_RULES = RuleSet[str]()


def scheme_layer(line: str) -> str:
    """The attention in which a scheme is tested."""
    return f"attention({line}, heads={HEADS})"


def weights_layer(line: str) -> str:
    """The attention in which weights are tested."""
    return f"attention(heads={HEADS}, weights={line})"


def _layer(subject: Subject) -> Attention:
    layer = subject.make()
    if not isinstance(layer, Attention):
        raise NotApplicable("this is a rule for attention")
    return layer


@RULES.rule
def parts_know_their_specs(subject: Subject) -> None:
    """It is a `Scheme` or `Weights`, and the layer's written-out spec builds the same ones.

    Why: A run folder records the spec. The model is built from it again to resume and to test.
    Fix: Inherit from `Scheme` or `Weights`, and call `super().__init__(width, heads)`.
    """
    layer = _layer(subject)
    require(isinstance(layer.scheme, Scheme), f"{layer.scheme} is not a Scheme")
    require(isinstance(layer.weights, Weights), f"{layer.weights} is not Weights")
    lines = [layer.spec, mixers.canonical(subject.line)]
    for line in (*lines, mixers.canonical(subject.line, full=True)):
        again = mixers.build(str(line), width=subject.width)
        for one, other in ((again, layer), (again.scheme, layer.scheme)):
            require(one.spec == other.spec, f"{line} builds {one.spec}, not {other.spec}")
        require(again.weights.spec == layer.weights.spec, f"{line} builds {again.weights.spec}")


@RULES.rule
def fast_path_equals_the_reference(subject: Subject) -> None:
    """Whatever path attention takes, output and gradients are those of the whole score table.

    Why: `bias` goes through a fused softmax and `scores` a block of queries at a time. Both must
    mean the same.
    Fix: Let a result depend on `positions` and `keys`, not on the number of queries or keys that a
    call happens to see. A kernel (`fused`, `attend`) must agree with the definition.
    """
    layer, x = _layer(subject), subject.input().requires_grad_()
    inputs, upstream = [x, *layer.parameters()], randn(*x.shape, seed=1)
    fast = layer(x)[0]
    actual = torch.autograd.grad((fast * upstream).sum(), inputs)
    # the whole table of scores at once, by the definition and nothing faster
    reference = Look(layer.scheme, layer.weights)
    with patch.object(layer, "_look", lambda inputs, packed: reference(inputs)):
        truth = layer(x)[0]
        wanted = torch.autograd.grad((truth * upstream).sum(), inputs)
    close(fast, truth, what="the fast path gives another output")
    for got, want in zip(actual, wanted, strict=True):
        close(got, want, what="the fast path gives another gradient")
    single, _ = _layer(subject).float()(x.detach().float())
    close(single.double(), truth, 1e-4, what="float32 gives another output")


@COMPILED_RULES.rule
def compiled_path_equals_the_plain_one(subject: Subject) -> None:
    """What `torch.compile` makes of it gives the same output and gradients.

    Why: On a GPU, large tables of scores are computed by compiled code.
    Fix: Use operations of torch alone, with no Python branch on the value of a tensor.
    """
    layer, x = _layer(subject), subject.input().requires_grad_()
    inputs, upstream = [x, *layer.parameters()], randn(*x.shape, seed=1)

    def results() -> list[Tensor]:
        y = layer(x)[0]
        return [y, *torch.autograd.grad((y * upstream).sum(), inputs)]

    wanted = results()
    # as on a GPU where tables are large, through a backend that needs no compiler
    instead: dict[str, Any] = {"BACKEND": "aot_eager", "FEWEST": 1, "_has_compiler": lambda q: True}
    compiled._program.cache_clear()
    with patch.multiple(compiled, **instead):
        actual = results()
    programs = compiled._program.cache_info().currsize
    compiled._program.cache_clear()
    if not programs:
        raise NotApplicable("a kernel computes it, so nothing is compiled")
    for got, want in zip(actual, wanted, strict=True):
        close(got, want, what="compiled code gives another result")


@SCHEME_RULES.rule
def works_in_whole_models(line: str) -> None:
    """It works in a preset that takes a scheme, and in a plain block, with finite gradients.

    Why: A scheme goes wherever another one does.
    Fix: Every parameter must take part in the output. See the rules for mixers first.
    """
    tokens = torch.randint(5, (2, TOKENS), generator=torch.Generator().manual_seed(0))
    width = Subject.mixer(scheme_layer(line), WIDTHS).width
    for model in (f"tra_transformer({line}, heads=2)", f"2 x (attention({line}, heads=2) > mlp)"):
        built = build_model(f"{model} @ {width}", 5, 3, seed=0)
        logits, _ = built(tokens)
        gradients = torch.autograd.grad(logits.square().sum(), list(built.parameters()))
        finite = all(gradient.isfinite().all() for gradient in gradients)
        require(finite, f"a gradient of {model} is not finite")


@SCHEME_RULES.rule
def uses_queries_says_whether_it_does(line: str) -> None:
    """`uses_queries` is true if and only if the output depends on the queries.

    Why: Weights that scale the queries are refused beside a scheme that uses none.
    Fix: Set `uses_queries = False` in a scheme whose scores ignore `q`.
    """
    subject = Subject.mixer(scheme_layer(line), WIDTHS)
    layer, x = _layer(subject), subject.input(rows=2)
    before = layer(x)[0]
    with torch.no_grad():
        layer.qkv.weight[: subject.width] *= -0.5
    depends = not torch.allclose(layer(x)[0], before)
    said = layer.scheme.uses_queries
    require(said == depends, f"uses_queries is {said}, but the output says {depends}")


@SCHEME_RULES.rule
def combines_with_all_weights_or_refuses_them(line: str) -> None:
    """With all weights of this library, attention works in chunks or is refused.

    Why: Schemes and weights combine freely.
    Fix: Let `scores` be finite for keys that a query may see. Define `weigh` only if no weights
    are meant to follow.
    """
    for weights in plain_lines(weightings, ours=True):
        check_combination(line, weights)


@WEIGHTS_RULES.rule
def combines_with_every_scheme_or_is_refused(line: str) -> None:
    """With every scheme of this library, attention works in chunks or is refused.

    Why: Schemes and weights combine freely.
    Fix: Accept scores of any size, -inf for later keys. Keep in `carry` what must be known of
    earlier queries.
    """
    for scheme in plain_lines(schemes, ours=True):
        check_combination(scheme, line)


def check_combination(scheme: str, weights: str) -> None:
    """A scheme and weights work together, or are refused with the reason."""
    line = f"attention({scheme}, heads={HEADS}, weights={weights})"
    width = Subject.mixer(scheme_layer(scheme), WIDTHS).width
    layout: Scheme = schemes.build(scheme, width=width, heads=HEADS)
    weighting: Weights = weightings.build(weights, width=width, heads=HEADS)
    if layout.weighs and weights != "softmax":
        _require_refused(line, width, "this scheme makes its own weights")
    elif weighting.sharpens and not layout.uses_queries:
        _require_refused(line, width, "these weights scale queries")
    else:
        subject = Subject(line, width)
        layer, x = subject.make(), subject.input(rows=2)
        first, state = layer(x[:, :3])
        whole = layer(x)[0]
        close(torch.cat([first, layer(x[:, 3:], state)[0]], 1), whole, what=f"{line} in chunks")
        gradients = torch.autograd.grad(whole.square().sum(), list(layer.parameters()))
        finite = all(gradient.isfinite().all() for gradient in gradients)
        require(finite, f"a gradient of {line} is not finite")


def _require_refused(line: str, width: int, reason: str) -> None:
    try:
        mixers.build(line, width=width)
    except SpecError as error:
        require(reason in str(error), f"{line} is refused, but not because {reason}: {error}")
    else:
        require(False, f"{line} is taken, though {reason}")


@SCHEME_RULES.rule
def trains_with_finite_losses(line: str) -> None:
    """It trains for a few steps with finite losses, positions counted or drawn; all weights move.

    Why: Seeds lie in one table, also where a weight is one number. A weight that never moves is
    none.
    Fix: Let every parameter take part in the output. Accept positions that increase by more than 1.
    """
    subject = Subject.mixer(scheme_layer(line), WIDTHS)
    ceiling = _layer(subject).ceiling
    reach = 32 if ceiling is None else min(32, ceiling)
    for methods in ((), (f"random_positions(range={reach})",)):
        model = f"attention({line}, heads={HEADS}, dropout=0.1) > mlp @ {subject.width}"
        run = small_run(*methods, model=model, steps=4, steps_per_block=2, checkpoint_every=2)
        training = InMemory(run)
        before = {n: t.clone() for n, t in training.run.test_weights().items()}
        training.steps(4)
        after = training.run.test_weights()
        losses = torch.tensor([training.losses(seed) for seed in run.seeds])
        require(losses.isfinite().all(), "a loss is not finite")
        for name in before:
            require(after[name].isfinite().all(), f"{name} is not finite")
            require(not torch.equal(before[name], after[name]), f"{name} does not move")
