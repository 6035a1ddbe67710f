"""Gradient attribution: what of the recurrent weights' gradient flows through attention.

The gradient of the training loss in the recurrent weights is taken twice: as it is, and with the
input of all attention detached. The second is the *direct* part. The difference is the *attention*
part: what the recurrence is told by way of queries, keys and values. Both passes compute the same
loss; what attention adds to the stream is in both. (The paper that delays attention, 2510.00258,
says that the attention part leads away from state tracking. The measure is our own.)

A row is for one layer and one part of the loss:

==================== ===========================================================================
layer                such as ``1.lstm``; ``all`` is all recurrent layers together
part                 a part of the task, its loss unweighted; ``all`` is the loss that is trained
weight               of that part in the loss that is trained
norm                 of the gradient; `direct_norm` and `attention_norm` of its two parts
cosine               between the direct part and the attention part
attention_to_final   cosine between a step down the attention part and the way to the final weights
direct_to_final      the same of the direct part
==================== ===========================================================================

A cosine is None where one of the two has no length. A part shorter than a millionth of the gradient
is rounding: its norm is told as it is, its cosines are None. So is every number that is not finite,
as those of a seed that has diverged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from outlast.analysis.scoring import as_task
from outlast.analysis.sequences import NothingToSeeError, without_nan
from outlast.analysis.watching import layers, require_ours
from outlast.arguments import as_whole
from outlast.errors import bad_value
from outlast.kernels.loss import part_losses
from outlast.models.model import Model
from outlast.runs.analyses import Row
from outlast.runs.records import ALL
from outlast.streams import stream
from outlast.tasks import IGNORE, Batch, Task

#: sequences in a batch, and batches whose gradients are averaged
BATCH_SIZE, BATCHES = 128, 1
#: a part of a gradient that is shorter than this share of it is rounding
ROUNDING = 1e-6

#: the losses (seeds, parts) of a batch; the argument says whether gradients pass attention upstream
Pass = Callable[[bool], Tensor]
#: the names of the weights of each layer
LayerWeights = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class SplitGradient:
    """The two parts of a gradient: for each weight (seeds, parts, numbers), and the losses."""

    losses: Tensor
    direct: dict[str, Tensor]
    attention: dict[str, Tensor]


def gradient_attribution(
    model: Model,
    task: Task,
    final: Model | None = None,
    batch_size: int = BATCH_SIZE,
    batches: int = BATCHES,
) -> list[Row]:
    """The table of a model as it is: its gates apply, and all parts of the loss weigh the same.

    The model is left as it was: no gradient is kept, and gates, modes and weights stay.

    Args:
        model: A model with attention and recurrence.
        task: Fresh sequences of its training lengths are drawn.
        final: The same model with the final weights, for the cosines that are about them.
        batch_size: Sequences in a batch.
        batches: The gradient is the mean over so many batches.
    """
    task = as_task(task)
    batch_size = as_whole("batch_size", batch_size, 1)
    batches = as_whole("batches", batches, 1)
    require_ours(model)
    if final is not None:
        require_ours(final, "final")
    names = recurrent_weights(model)
    named = dict(model.named_parameters())
    weights = {name: named[name] for several in names.values() for name in several}
    toward = None if final is None else _way(weights, dict(final.named_parameters()))

    def passes() -> Iterator[Pass]:
        device = model.embedding.weight.device
        for number in range(batches):
            batch = task.sample(task.lengths, batch_size, stream(device, "gradients", number))
            yield lambda upstream, batch=batch: _losses(model, task, batch, upstream)  # type: ignore[misc]

    with requiring_gradients(weights.values()):
        split = split_gradient(passes(), weights)
    (rows,) = tabulate(split, names, task.parts, torch.ones_like(split.losses), toward)
    return rows


def recurrent_weights(model: Model) -> dict[str, list[str]]:
    """The names of the weights of each recurrent layer; a model without some is refused.

    Those of the norm before a recurrence are among them, as they learn with it. A short convolution
    is no recurrence.
    """
    sublayers = model.sublayers()
    present = {
        "recurrent": any(sublayer.mixer.holds_state for sublayer in sublayers),
        "attention": any(sublayer.pathway == "attention" for sublayer in sublayers),
    }
    for kind, is_there in present.items():
        if not is_there:
            raise NothingToSeeError(
                f"model={model.layout}: it has no {kind} layer: there is no gradient that "
                f"reaches recurrence through attention"
            )
    names = {module: name for name, module in model.named_modules()}
    return {
        layer: [f"{names[sublayer]}.{inner}" for inner, _ in sublayer.named_parameters()]
        for layer, sublayer in layers(model)
        if sublayer.mixer.holds_state
    }


def _losses(model: Model, task: Task, batch: Batch, upstream: bool) -> Tensor:
    """The losses (1, parts) of a batch."""
    with torch.enable_grad():
        if upstream:
            logits = model(batch.inputs)[0]
        else:
            with detached_attention(model):
                logits = model(batch.inputs)[0]
        page = Batch(batch.inputs[None], batch.targets[None], batch.part[None])
        return part_losses(logits[None], page.targets, page.part, len(task.parts), IGNORE)[0]


@contextmanager
def detached_attention(model: Model) -> Iterator[None]:
    """Attention sends no gradient upstream meanwhile; afterwards as much as before."""
    attention = [s for s in model.sublayers() if s.pathway == "attention"]
    before = [(s.upstream_grad.clone(), s.upstream_grad_mode) for s in attention]
    try:
        for sublayer in attention:
            sublayer.set_upstream_grad(0.0)
        yield
    finally:
        for sublayer, (value, mode) in zip(attention, before, strict=True):
            sublayer.upstream_grad.copy_(value)
            sublayer.upstream_grad_mode = mode


@contextmanager
def requiring_gradients(weights: Iterable[Tensor]) -> Iterator[None]:
    """Weights ask for gradients meanwhile, also those that were frozen."""
    frozen = [weight for weight in weights if not weight.requires_grad]
    try:
        for weight in frozen:
            weight.requires_grad_(True)
        yield
    finally:
        for weight in frozen:
            weight.requires_grad_(False)


# ---- the two parts, and the table ----------------------------------------------------------------


def split_gradient(passes: Iterable[Pass], weights: Mapping[str, Tensor]) -> SplitGradient:
    """The means over some batches, of weights (seeds, ...), or of one seed without that axis.

    Both passes of a batch see the same random numbers, so that dropout is no difference.
    """
    gpus = sorted({weight.device.index for weight in weights.values() if weight.is_cuda})
    count, losses = 0, torch.zeros(())
    sums: list[list[Tensor]] = []
    for run in passes:
        with torch.random.fork_rng(gpus):
            loss, whole = _by_part(run(True), weights)
        with torch.random.fork_rng(gpus):
            _, direct = _by_part(run(False), weights)
        through = [a - b for a, b in zip(whole, direct, strict=True)]
        if count:
            for total, more in zip(sums, (direct, through), strict=True):
                torch._foreach_add_(total, more)
            losses = losses + loss
        else:
            sums, losses = [direct, through], loss
        count += 1
    if not count:
        raise bad_value("batches", 0, "a whole number >= 1")
    direct, through = ([g / count for g in total] for total in sums)
    return SplitGradient(
        losses / count,
        dict(zip(weights, direct, strict=True)),
        dict(zip(weights, through, strict=True)),
    )


def _by_part(losses: Tensor, weights: Mapping[str, Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Losses (seeds, parts), and their gradients: for each weight (seeds, parts, numbers)."""
    seeds, parts = losses.shape
    by_part = []
    for part in range(parts):
        gradients = torch.autograd.grad(
            losses[:, part].sum(),
            list(weights.values()),
            retain_graph=part + 1 < parts,
            materialize_grads=True,
        )
        by_part.append([gradient.reshape(seeds, -1) for gradient in gradients])
    return losses.detach(), [torch.stack(pieces, 1) for pieces in zip(*by_part, strict=True)]


