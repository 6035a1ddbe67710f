"""What every mixer and every preset must hold to. A preset is tested as a whole model."""

from __future__ import annotations

from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from outlast.errors import OutlastError
from outlast.methods.base import PATHWAYS
from outlast.mixers import Mixer
from outlast.mixers.attention import blocks
from outlast.models.build import build_model, canonical_layout
from outlast.registry import mixers
from outlast.testing.compare import (
    check_each_seed_alone,
    close,
    stacked_weights,
    strict_vmap,
    untouched_random_state,
)
from outlast.testing.rules import NotApplicable, RuleSet, require
from outlast.testing.subjects import CLASSES, TOKENS, VOCABULARY, Subject

#: into which chunks a row is cut
CHUNKS = ([1] * TOKENS, [3, 4], [6, 1], [1, 6], [2, 2, 3], [2, 1, 4])
#: more tokens than any training sequence here
LONG = 700

#: of both, of mixers alone, and of presets alone
RULES = RuleSet[Subject]()
MIXER_RULES = RuleSet[Subject]()
PRESET_RULES = RuleSet[Subject]()


@MIXER_RULES.rule
def spec_builds_the_same_mixer(subject: Subject) -> None:
    """It is a `Mixer` with a pathway, and its written-out spec builds the same mixer.

    Why: A run folder records the spec. The model is built from it again to resume and to test.
    Fix: Inherit from `outlast.mixers.Mixer`, set `pathway`, and let no weight depend on anything
    but the arguments of the constructor.
    """
    mixer = subject.make()
    require(isinstance(mixer, Mixer), f"it is a {type(mixer).__name__}, not a Mixer")
    assert isinstance(mixer, Mixer)  # for the type checker
    pathway = getattr(mixer, "pathway", None)
    require(pathway in PATHWAYS, f"pathway={pathway}: expected {' | '.join(PATHWAYS)}")
    for line in (mixer.spec, mixers.canonical(subject.line, full=True)):
        again = mixers.build(str(line), width=subject.width)
        require(again.spec == mixer.spec, f"{line} builds {again.spec}, not {mixer.spec}")
        shapes = {n: p.shape for n, p in mixer.state_dict().items()}
        others = {n: p.shape for n, p in again.state_dict().items()}
        require(shapes == others, f"{line} builds weights of other names or shapes")


@PRESET_RULES.rule
def written_out_preset_builds_the_same_model(subject: Subject) -> None:
    """The line of a preset, written out, builds the same model.

    Why: A run folder records the line that is written out, so it means the same for ever.
    Fix: Return a `Layout` without a width, made of mixers and their arguments alone.
    """
    model = subject.make()
    line = str(model.layout)
    require(str(canonical_layout(line)) == line, f"{line} is not written out")
    name = subject.line.partition("(")[0]
    require(name not in line.replace("(", " ").split(), f"{line} contains the preset itself")
    again = build_model(line, VOCABULARY, CLASSES, seed=0).double()
    close(again(subject.input())[0], model(subject.input())[0], atol=1e-11)


@RULES.rule
def output_has_the_shape_and_type_of_the_input(subject: Subject) -> None:
    """The output is (batch, tokens, width), finite, and of the input's type; float32 is close.

    Why: The residual stream adds it to the input. float64 shows errors of other rules.
    Fix: Create tensors with the dtype and device of the input (`x.new_zeros(...)`).
    """
    x = subject.input()
    y, _ = subject.make()(x)
    shape = (*x.shape[:2], VOCABULARY if subject.whole_model else subject.width)
    require(y.shape == shape, f"the output is {tuple(y.shape)}, not {tuple(shape)}")
    require(y.dtype == torch.float64, f"the output for float64 is {y.dtype}")
    require(y.isfinite().all(), "the output is not finite")
    single = x if subject.whole_model else x.float()
    low, _ = subject.make().float()(single)
    require(low.dtype == torch.float32, f"the output for float32 is {low.dtype}")
    torch.testing.assert_close(low.double(), y, rtol=1e-3, atol=1e-4)


