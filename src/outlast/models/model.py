"""The model: embedding, sublayers behind gates, norm, output.

Every sublayer adds ``gate * f(norm(x))`` to the residual stream. With ``residual=normalised`` the
stream itself is normalised on the way in: x <- norm(x), then x <- x + gate * f(x). A gate at 0
skips the sublayer altogether, one at 1 costs nothing, anything between is a multiplication. Beside
the gate there is `upstream_grad`: the share of the gradient that passes from a sublayer to the
layers before it (1: all of it; 0: the sublayer learns, the layers before it do not).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from outlast.errors import OutlastError, bad_value
from outlast.kernels.dispatch import can_fuse
from outlast.mixers.base import Linear, Mixer, Norm, Pathway, RMSNorm, State
from outlast.mixers.chance import EMBEDDING, Told, drop, fixed_positions, fold
from outlast.specs import Layout, Spec

Setting = Literal["off", "on", "between"]
#: torch's own; small ones learn the training lengths sooner and nothing beyond: see docs/findings
EMBEDDING_SCALE = 1.0
ModelState = tuple[State, ...]


def setting(values: list[float]) -> Setting:
    """What a list of gates has in common: all 0, all 1, or neither."""
    if all(v == 0 for v in values):
        return "off"
    return "on" if all(v == 1 for v in values) else "between"


def make_norm(width: int, kind: str | None) -> Norm | RMSNorm:
    """The norm that a line asks for."""
    return RMSNorm(width) if kind == "rms" else Norm(width)


class Stream:
    """The residual stream between two sublayers: x, and perhaps what is yet to be added to it.

    On a GPU sums wait for the norm that follows, since it takes up to two of them in its own pass,
    and a bias (width) with them; elsewhere they are made at once. `narrow` is x already cast to the
    dtype of the matmuls, if available.
    """

    def __init__(
        self,
        x: Tensor,
        *pending: Tensor,
        bias: Tensor | None = None,
        narrow: Tensor | None = None,
    ) -> None:
        self._x, self._pending, self._bias, self._narrow = x, pending, bias, narrow

    @property
    def x(self) -> Tensor:
        """The sum, made now if it has not been."""
        for y in self._pending:
            self._x = self._x + y
        if self._bias is not None:
            self._x = self._x + self._bias
        self._pending, self._bias = (), None
        return self._x

    @property
    def narrow(self) -> Tensor:
        """x for a matmul."""
        return self.x if self._narrow is None else self._narrow

    @property
    def waits(self) -> bool:
        """Whether sums wait here."""
        return can_fuse(self._x)

    def plus(self, y: Tensor, bias: Tensor | None = None) -> Stream:
        """This stream and what a sublayer adds to it."""
        if not can_fuse(self._x, y):
            return Stream(self.x + (y if bias is None else y + bias))
        if len(self._pending) == 2:
            return Stream(self.x, y, bias=bias)
        if bias is None or self._bias is None:
            bias = self._bias if bias is None else bias
        else:
            bias = self._bias + bias
        return Stream(self._x, *self._pending, y, bias=bias)

    def normed(self, norm: Norm | RMSNorm) -> Tensor:
        """The norm of the sum, which is made on the way."""
        if not self._pending:
            return norm(self.x)
        self._x, out = norm.after(self._x, *self._pending, bias=self._bias)
        self._pending, self._bias = (), None
        return out

    def normalised(self, norm: Norm | RMSNorm) -> Stream:
        """A stream that goes on with the norm of this one in its place."""
        if not self._pending:
            kept, narrow = norm.instead(self.x)
        else:
            kept, narrow = norm.instead(self._x, *self._pending, bias=self._bias)
        return Stream(kept, narrow=narrow)


class Sublayer(nn.Module):
    """One mixer behind its norm and gate. `forward` gives what is to be added to the stream."""

    gate: Tensor
    upstream_grad: Tensor

    def __init__(
        self, width: int, mixer: Mixer, norm: str | None = None, residual: str | None = None
    ) -> None:
        super().__init__()
        self.norm = make_norm(width, norm)
        self.mixer = mixer
        self.normalised = residual == "normalised"
        # buffers, so that a stack of seeds can hold one value a seed; never part of the weights
        self.register_buffer("gate", torch.ones(()), persistent=False)
        self.register_buffer("upstream_grad", torch.ones(()), persistent=False)
        self.gate_mode: Setting = "on"
        self.upstream_mode: Setting = "on"
        #: whether the mixer's last bias may be left to the stream, past the mixer's `forward`: only
        #: where nobody has put anything in its place or hooked on to it
        self.lends_bias = False

    @property
    def pathway(self) -> Pathway:
        return self.mixer.pathway

    def set_gate(self, value: float) -> None:
        """Open (1), close (0) or half-open this sublayer."""
        self.gate.fill_(value)
        self.gate_mode = setting([value])

    def set_upstream_grad(self, value: float) -> None:
        """Let gradients pass upstream (1), stop them (0), or scale them."""
        self.upstream_grad.fill_(value)
        self.upstream_mode = setting([value])

    def enter(self, stream: Stream) -> Stream:
        """What the stream carries from here on: x as it is, or normalised."""
        if not self.normalised or self.gate_mode == "off":
            return stream
        return stream.normalised(self.norm)

    def forward(self, x: Tensor | Stream, state: State = None) -> tuple[Tensor | None, State]:
        """What is to be added to the stream, which has gone through `enter`."""
        if self.gate_mode == "off":
            return None, state
        y, state = self.mixer(self._entered(x if isinstance(x, Stream) else Stream(x)), state)
        return (y if self.gate_mode == "on" else self.gate * y), state

    def add_to(self, total: Stream, stream: Stream, state: State) -> tuple[Stream, State]:
        """`total` and what this makes of a stream that has gone through `enter`."""
        if self.lends_bias and self.gate_mode == "on" and stream.waits:
            y, bias, state = self.mixer.unbiased(self._entered(stream), state)
            return total.plus(y, bias), state
        found, state = self(stream, state)
        return (total if found is None else total.plus(found)), state

    def _entered(self, stream: Stream) -> Tensor:
        """What the mixer is given."""
        if self.upstream_mode != "on":
            whole, stopped = stream.x, stream.x.detach()
            off = self.upstream_mode == "off"
            stream = Stream(stopped if off else stopped + self.upstream_grad * (whole - stopped))
        return stream.narrow if self.normalised else stream.normed(self.norm)


class Chain(nn.Module):
    """``a > b > c``: one after another on the residual stream."""

    def __init__(self, nodes: list[nn.Module]) -> None:
        super().__init__()
        self.nodes = nn.ModuleList(nodes)

    def forward(self, stream: Stream, states: Iterator[State], after: list[State]) -> Stream:
        for node in self.nodes:
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

    def forward(self, stream: Stream, states: Iterator[State], after: list[State]) -> Stream:
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

    A model trained with `random_positions` has a `span`, the range they were drawn from. Where it
    has one, a call without a state is taken for a whole sequence and gets the `positions` of its
    length. Chunks need theirs from the first one on, since the draw hangs on the length of it all.
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
    ) -> tuple[Tensor, ModelState]:
        """Logits and the state after these tokens.

        `positions` (tokens,) is where the tokens stand, increasing, if not one after the other;
        `key` () is a whole number, new in each step of training, that all dropout hangs on.
        Without one nothing is dropped.
        """
        if tokens.dim() != 2 or not tokens.shape[1]:
            raise bad_value("tokens", list(tokens.shape), "a shape (batch, tokens), tokens >= 1")
        before = iter(state) if state is not None else iter([None] * len(self.sublayers()))
        after: list[State] = []
        if positions is None:
            positions = self.positions(tokens.shape[1])
            if positions is not None and state is not None:
                raise OutlastError(
                    "this model was trained with random_positions: give positions= to go on, and "
                    "with the first chunk too: the chunk's part of model.positions(all tokens)"
                )
        elif positions.shape != tokens.shape[1:]:
            raise bad_value(
                "positions", list(positions.shape), f"one for each of {tokens.shape[1]} tokens"
            )
        with self._telling(positions, key):
            embedded = self.embedding(tokens)
            if key is not None and self.layout.dropout:
                embedded = drop(embedded, self.layout.dropout, fold(key, EMBEDDING))
            stream = self.body(Stream(embedded), before, after)
        return self.head(stream.normed(self.norm)), tuple(after)

    def positions(self, tokens: int) -> Tensor | None:
        """Where the tokens of a test with this many stand, (tokens,); None: one after the other.

        To write on without a known end, take the most tokens there may be.
        """
        if not (self.span and self.placed):
            return None
        return fixed_positions(tokens, self.span, self.embedding.weight.device)

    @contextmanager
    def _telling(self, positions: Tensor | None, key: Tensor | None) -> Iterator[None]:
        """Tell every mixer of this pass; those with dropout have a key of their own."""
        silent = positions is None and key is None
        mixers = [] if silent else [s.mixer for s in self.sublayers()]
        try:
            for number, mixer in enumerate(mixers):
                own = fold(key, number) if key is not None and mixer.dropout else None
                mixer.told = Told(positions, own)
            yield
        finally:
            for mixer in mixers:
                mixer.told = Told()

    def sublayers(self) -> list[Sublayer]:
        """Every sublayer, in the order of the layout line."""
        return [m for m in self.modules() if isinstance(m, Sublayer)]

    def pathways(self) -> dict[str, Pathway]:
        """The pathway of each parameter; what is in no mixer counts as pointwise."""
        found: dict[str, Pathway] = {name: "pointwise" for name, _ in self.named_parameters()}
        for name, module in self.named_modules():
            if isinstance(module, Sublayer):
                for inner, _ in module.named_parameters():
                    found[f"{name}.{inner}"] = module.pathway
        return found

    @property
    def ceiling(self) -> int | None:
        """The most tokens the model can take; None where nothing in it has a limit."""
        limits = [s.mixer.ceiling for s in self.sublayers() if s.mixer.ceiling is not None]
        return min(limits, default=None)

    @property
    def placed(self) -> bool:
        """Whether anything in it asks where a token stands."""
        return any(getattr(s.mixer, "placed", False) for s in self.sublayers())

    @property
    def size(self) -> int:
        """How many parameters there are."""
        return sum(p.numel() for p in self.parameters())