def _way(now: Mapping[str, Tensor], final: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """From the weights of one seed to its final ones, with an axis for the seed."""
    for name, weight in now.items():
        if name not in final or final[name].shape != weight.shape:
            raise bad_value("final", name, "the same model with other weights")
    return {n: (final[n].to(w.device) - w).detach()[None] for n, w in now.items()}


def tabulate(
    split: SplitGradient,
    names: LayerWeights,
    parts: Sequence[str],
    loss_weights: Tensor,
    toward: Mapping[str, Tensor] | None = None,
) -> list[list[Row]]:
    """The rows of each seed; `loss_weights` (seeds, parts), `toward` from now to the final weights.

    The last layer is all of them, a weight of several layers once. The last part is the loss that
    is trained.
    """
    groups = {**names, ALL: list(dict.fromkeys(n for several in names.values() for n in several))}
    tables: list[list[Row]] = []
    for seed, mix in enumerate(loss_weights.to(split.losses.device).double()):
        rows: list[Row] = []
        losses = _with_total(split.losses[seed].double(), mix).tolist()
        for layer, several in groups.items():
            direct, through = (
                _with_total(torch.cat([g[n][seed] for n in several], -1).double(), mix)
                for g in (split.direct, split.attention)
            )
            way = None
            if toward is not None:
                way = torch.cat([toward[n][seed].flatten() for n in several]).double()
            for index, part in enumerate((*parts, ALL)):
                weight = mix[index].item() if index < len(parts) else None
                about: Row = {"layer": layer, "part": part, "weight": weight}
                measures: Row = {"loss": losses[index]}
                measures |= _compare(direct[index], through[index], way)
                rows.append(about | without_nan(measures))
        tables.append(rows)
    return tables


def _with_total(table: Tensor, mix: Tensor) -> Tensor:
    """A table (parts, ...) with the weighted sum of its rows as one more row."""
    return torch.cat([table, torch.tensordot(mix, table, 1)[None]])


def _compare(direct: Tensor, through: Tensor, way: Tensor | None) -> Row:
    whole = torch.linalg.vector_norm(direct + through).item()
    least = ROUNDING * whole
    row: Row = {
        "norm": whole,
        "direct_norm": torch.linalg.vector_norm(direct).item(),
        "attention_norm": torch.linalg.vector_norm(through).item(),
        "cosine": _cosine(direct, through, least, least),
    }
    if way is not None:
        row["attention_to_final"] = _cosine(-through, way, least, 0.0)
        row["direct_to_final"] = _cosine(-direct, way, least, 0.0)
    return row


def _cosine(one: Tensor, other: Tensor, least: float, least_other: float) -> float | None:
    """None where one of the two has no length to speak of."""
    norms = [torch.linalg.vector_norm(each).item() for each in (one, other)]
    if not (norms[0] > least and norms[1] > least_other):
        return None
    cosine: float = (one @ other).item() / (norms[0] * norms[1])
    return cosine