@RULES.rule
def chunks_equal_the_whole(subject: Subject) -> None:
    """A row that is fed in chunks, with the state passed on, gives the output of the whole row.

    Why: Long sequences are tested in chunks, and text is generated token by token.
    Fix: Return as `state` all that later tokens need of earlier ones, and use it.
    """
    module, x = subject.make(), subject.input()
    whole = module(x)[0]
    for sizes in CHUNKS:
        outputs, state = [], None
        for chunk in x.split(sizes, 1):
            y, state = module(chunk, state)
            outputs.append(y)
        close(torch.cat(outputs, 1), whole, atol=1e-11, what=f"chunks of {sizes} tokens differ")


@RULES.rule
def state_can_be_used_twice(subject: Subject) -> None:
    """A state that was used is not changed: the same tokens after it give the same output.

    Why: One prefix may be continued in several ways.
    Fix: Return a new state. Change nothing in place in the one that is passed in.
    """
    module, x = subject.make(), subject.input()
    _, state = module(x[:, :3])
    once = module(x[:, 3:], state)[0]
    module(subject.change(x, 4)[:, 3:], state)
    close(module(x[:, 3:], state)[0], once, atol=1e-11, what="a used state gives another output")


@RULES.rule
def is_causal(subject: Subject) -> None:
    """A token changes its own output or a later one, and no earlier one.

    Why: A model that sees later tokens reads answers off the input, and cannot generate.
    Fix: Let token t use tokens up to t alone: `cumsum` and not `sum`, a causal mask, padding on
    the left of a convolution.
    """
    module, x = subject.make(), subject.input()
    before = module(x)[0]
    # one token, or all from one on
    for begin, end in ((0, 1), (1, TOKENS), (3, 4), (4, TOKENS), (TOKENS - 1, TOKENS)):
        after = module(subject.change(x, begin, end))[0]
        what = f"tokens from {begin} on change the output of earlier tokens"
        close(after[:, :begin], before[:, :begin], atol=1e-11, what=what)
        same = torch.allclose(after[:, begin:], before[:, begin:])
        require(not same, f"token {begin} changes nothing")


@RULES.rule
def rows_do_not_see_each_other(subject: Subject) -> None:
    """A row gives the same output alone, among other rows, and in another order of the rows.

    Why: Sequences of a batch are independent. A mixer that mixes them learns from the batch.
    Fix: Take no mean, maximum or norm over the first axis.
    """
    module, x = subject.make(), subject.input()
    y, order = module(x)[0], torch.tensor([2, 0, 1])
    close(module(x[order])[0], y[order], atol=1e-11, what="rows in another order differ")
    close(module(x[:1])[0], y[:1], atol=1e-11, what="a row alone differs")


@RULES.rule
def output_is_deterministic(subject: Subject) -> None:
    """The same input gives the same output, and torch's global random state does not change.

    Why: A resumed run must be bit for bit the run that was not stopped. Only weights are saved.
    Fix: Keep no buffers that a forward pass changes. Draw random numbers through
    `outlast.mixers.randomness`, from the key in `self.context`.
    """
    module, x = subject.make(), subject.input()
    with untouched_random_state():
        same = torch.equal(module(x)[0], module(x)[0])
    require(same, "the same input gave another output the second time")


