"""What attention looks at in a model that is not ours, in the form of `watching.watch`.

::

    seen = watch_foreign(model, tokens, queries)
    seen.weights["model.layers.0.self_attn"]    # (batch, heads, queries, tokens)

The attention modules are found as `outlast.delay` finds them. A model of `transformers` uses its
`eager` attention meanwhile, because no other one hands out its weights. These models make the table
of all queries of a layer at once. It is cut to the chosen rows before the next layer runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from outlast.analysis.watching import Watched, check_queries
from outlast.arguments import shown
from outlast.errors import OutlastError, bad_value
from outlast.evaluation.outputs import eval_mode, read_logits
from outlast.methods.delay.discovery import find_attention
from outlast.mixers.base import Mixer

EAGER = "eager"
#: what `watch_foreign` accepts, and what analyses accept that take models of ours, too
FOREIGN = "a torch.nn.Module whose attention can be found"
ACCEPTED = f"a model of Outlast, or {FOREIGN}"
#: what to do if attention is not found
NAMES = 'name its modules, as in attention=["*.attn"]'


def foreign_attention(
    model: object, names: Sequence[str] | None = None, accepted: str = ACCEPTED
) -> dict[str, nn.Module]:
    """The attention of a module that is not ours: the modules of these names, or what is found.

    `accepted` is said of what is no module.
    """
    if not isinstance(model, nn.Module):
        raise bad_value("model", shown(model), accepted)
    if names is not None:
        return named_modules(model, names, "attention")
    return find_attention(model, needs_recurrence=False, advice=NAMES)


def no_names(model: nn.Module, names: Sequence[str] | None) -> None:
    """Refuse names of attention modules for a model of ours, where they would do nothing."""
    if names is not None:
        accepted = f"None: the attention of {type(model).__name__}, a model of Outlast, is known"
        raise bad_value("attention", shown(names), accepted)


def named_modules(model: nn.Module, patterns: Sequence[str], field: str) -> dict[str, nn.Module]:
    """The modules whose names match; `field` is what the user calls the names."""
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    accepted = "names or patterns of modules of the model"
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise bad_value(field, shown(patterns), accepted)
    modules = {
        name: module
        for name, module in model.named_modules()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    }
    if not modules:
        raise bad_value(field, ", ".join(patterns), accepted)
    return modules


def watch_foreign(
    model: nn.Module, tokens: Tensor, queries: Tensor, attention: Sequence[str] | None = None
) -> Watched:
    """One pass over tokens (batch, tokens), without gradients and in eval mode.

    Only `logits` and `weights` are filled. A module that is called several times has an entry for
    each call: ``attention``, ``attention, call 2``.

    Args:
        model: A model of `transformers`, or one with `torch.nn.MultiheadAttention`. It takes the
            tokens alone, and returns logits as `evaluate` understands them.
        tokens: The sequences.
        queries: Which tokens' attention is kept, (batch, queries): their numbers in the sequence.
            A negative number is a place that stays empty.
        attention: Names or patterns of the attention modules, such as ``*.attn``; by default they
            are found.
    """
    modules = foreign_attention(model, attention, FOREIGN)
    check_queries(tokens, queries)
    seen = Watched(torch.empty(0))
    with ExitStack() as stack:
        stack.enter_context(eval_mode(model))
        stack.enter_context(torch.no_grad())
        stack.enter_context(_eager(list(modules.values())))
        for name, module in modules.items():
            if isinstance(module, Mixer):
                raise bad_value("model", type(model).__name__, "no model of Outlast: `watch` it")
            keeper = _Keeper(seen, name, tokens, queries)
            if isinstance(module, nn.MultiheadAttention):
                ask = module.register_forward_pre_hook(keeper.ask, with_kwargs=True)
                stack.callback(ask.remove)
            stack.callback(module.register_forward_hook(keeper.keep).remove)
        seen.logits = read_logits(model(tokens), model)[0]
    return seen


class _Keeper:
    """Keeps the chosen rows of one module's attention."""

    def __init__(self, seen: Watched, name: str, tokens: Tensor, queries: Tensor) -> None:
        self.seen, self.name, self.tokens, self.queries = seen, name, tokens, queries
        self.calls = 0
        self.wanted, self.averaged = True, False

    def ask(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Ask `nn.MultiheadAttention` for the weights of each head."""
        call = inspect.signature(nn.MultiheadAttention.forward).bind(module, *args, **kwargs)
        call.apply_defaults()
        self.wanted = call.arguments["need_weights"]
        self.averaged = call.arguments["average_attn_weights"]
        call.arguments |= {"need_weights": True, "average_attn_weights": False}
        return call.args[1:], call.kwargs

    def keep(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Cut the weights to the chosen rows. The caller gets what it asked for."""
        weights = output[1] if isinstance(output, tuple) and len(output) > 1 else None
        count = self.tokens.shape[1]
        if not isinstance(weights, Tensor) or weights.shape[-2:] != (count, count):
            shape = shown(None if weights is None else tuple(weights.shape))
            raise OutlastError(
                f"{self.name}: its attention weights are {shape}: expected (batch, heads, {count}, "
                f"{count}), of all tokens over all tokens, as the second item of its output"
            )
        self.calls += 1
        name = self.name if self.calls == 1 else f"{self.name}, call {self.calls}"
        queries = self.queries.to(weights.device)
        index = queries.clamp(min=0)[:, None, :, None]
        rows = weights.gather(2, index.expand(-1, weights.shape[1], -1, count))
        self.seen.weights[name] = rows.masked_fill((queries < 0)[:, None, :, None], 0)
        if not isinstance(module, nn.MultiheadAttention):
            return output
        if not self.wanted:
            return output[0], None
        return output[0], weights.mean(1) if self.averaged else weights


@contextmanager
def _eager(modules: list[nn.Module]) -> Iterator[None]:
    """The configs of these modules with eager attention; afterwards with what they had."""
    configs = {id(c): c for m in modules if (c := getattr(m, "config", None)) is not None}
    configs = {i: c for i, c in configs.items() if hasattr(c, "_attn_implementation")}
    before = {i: config._attn_implementation for i, config in configs.items()}
    try:
        for config in configs.values():
            config._attn_implementation = EAGER
        yield
    finally:
        for i, config in configs.items():
            config._attn_implementation = before[i]
