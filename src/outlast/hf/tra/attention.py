"""TRA between the projections of a stock attention module: masks, the op, and the module's forward.

Shapes::

    hidden_states (b, t, width); q (b, h, t, d); k, v (b, kv heads, keys, d)
    mask          None, or (b, 1, 1, keys) int32: the row's first real key, repeated

There is no mask of queries x keys. None means that all keys are real and the last query is at the
last key. The other form says where a row's left padding ends. Its length says how many keys of a
static cache are filled: in this way nobody has to wait for the GPU to know. It has four dimensions
because `transformers` passes such masks on untouched, also those that `generate` makes in advance.

Padding on the right needs no mask: causality hides it from the tokens before it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.masking_utils import causal_mask_function

from outlast.errors import SpecError, bad_value
from outlast.kernels.norm.op import fused, rms
from outlast.kernels.tra import threshold_relative_attention
from outlast.kernels.tra.op import one_query
from outlast.kernels.tra.setting import Setting

NAME = "tra"
#: of `kernels.heads.rms`
NORM_EPS = 1e-6
PACKED = "one sequence in each row: TRA does not take packed sequences; pad them instead"
PADDING = "a batch x keys mask of ones with zeros before or after them (pad on the left)"


def tra_mask(
    *,
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Any = causal_mask_function,
    attention_mask: Tensor | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **_: Any,
) -> Tensor | None:
    """The compact mask of a forward pass, for `transformers.AttentionMaskInterface`."""
    if kv_offset:
        raise bad_value("past_key_values", "a cache that drops keys", "one that keeps every key")
    if mask_function is not causal_mask_function:
        _refuse_packed(mask_function, batch_size, q_length, use_vmap, device)
    keys = int(q_offset) + q_length
    if attention_mask is None:
        if keys == kv_length:
            return None
        start = torch.zeros(batch_size, dtype=torch.int32, device=device)
    else:
        start, plain = _first_real(attention_mask, keys)
        if plain and keys == kv_length:
            return None
    return start.view(-1, 1, 1, 1).expand(-1, 1, 1, keys)


def _refuse_packed(
    mask_function: Any, rows: int, queries: int, use_vmap: bool, device: torch.device | str
) -> None:
    """Refuse any mask but a causal one.

    Where torch traces, `transformers` cannot tell whether a row is packed and always gives a mask
    for it. The row is one sequence if its last query sees its first key; that is then checked where
    the compiled code runs.
    """
    if use_vmap or not torch.compiler.is_compiling():
        raise bad_value("attention_mask", "one that is not plainly causal", PACKED)
    row = torch.arange(rows, device=device)
    zero = torch.zeros_like(row)
    torch._assert_async(mask_function(row, zero, zero + queries - 1, zero).all(), PACKED)


def _first_real(attention_mask: Tensor, keys: int) -> tuple[Tensor, bool]:
    """The first real key of each row, int32, and whether it is known that nothing is padded."""
    if attention_mask.dim() != 2 or attention_mask.shape[1] < keys:
        shape = "x".join(map(str, attention_mask.shape))
        raise bad_value("attention_mask", shape, f"{PADDING}, for all {keys} keys")
    real = attention_mask[:, :keys].bool()
    if not torch.compiler.is_compiling() and bool(real.all()):  # as a rule, and for each new token
        return real.new_zeros(len(real), dtype=torch.int32), True
    count, start = real.sum(-1), real.int().argmax(-1)
    stop = keys - real.int().flip(-1).argmax(-1)
    whole = ((stop - start == count) | (count == 0)).all()
    if torch.compiler.is_compiling():
        torch._assert_async(whole, f"attention_mask: expected {PADDING}")
        return start.int(), False
    is_whole, is_plain = torch.stack([whole, (start == 0).all()]).tolist()
    if not is_whole:
        raise bad_value("attention_mask", "one with zeros between ones", PADDING)
    return start.int(), is_plain


def tra_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    tra_gate: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Output (b, t, h, d) and no weights, for `transformers.AttentionInterface`.

    `tra_gate` (b, t, h) is w·x + b of each head: its log σ is what a kept key of distance adds.

    A stock model that asks for ``attn_implementation="tra"`` has no gate, and has rotated q and k
    already: that is refused.
    """
    if tra_gate is None:
        raise SpecError(
            f"{type(module).__name__} has no TRA gate: attn_implementation='tra' alone is not TRA; "
            "use outlast.hf.to_tra(model) or a TRA config such as TraLlamaConfig"
        )
    if any(options.get(name) is not None for name in ("cu_seq_lens_q", "cu_seq_lens_k")):
        raise bad_value("cu_seq_lens_q", "given", PACKED)
    if options.get("output_attentions"):
        raise bad_value("output_attentions", True, "False: TRA's kernel makes no table of weights")
    start = None
    if attention_mask is not None:
        _check_compact(attention_mask, len(query))
        keys = attention_mask.shape[-1]
        key, value = key[:, :, :keys], value[:, :, :keys]
        start = attention_mask[:, 0, 0, 0]
    if query.shape[2] == 1:
        token = one_query(query, key, value, tra_gate, start, module.tra_setting)
        if token is not None:
            return token.transpose(1, 2), None
    wide = tra_gate if tra_gate.dtype.itemsize >= 4 else tra_gate.float()
    out = threshold_relative_attention(
        query,
        key,
        value,
        F.logsigmoid(wide).transpose(1, 2),
        threshold=module.tra_setting.threshold,
        lengths=None if start is None else key.shape[2] - start,
        padding="left",
        normalised=module.tra_norm,
    )
    return out.transpose(1, 2), None


