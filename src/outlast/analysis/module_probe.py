"""Linear probes on any `torch.nn.Module`: what can be read from the outputs of its modules.

::

    rows = module_probe(model, task, ["lstm", "layers.*.mixer"])

Modules are named, as nobody can tell from outside which of them hold a state. The probes, their
controls on shuffled labels and the rows are those of `state_probe`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from outlast.analysis.foreign import named_modules
from outlast.analysis.probe import (
    BINS,
    FIT_SEQUENCES,
    Labels,
    Place,
    Subject,
    due_states,
    probe_places,
)
from outlast.analysis.sequences import LADDER, SEQUENCES, Row
from outlast.analysis.watching import Watched
from outlast.arguments import shown
from outlast.errors import bad_value
from outlast.evaluation.outputs import eval_mode
from outlast.tasks import Task

#: the `place` of a row
OUTPUT = "output"


def module_probe(
    model: nn.Module,
    task: Task,
    modules: Sequence[str],
    ladder: Sequence[float] = LADDER,
    sequences: int = SEQUENCES,
    bins: int = BINS,
    fit_sequences: int = FIT_SEQUENCES,
    labels: Labels = due_states,
) -> list[Row]:
    """How often the running state can be read from the output of modules: rows of `state_probe`.

    The `layer` of a row is the name of the module, its `place` is `output`. The model is left as it
    was.

    Args:
        model: Any model that takes the tokens alone, (batch, tokens).
        task: A task whose `truth` has a state.
        modules: Names or patterns of modules, such as ``*.mixer``. The output of each is (batch,
            tokens, features), or a tuple that begins with it. If the module says
            ``batch_first=False``, tokens come first. Of several calls the last one counts.
        ladder: Multiples of the training length.
        sequences: Sequences tested at each length.
        bins: The tokens of a sequence are divided into so many ranges.
        fit_sequences: Sequences that probes are fitted on.
        labels: What is read, at the tokens that count: `due_states`, `states` for every token, or
            `stored_keys` for the rows of `key_probe`.
    """
    if not isinstance(model, nn.Module):
        raise bad_value("model", shown(model), "a torch.nn.Module")
    named = named_modules(model, modules, "modules")

    def look(tokens: Tensor) -> Watched:
        seen = Watched(torch.empty(0))
        with ExitStack() as stack:
            stack.enter_context(eval_mode(model))
            stack.enter_context(torch.no_grad())
            for name, module in named.items():
                handle = module.register_forward_hook(_keep(seen, name, tokens))
                stack.callback(handle.remove)
            model(tokens)
        for name in named:
            if name not in seen.outputs:
                raise bad_value("modules", name, "modules that run when the model reads tokens")
        return seen

    subject = Subject(model, [Place(name, OUTPUT) for name in named], look)
    return probe_places(subject, task, labels, ladder, sequences, bins, fit_sequences)


def _keep(seen: Watched, name: str, tokens: Tensor) -> Callable[[nn.Module, Any, Any], None]:
    """A hook that keeps what a module put out, (batch, tokens, features), and refuses the rest."""

    def keep(module: nn.Module, _: Any, output: Any) -> None:
        states = output[0] if isinstance(output, tuple) and output else output
        if isinstance(states, Tensor) and states.ndim == 3:
            turned = getattr(module, "batch_first", True) is False
            features = states.transpose(0, 1) if turned else states
            if features.shape[:2] == tokens.shape:
                seen.outputs[name] = features
                return
        shape = tuple(states.shape) if isinstance(states, Tensor) else shown(states)
        batch, count = tokens.shape
        accepted = f"modules that put out ({batch}, {count}, features), or a tuple that begins so"
        raise bad_value("modules", name, f"{accepted}, for tokens ({batch}, {count}); got {shape}")

    return keep
