"""The model: embedding, sublayers behind gates, norm, output.

Every sublayer adds ``gate * f(norm(x))`` to the residual stream. With ``residual=normalised`` the
stream itself is normalised first: x <- norm(x), then x <- x + gate * f(x). A gate at 0 skips the
sublayer. A gate at 1 costs nothing. Any other gate is a multiplication. `upstream_grad` is the
share of the gradient that passes from a sublayer to the layers before it. At 1 all of it passes. At
0 the sublayer learns, and the layers before it do not learn from it. `keep` is the share of
sequences to which a sublayer adds anything in a training pass; a pathway is left out as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from outlast.arguments import as_whole, shown
from outlast.errors import OutlastError, bad_value
from outlast.kernels.dispatch import hides_numbers
from outlast.mixers.base import Context, Linear, Mixer, Norm, Pathway, RMSNorm, State
from outlast.mixers.randomness import (
    EMBEDDING,
    SEQUENCES,
    draw_true,
    drop,
    fixed_positions,
    fold_in,
)
from outlast.models.arguments import (
    check_key,
    check_positions,
    check_state,
    check_tokens,
    check_window,
    read_gate,
    wrong_token,
)
from outlast.models.generate import generate, in_chunks
from outlast.models.mixing import Mix
from outlast.models.residual import ResidualStream
from outlast.specs import Layout, Spec

GateMode = Literal["off", "on", "between"]
#: torch's default; smaller ones learn the training lengths sooner and nothing beyond: docs/findings
EMBEDDING_SCALE = 1.0
ModelState = tuple[State, ...]
#: far more tokens than memory holds
MOST_TOKENS = 2**31 - 1


def gate_mode(values: list[float]) -> GateMode:
    """Whether all gates of a list are 0, all are 1, or neither."""
    if all(v == 0 for v in values):
        return "off"
    return "on" if all(v == 1 for v in values) else "between"


def make_norm(width: int, kind: str | None) -> Norm | RMSNorm:
    """The norm that a line asks for."""
    return RMSNorm(width) if kind == "rms" else Norm(width)


class Sublayer(nn.Module):
    """One mixer behind its norm and gate. `forward` returns what is added to the stream."""

    gate: Tensor
    upstream_grad: Tensor
    keep: Tensor

    def __init__(
        self, width: int, mixer: Mixer, norm: str | None = None, residual: str | None = None
    ) -> None:
        super().__init__()
        self.norm = make_norm(width, norm)
        self.mixer = mixer
        self.normalised = residual == "normalised"
        # buffers, so that a stacked model can hold one value for each seed; never saved
        self.register_buffer("gate", torch.ones(()), persistent=False)
        self.register_buffer("upstream_grad", torch.ones(()), persistent=False)
        self.register_buffer("keep", torch.ones(()), persistent=False)
        self.gate_mode: GateMode = "on"
        self.upstream_grad_mode: GateMode = "on"
        self.keep_mode: GateMode = "on"
        #: of the current pass: decides which sequences are left out. Without it none are
        self.keep_key: Tensor | None = None
        #: whether the stream may add the mixer's last bias, without the mixer's `forward`. This is
        #: allowed only if nobody has replaced `forward` or hooked on to it.
        self.lends_bias = False

    @property
    def pathway(self) -> Pathway:
        return self.mixer.pathway

    def set_gate(self, value: float) -> None:
        """Open (1), close (0) or half open this sublayer."""
        value = read_gate(value)
        self.gate.fill_(value)
        self.gate_mode = gate_mode([value])

    def set_upstream_grad(self, value: float) -> None:
        """Let gradients pass upstream (1), stop them (0), or scale them."""
        value = read_gate(value)
        self.upstream_grad.fill_(value)
        self.upstream_grad_mode = gate_mode([value])

    def enter(self, stream: ResidualStream) -> ResidualStream:
        """The stream from here on: x as it is, or normalised."""
        if not self.normalised or self.gate_mode == "off":
            return stream
        return stream.normalised(self.norm)

    def forward(
        self, x: Tensor | ResidualStream, state: State = None
    ) -> tuple[Tensor | None, State]:
        """What is added to a stream after `enter`, (batch, tokens, width); None: nothing."""
        if self.gate_mode == "off":
            return None, state
        stream = x if isinstance(x, ResidualStream) else ResidualStream(x)
        y, state = self.mixer(self._mixer_input(stream), state)
        if self.keep_mode != "on" and self.keep_key is not None:
            kept = draw_true(self.keep_key, self.keep, y.shape[0])
            y = y.masked_fill(~kept[:, None, None], 0)
        return (y if self.gate_mode == "on" else self.gate * y), state

    def add_to(
        self, total: ResidualStream, stream: ResidualStream, state: State
    ) -> tuple[ResidualStream, State]:
        """`total` plus the output of this sublayer for a stream after `enter`."""
        adds_all = self.gate_mode == self.keep_mode == "on"
        if self.lends_bias and adds_all and stream.defers_sums:
            y, bias, state = self.mixer.unbiased(self._mixer_input(stream), state)
            return total.plus(y, bias), state
        output, state = self(stream, state)
        return (total if output is None else total.plus(output)), state

    def _mixer_input(self, stream: ResidualStream) -> Tensor:
        if self.upstream_grad_mode != "on":
            x, detached = stream.x, stream.x.detach()
            if self.upstream_grad_mode == "off":
                stream = ResidualStream(detached)
            else:
                stream = ResidualStream(detached + self.upstream_grad * (x - detached))
        return stream.narrow if self.normalised else stream.normed(self.norm)


class Chain(nn.Module):
    """``a > b > c``: one after another on the residual stream."""

    def __init__(self, nodes: list[nn.Module]) -> None:
        super().__init__()
        self.nodes = nn.ModuleList(nodes)
        #: of the current pass; the model sets it
        self.mix: Mix | None = None

    def forward(
        self, stream: ResidualStream, states: Iterator[State], after: list[State]
    ) -> ResidualStream:
        for number, node in enumerate(self.nodes):
            if self.mix is not None and number:
                stream = ResidualStream(self.mix.after(number - 1, stream.x))
            if isinstance(node, Sublayer):
                stream = node.enter(stream)
                stream, state = node.add_to(stream, stream, next(states))
                after.append(state)
            else:
                stream = node(stream, states, after)
        return stream


class Branches(nn.Module):
    """``a | b``: side by side on the same input; what they add is summed."""

    def __init__(self, nodes: list[nn.Module]) -> None:
        super().__init__()
        self.nodes = nn.ModuleList(nodes)

    def forward(
        self, stream: ResidualStream, states: Iterator[State], after: list[State]
    ) -> ResidualStream:
        total = stream
        for node in self.nodes:
            if isinstance(node, Sublayer):
                total, state = node.add_to(total, stream, next(states))
                after.append(state)
            else:
                total = total.plus(node(stream, states, after).x - stream.x)
        return total


class Model(nn.Module):
    """Tokens (batch, tokens) to logits (batch, tokens, outputs), whole or in chunks.

    A model trained with `random_positions` has a `span`, the range they were drawn from. A call of
    such a model without a state is a whole sequence and gets the `positions` of its length. Chunks
    need their positions from the first chunk on, because the draw depends on the whole length.
    """

    def __init__(self, layout: Layout, body: Chain, vocabulary: int, outputs: int) -> None:
        super().__init__()
        if layout.width is None:
            raise ValueError("a model's layout has a width")
        self.layout = layout
        self.embedding = nn.Embedding(vocabulary, layout.width)
        if isinstance(layout.embedding, Spec):
            (bound,) = layout.embedding.args
            nn.init.uniform_(self.embedding.weight, -bound, bound)  # type: ignore[operator,arg-type]
        else:
            nn.init.normal_(self.embedding.weight, std=layout.embedding or EMBEDDING_SCALE)
        self.body = body
        self.span = 0
        self.norm = make_norm(layout.width, layout.norm)
        self.head = Linear(layout.width, outputs)

    def forward(
        self,
        tokens: Tensor,
        state: ModelState | None = None,
        *,
        positions: Tensor | None = None,
        key: Tensor | None = None,
        total: int | None = None,
        window: Tensor | None = None,
        mix: Mix | None = None,
    ) -> tuple[Tensor, ModelState]:
        """Logits (batch, tokens, outputs) and the state after these tokens.

        `positions` (tokens,) are the increasing positions of the tokens, if they are not counted.
        `key` () is a whole number, new in each training step: the key of all dropout. Without a key
        nothing is dropped. `total`, given from the first chunk on, is how many tokens will come in
        all. The state then has room for them, and each chunk writes into the room of the state it
        was given. `window` () is how many keys a query of attention sees, itself among them;
        without it all keys so far. `mix` says which tokens are exchanged inside the model.
        """
        check_tokens(tokens, self.embedding.weight.device)
        sublayers = len(self.sublayers())
        if state is not None:
            check_state(state, sublayers, tokens)
        if key is not None:
            check_key(key)
        if window is not None:
            check_window(window)
        if mix is not None and not isinstance(mix, Mix):
            raise bad_value("mix", shown(mix), "a Mix of outlast.models.mixing, or None")
        before = iter([None] * sublayers if state is None else state)
        after: list[State] = []
        if positions is None:
            positions = self.positions(tokens.shape[1])
            if positions is not None and state is not None:
                raise OutlastError(
                    "this model was trained with random_positions: give positions= with every "
                    "chunk, the chunk's part of model.positions(all tokens)"
                )
        else:
            check_positions(positions, tokens)
        with self._in_context(Context(positions, key, total, window), mix):
            embedded = self._embed(tokens)
            if key is not None and self.layout.dropout:
                embedded = drop(embedded, self.layout.dropout, fold_in(key, EMBEDDING))
            stream = self.body(ResidualStream(embedded), before, after)
        return self.head(stream.normed(self.norm)), tuple(after)

    def in_chunks(self, tokens: Tensor, size: int) -> Iterator[Tensor]:
        """The logits of `size` tokens after the other, each (batch, size or fewer, outputs).

        They are those of a whole pass. The state is carried along, without gradients, so memory is
        linear in the number of tokens.

        Args:
            tokens: Whole numbers (batch, tokens).
            size: How many tokens are read at a time.
        """
        return in_chunks(self, tokens, size)

    def generate(
        self,
        tokens: Tensor,
        n: int,
        temperature: float = 0.0,
        top_k: int | None = None,
        seed: int | torch.Generator = 0,
    ) -> Tensor:
        """These tokens and `n` more after each row, (batch, tokens + n).

        The logits of a token are taken as those of the token after it. Each token is read once: the
        state is carried along. The model must have an output for every token.

        Args:
            tokens: Whole numbers (batch, tokens), at least one token in each row.
            n: How many tokens follow.
            temperature: What the logits are divided by before a token is drawn. 0 takes the
                likeliest token.
            top_k: Draw from the likeliest `top_k` tokens only; those that tie with the last of
                them count too.
            seed: The draws come from it alone. A generator on the model's device goes on from where
                it is.
        """
        return generate(self, tokens, n, temperature, top_k, seed)

    def _embed(self, tokens: Tensor) -> Tensor:
        try:
            return self.embedding(tokens)  # type: ignore[no-any-return]
        except IndexError:  # of a CPU; a GPU stops with an error of its own
            if hides_numbers(tokens):
                raise
            raise wrong_token(tokens, self.embedding.num_embeddings) from None

    def positions(self, tokens: int) -> Tensor | None:
        """The positions of a test with this many tokens, (tokens,); None: they are counted.

        To generate without a known end, take the largest number of tokens possible.
        """
        tokens = as_whole("tokens", tokens, 1, MOST_TOKENS)
        if not (self.span and self.uses_positions):
            return None
        return fixed_positions(tokens, self.span, self.embedding.weight.device)

    @contextmanager
    def _in_context(self, context: Context, mix: Mix | None) -> Iterator[None]:
        """Give every mixer the context of this pass; each mixer with dropout has its own key.

        Sublayers of one pathway have one key for the sequences that they leave out.
        """
        key = context.key
        plain = all(item is None for item in context)
        sublayers = [] if plain else self.sublayers()
        try:
            for number, sublayer in enumerate(sublayers):
                mixer = sublayer.mixer
                mixer_key = fold_in(key, number) if key is not None and mixer.dropout else None
                mixer.context = context._replace(key=mixer_key)
                if key is not None and sublayer.keep_mode != "on":
                    pathway = get_args(Pathway).index(sublayer.pathway)
                    sublayer.keep_key = fold_in(key, SEQUENCES, pathway)
            self.body.mix = mix
            yield
        finally:
            self.body.mix = None
            for sublayer in sublayers:
                sublayer.mixer.context, sublayer.keep_key = Context(), None

    def sublayers(self) -> list[Sublayer]:
        """Every sublayer, in the order of the layout line."""
        return [m for m in self.modules() if isinstance(m, Sublayer)]

    def pathways(self) -> dict[str, Pathway]:
        """The pathway of each parameter by name; outside the sublayers it is pointwise."""
        pathways: dict[str, Pathway] = {name: "pointwise" for name, _ in self.named_parameters()}
        for name, module in self.named_modules():
            if isinstance(module, Sublayer):
                for inner, _ in module.named_parameters():
                    pathways[f"{name}.{inner}"] = module.pathway
        return pathways

    @property
    def mixing_points(self) -> int:
        """Between how many pairs of sublayers, one after the other, tokens can be mixed."""
        return len(self.body.nodes) - 1

    @property
    def ceiling(self) -> int | None:
        """The most tokens the model can take; None where nothing in it has a limit."""
        limits = [s.mixer.ceiling for s in self.sublayers() if s.mixer.ceiling is not None]
        return min(limits, default=None)

    @property
    def chunks_to(self) -> int | None:
        """The most tokens that the model can take in chunks; None where nothing has a limit."""
        limits = [s.mixer.chunks_to for s in self.sublayers() if s.mixer.chunks_to is not None]
        return min(limits, default=None)

    @property
    def uses_positions(self) -> bool:
        """Whether any scheme in it uses positions."""
        return any(getattr(s.mixer, "uses_positions", False) for s in self.sublayers())

    @property
    def size(self) -> int:
        """How many parameters there are."""
        return sum(p.numel() for p in self.parameters())