def _check_compact(mask: Tensor, rows: int) -> None:
    """Refuse a mask that `tra_mask` did not make: 4-D masks of others are passed on untouched."""
    ours = mask.dtype == torch.int32 and mask.dim() == 4 and mask.shape[:3] == (rows, 1, 1)
    if not ours:
        shape = "x".join(map(str, mask.shape))
        raise bad_value("attention_mask", f"{mask.dtype} of shape {shape}", PADDING)


def unit_rms(x: Tensor) -> Tensor:
    """x (b, t, heads, d) over its root mean square, as `kernels.heads.rms`.

    Many tokens go by one fused pass where there is a GPU. A single token goes by torch's own norm,
    which is slower for many rows and quicker to call.
    """
    if x.shape[1] > 1 and fused(x, scale := x.new_ones(x.shape[-1])):
        return rms(x, scale, NORM_EPS)[1]
    if not torch.is_autocast_enabled(x.device.type):
        return F.rms_norm(x, x.shape[-1:], eps=NORM_EPS)
    with torch.autocast(x.device.type, enabled=False):  # it would take a copy in float32
        return F.rms_norm(x, x.shape[-1:], eps=NORM_EPS)


def setting(config: Any, width: int) -> Setting:
    """The numbers of a config for heads of this width."""
    threshold = -math.inf if config.tra_threshold is None else config.tra_threshold
    scale = width**-0.5
    return Setting(threshold, scale, 0, scale * width if config.tra_norm else 0.0)


class TraGate(nn.Linear):
    """w·x + b of each head; a class of its own so that it can be initialised in its own way."""


class TraAttention(nn.Module):
    """What turns a stock attention module into TRA; it stands before the stock class.

    Keys are cached after their norm: a cache is not normalised again for each new token.
    """

    layer_idx: int
    head_dim: int
    q_proj: nn.Module
    k_proj: nn.Module
    v_proj: nn.Module
    o_proj: nn.Module
    q_norm: nn.Module
    k_norm: nn.Module

    def __init__(self, config: Any, layer_idx: int) -> None:
        super().__init__(config, layer_idx)  # type: ignore[call-arg]
        self.tra_gate = TraGate(config.hidden_size, config.num_attention_heads)
        # a config is slow to read, and this is read for each token
        self.tra_norm = config.tra_norm
        self.tra_setting = setting(config, self.head_dim)

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        """As the stock module's; there are no position embeddings."""
        q, k, v = self._heads(hidden_states)
        if past_key_values is not None:
            k, v = past_key_values.update(k, v, self.layer_idx)
        options["tra_gate"] = self.tra_gate(hidden_states)
        out, _ = tra_attention(self, q, k, v, attention_mask, **options)
        return self.o_proj(out.reshape(*hidden_states.shape[:-1], -1)), None

    def _heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v, each (b, heads, t, d)."""
        heads = (*x.shape[:-1], -1, self.head_dim)
        q, k = self.q_proj(x).view(heads), self.k_proj(x).view(heads)
        v = self.v_proj(x).view(heads)
        if hasattr(self, "q_norm"):  # Qwen3's own, with a learned scale
            q, k = self.q_norm(q), self.k_norm(k)
        if self.tra_norm:
            q, k = unit_rms(q), unit_rms(k)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
