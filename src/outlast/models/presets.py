"""Presets: names for layout lines that come up often. `outlast list` shows them.

A preset may stand wherever a mixer may: ``--model serial``, ``--model "serial @ 64"``. A preset
that sets an option for the whole model must stand alone.
"""

from __future__ import annotations

from dataclasses import replace

from outlast.mixers.randomness import check_dropout
from outlast.registry import presets
from outlast.specs import Layout, Spec, Value, parse_layout


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
