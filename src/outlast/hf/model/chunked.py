"""A model of transformers run in chunks with its own cache, for sequences too long for one pass.

Not every model carries its state right from chunk to chunk. So it is compared with a whole pass of
a short sequence first, and refused if the two differ.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from outlast.arguments import as_whole, shown
from outlast.errors import OutlastError, bad_value
from outlast.evaluation.outputs import eval_mode

#: the largest chunk, far more than memory holds
MOST = 2**31 - 1
#: how far chunks may be from a whole pass, in shares of its largest logit: 32 and 16 bit
TOLERANCE, HALF_TOLERANCE = 5e-4, 5e-2
#: chunks, tokens and rows of the comparison: at least
CHUNKS, TOKENS, ROWS = 3, 33, 2


class Chunked(nn.Module):
    """Tokens (batch, tokens) to logits (batch, tokens, outputs), some tokens at a time."""

    def __init__(self, model: PreTrainedModel, chunk: int) -> None:
        super().__init__()
        self.model, self.chunk = model, chunk

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.cat(list(self.in_chunks(tokens)), 1)

    def in_chunks(self, tokens: Tensor, size: int = MOST) -> Iterator[Tensor]:
        """The logits of one chunk after the other, of at most `size` tokens each."""
        cache = None
        for number, piece in enumerate(tokens.split(min(size, self.chunk), 1)):
            if number and cache is None:
                raise OutlastError(
                    f"{type(self.model).__name__} returned no past_key_values: it cannot be run in "
                    f"chunks; give it whole sequences"
                )
            output = self.model(piece, past_key_values=cache, use_cache=True)
            cache = getattr(output, "past_key_values", None)
            yield output.logits


@torch.no_grad()
def chunked(model: PreTrainedModel, chunk: int, tolerance: float | None = None) -> Chunked:
    """A model that reads a sequence in chunks, for `outlast.evaluate`.

    It is compared first: random tokens in three or more chunks against one pass. If the logits
    differ, the error says by how much.

    Args:
        model: A causal model of transformers with a cache.
        chunk: How many tokens it reads at a time.
        tolerance: The largest difference, as a share of the largest logit; by default 0.0005,
            or 0.05 for a model in 16 bit.
    """
    if not isinstance(model, PreTrainedModel):
        raise bad_value("model", shown(model), "a model of transformers, such as ...ForCausalLM")
    chunk = as_whole("chunk", chunk, 1, MOST)
    if tolerance is None:
        tolerance = HALF_TOLERANCE if model.dtype.itemsize < 4 else TOLERANCE
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not tolerance >= 0:
        raise bad_value("tolerance", shown(tolerance), "a number >= 0")
    built = Chunked(model, chunk)
    generator = torch.Generator().manual_seed(0)
    vocabulary = model.config.get_text_config().vocab_size
    count = max((CHUNKS - 1) * chunk + 1, TOKENS)
    tokens = torch.randint(vocabulary, (ROWS, count), generator=generator).to(model.device)
    with eval_mode(model):
        whole = model(tokens, use_cache=False).logits.float()
        try:
            pieces = built(tokens).float()
        except OutlastError:
            raise
        except Exception as error:  # of another package
            raise OutlastError(
                f"{type(model).__name__} in chunks of {chunk}: {error}; give it whole sequences"
            ) from error
    difference, largest = (pieces - whole).abs().max().item(), whole.abs().max().item()
    if not difference <= tolerance * largest:
        raise OutlastError(
            f"{type(model).__name__} in chunks of {chunk} differs from a whole pass by "
            f"{difference:.2g}, with logits up to {largest:.2g}: expected at most "
            f"{tolerance * largest:.2g}; give it whole sequences, or another chunk"
        )
    return built