@RULES.rule
def stacked_seeds_equal_each_seed_alone(subject: Subject) -> None:
    """Seeds stacked by `torch.func.vmap` give outputs and gradients of each seed alone.

    Why: All seeds of a run are trained as one. vmap's slow way around is an error here.
    Fix: Avoid `.item()`, `if` on values, in-place writes to new tensors and `nonzero`. Give a
    custom op a vmap rule.
    """
    copies = [subject.make(seed) for seed in range(3)]
    stacked = stacked_weights(copies)

    def one(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        output: Tensor = functional_call(copies[0], weights, (x,))[0]
        return output

    for shared in (False,) if subject.row_by_row else (False, True):
        inputs = torch.stack([subject.input(seed=s) for s in range(3)])
        inputs = inputs[0] if shared else inputs
        with strict_vmap():
            in_dims = (0 if stacked else None, None if shared else 0)
            if in_dims == (None, None):
                continue
            together = vmap(one, in_dims=in_dims)(stacked, inputs)

        def alone(seed: int, inputs: Tensor = inputs, shared: bool = shared) -> Tensor:
            output: Tensor = copies[seed](inputs if shared else inputs[seed])[0]
            return output

        check_each_seed_alone(together, stacked, copies, alone)


@RULES.rule
@torch.no_grad()
def long_input_works_or_names_the_ceiling(subject: Subject) -> None:
    """A row of 700 tokens works; a mixer with a ceiling works up to it and refuses one token more.

    Why: Length generalisation is measured. A test past a ceiling is written as n/a.
    Fix: Have no maximum length, or set `ceiling` and raise an `OutlastError` that says
    "at most N tokens, got M".
    """
    if subject.row_by_row:
        raise NotApplicable("several blocks of queries are tested in any case")
    for budget in (blocks.BUDGET, 2**16):  # one block of queries, and several
        with patch.object(blocks, "BUDGET", budget):
            _check_ceiling(subject, subject.make().float())


def _single(subject: Subject, tokens: int) -> Tensor:
    """One row of an input, in float32."""
    x = subject.input(tokens=tokens, rows=1)
    return x if subject.whole_model else x.float()


def _check_ceiling(subject: Subject, module: nn.Module) -> None:
    end = getattr(module, "ceiling", None)
    length = LONG if end is None else end
    y = module(_single(subject, length))[0]
    require(y.isfinite().all(), f"the output for {length} tokens is not finite")
    if end is None:
        return
    beyond = _single(subject, end + 1)
    _, state = module(beyond[:, :end])
    for arguments in ((beyond,), (beyond[:, end:], state)):
        try:
            module(*arguments)
        except OutlastError as error:
            expected = f"at most {end} tokens, got {end + 1}"
            require(expected in str(error), f"the error says {str(error)!r}, not {expected!r}")
        else:
            require(False, f"{end + 1} tokens are taken, past its ceiling of {end}")


@RULES.rule
def bfloat16_autocast_is_close_to_float32(subject: Subject) -> None:
    """Under autocast to bfloat16 the output is close to that of float32.

    Why: `precision=bf16` trains under autocast.
    Fix: Leave matmuls to autocast; keep sums over many tokens in float32.
    """
    module, x = subject.make().float(), subject.input()
    x = x if subject.whole_model else x.float()
    with torch.autocast("cpu", torch.bfloat16):
        low, _ = module(x)
    if any(getattr(inner, "jumps", False) for inner in module.modules()):
        require(low.isfinite().all(), "the output is not finite")
        raise NotApplicable("these weights jump: rounding may choose another key")
    torch.testing.assert_close(low.float(), module(x)[0], rtol=0.1, atol=0.1)


@MIXER_RULES.rule
def gradients_are_finite(subject: Subject) -> None:
    """Outputs and gradients are finite for large inputs, zeros, and tokens that are all the same.

    Why: One NaN parks a seed for the rest of its run.
    Fix: Put an epsilon into roots and quotients. Use `torch.where` on inputs, not on results.
    """
    x, module = subject.input(), subject.make().float()
    cases = {
        "large inputs": 100 * x,
        "zeros": 0 * x,
        "tokens that are all the same": x[:, :1].expand(-1, TOKENS, -1),
    }
    for name, case in cases.items():
        inputs = case.float().requires_grad_()
        y = module(inputs)[0]
        require(y.isfinite().all(), f"the output for {name} is not finite")
        for gradient in torch.autograd.grad(y.square().sum(), [inputs, *module.parameters()]):
            require(gradient.isfinite().all(), f"a gradient for {name} is not finite")
