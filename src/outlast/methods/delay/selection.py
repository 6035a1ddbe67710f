"""Which sublayers of a model are held back."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from torch import Tensor, nn

from outlast.arguments import shown
from outlast.errors import SpecError, bad_value

Where = str | type[nn.Module] | Callable[[str, nn.Module], bool] | Iterable["Where"]

_ATTENTION = re.compile(r"attn|attention", re.IGNORECASE)
_FEED_FORWARD = re.compile(r"mlp|ffn|feed_?forward|moe|expert|^ff$", re.IGNORECASE)
_BESIDE_ATTENTION = re.compile(r"norm|dropout|embed|rotary", re.IGNORECASE)


def choose(model: nn.Module, where: Where) -> dict[str, nn.Module]:
    """The sublayers that `where` chooses, by name, without those inside a chosen one.

    A name pattern chooses attention only. It is refused if it also matches an MLP or a whole layer.
    """
    where = _read(where)
    matching = {n: m for n, m in model.named_modules() if n and _matches(where, n, m)}
    chosen = {n: m for n, m in matching.items() if not _is_inside(n, matching)}
    if not chosen:
        names = [n for n, _ in model.named_modules() if n]
        first_names = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        modules = f"its modules are: {first_names}" if names else "it has no modules inside"
        raise SpecError(
            f"where={shown(where)}: no module of the model matches{_suggestion(where, names)}; "
            f"{modules}"
        )
    for name, module in chosen.items():
        if not _is_attention(name, module) and not _matches(where, name, module, patterns=False):
            kind = type(module).__name__
            raise SpecError(
                f"where={shown(where)}: matches {name} ({kind}), which does not look like "
                "attention alone; use a narrower pattern, or choose by type or function to hold "
                f"it back all the same: where={kind}, where=lambda name, module: ..."
            )
    return chosen


def _read(where: object) -> Where:
    """A checked choice. A list or an iterator of choices becomes a tuple."""
    error = bad_value(
        "where",
        shown(where),
        'a pattern of names such as "*.attn", a type of module, a function of name and module, or '
        "a list of these",
    )
    if isinstance(where, str) or (callable(where) and not isinstance(where, nn.Module)):
        return where
    if isinstance(where, nn.Module | bytes | Tensor | np.ndarray) or not isinstance(
        where, Iterable
    ):
        raise error
    return tuple(_read(choice) for choice in where)


def _matches(where: Where, name: str, module: nn.Module, patterns: bool = True) -> bool:
    if isinstance(where, str):
        return patterns and fnmatch.fnmatchcase(name, where)
    if isinstance(where, type):
        return isinstance(module, where)
    if callable(where):
        return bool(where(name, module))
    return any(_matches(choice, name, module, patterns) for choice in where)


def _suggestion(where: Where, names: Sequence[str]) -> str:
    """The pattern that was meant, if `where` is one without the names of the outer modules."""
    for choice in (where,) if isinstance(where, str) else where if isinstance(where, tuple) else ():
        pattern = f"*.{choice}"
        if isinstance(choice, str) and any(fnmatch.fnmatchcase(name, pattern) for name in names):
            return f" (a pattern must match the whole name; did you mean {pattern!r}?)"
    return ""


def _is_inside(name: str, others: Iterable[str]) -> bool:
    return any(name.startswith(f"{other}.") for other in others)


def _is_called(pattern: re.Pattern[str], name: str, module: nn.Module) -> bool:
    """Whether the name or the class of a module contains the pattern."""
    return any(pattern.search(word) for word in (name.rpartition(".")[2], type(module).__name__))


def _is_attention(name: str, module: nn.Module) -> bool:
    """Whether a module is attention by its name or class, and not a layer around attention."""
    if not _is_called(_ATTENTION, name, module) or _is_called(_BESIDE_ATTENTION, name, module):
        return False
    inner = {n: m for n, m in module.named_modules() if n}
    attention = [n for n, m in inner.items() if _is_called(_ATTENTION, n, m)]
    feed_forward = [n for n, m in inner.items() if _is_called(_FEED_FORWARD, n, m)]
    whole_layer = attention and any(not _is_inside(n, attention) for n in feed_forward)
    return not whole_layer and not _is_called(_FEED_FORWARD, name, module)
