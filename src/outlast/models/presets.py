"""Presets: names for layout lines that come up often. `outlast list` shows them.

A preset may stand wherever a mixer may: ``--model serial``, ``--model "serial @ 64"``. A preset
that sets an option for the whole model must stand alone.

A preset may also be a whole training: a `RunSpec` with task, model, methods and settings. ``outlast
train --preset reach`` takes from it whatever is not given, and so do ``outlast sweep`` and
``outlast.fit(preset="reach", ...)``. In a model line it stands for its model. Its ``head`` is meant
for its own task; on another one that has more answers it is widened. On a task without a state it
has no delayed attention.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from outlast.errors import SpecError, bad_value
from outlast.mixers.randomness import check_dropout
from outlast.registry import presets, suggest
from outlast.runs.spec import RunSpec, Settings
from outlast.specs import Layout, Spec, Value, parse_layout

#: with it the first phase converges more often on a small parity
ORTHOGONAL = "lstm(init=orthogonal, forget_bias=1)"


@presets.register("transformer")
def transformer() -> Layout:
    """A plain Transformer without positions: attention and MLP."""
    return parse_layout("4 x (attention > mlp)")


@presets.register("recurrent")
def recurrent() -> Layout:
    """A plain recurrent stack: LSTM and MLP."""
    return parse_layout("4 x (lstm > mlp)")


@presets.register("serial")
def serial() -> Layout:
    """The serial hybrid: LSTM, then attention, then MLP, in each block."""
    return parse_layout("4 x (lstm > attention > mlp)")


@presets.register("parallel")
def parallel() -> Layout:
    """The parallel hybrid: LSTM and attention side by side, then MLP."""
    return parse_layout("4 x (lstm | attention > mlp)")


@presets.register("interleaved")
def interleaved() -> Layout:
    """The interleaved hybrid: two recurrent blocks to one of attention."""
    return parse_layout("2 x (lstm > mlp > lstm > mlp > attention > mlp)")


@presets.register("tra_transformer")
def tra_transformer(
    scheme: Spec = Spec("tra"),
    heads: int = 4,
    weights: Spec = Spec("softmax"),
    dropout: float = 0.0,
) -> Layout:
    """The flip-flop Transformer of the TRA authors (2503.23174), with any scheme and weights.

    Four times x <- RMS(x), x <- x + attention(x), x <- RMS(x), x <- x + MLP(x): the stream carries
    the normalised x. MLP a * SiLU(b) with d -> (2d, 2d) -> d; embedding U(±0.01). Theirs is 256
    wide: ``tra_transformer @ 256``, about 2.64 M parameters. Ours: the bias of the output map.

    ``dropout=0.01`` is theirs: of the embedding, of attention's logits, and inside the MLP. Off by
    default [deviation]: no fused attention can drop logits, so it costs a table of all of them.

    Args:
        scheme: How position enters: see `outlast list schemes`.
        heads: How many heads share the width.
        weights: How scores become weights: see `outlast list weights`.
        dropout: The share set to 0 in training, of the embedding, the logits and the MLP.
    """
    check_dropout(dropout)
    shared: tuple[tuple[str, Value], ...] = (("dropout", dropout),) if dropout else ()
    attention = Spec("attention", (scheme,), (("heads", heads), ("weights", weights), *shared))
    mlp = Spec("glu", (), (("expand", 2.0), *shared))
    line = parse_layout(f"4 x ({attention} > {mlp}) @ 1, embedding=uniform(0.01), norm=rms")
    return replace(line, width=None, residual="normalised", dropout=dropout or None)


@presets.register("reach")
def reach(size: Literal["full", "small"] = "full") -> RunSpec:
    """State and recall far past the training length: task, model, method and settings in one word.

    A serial hybrid with delayed attention. The convolution gives each value its key, which the
    first phase forgets; a scalable softmax keeps attention sharper at length. `full` also has one
    wide head and the convolution before the LSTM, and half of its rows in training have keys that
    are easily confused. `outlast reproduce reach` says how far both go.

    Args:
        size: `full` has a sum modulo 10 and wants a GPU; `small` has a parity, one block of width
            64, and takes minutes on a laptop.
    """
    if size == "small":
        return RunSpec(
            "composite(modulus=2, keys=4096, queries=4, length=8)",
            f"1 x ({ORTHOGONAL} > conv(kernel=2) > attention(heads=2, weights=scalable) > mlp) "
            "@ 64, head=2",
            # a threshold on rows as long as in training lets some seeds pass that have no state
            ("dat(switch=converged, latest=0.4, otherwise=retry)",),
            settings=Settings(steps=8000, batch_size=32, lr=2e-3, decay_from=0.5),
        )
    return RunSpec(
        # enough keys for 4,000 times the length, and rows in training whose keys are as alike as
        # those of long rows; the convolution reaches from a value to the first token of its key.
        # Before the LSTM it also brings a digit and the token before it to the LSTM in one step
        "composite(modulus=10, keys=320, key_tokens=2, key_pool=8, queries=8, length=25)",
        "2 x (conv(kernel=3) > lstm > attention(heads=1, weights=scalable) > mlp)",
        # a first phase that converges late often does not hold far out: better to begin anew
        ("dat(switch=converged, rate=0.5, latest=0.15, otherwise=retry)",),
        settings=Settings(steps=20000, by_length=True, checkpoint_every=2500),
    )


def find_preset(spec: Spec) -> Layout | RunSpec:
    """What a preset stands for: a model line, or a whole training."""
    preset: Layout | RunSpec = presets.entry(spec.name).factory(**presets.bind(spec))
    return preset


def find_training(spec: Spec) -> RunSpec:
    """The whole training that a preset stands for; one that is a model line alone is an error."""
    preset = find_preset(spec) if spec.name in presets else None
    if isinstance(preset, RunSpec):
        return preset
    known = [name for name in presets.names() if _is_training(name)]
    accepted = "a preset that is a whole training"
    if preset is None:
        raise bad_value("preset", spec, f"{accepted}{suggest(spec.name, known)}")
    model = f"{spec} is a model line: model={spec}"
    raise bad_value("preset", spec, f"{accepted}: {' | '.join(known)} ({model})")


def _is_training(name: str) -> bool:
    try:
        return isinstance(find_preset(Spec(name)), RunSpec)
    except SpecError:  # it needs arguments
        return False


def preset_layout(spec: Spec) -> Layout:
    """The model line that a preset stands for."""
    preset = find_preset(spec)
    return parse_layout(preset.model) if isinstance(preset, RunSpec) else preset
