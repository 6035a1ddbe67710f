"""`OutlastForCausalLM`: an Outlast model behind the interface of transformers."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import can_return_tuple

from outlast.arguments import shown
from outlast.errors import OutlastError, bad_value, require
from outlast.hf.model.cache import Group, OutlastCache
from outlast.hf.model.configuration import OutlastConfig
from outlast.hf.model.padding import read_padding
from outlast.models import Model, build_model
from outlast.models.generate import check_outputs
from outlast.tasks import Task
from outlast.workflow.export import layer_types

log = logging.getLogger(__name__)

#: arguments of other models that this one cannot honour
REFUSED = (
    "inputs_embeds", "position_ids", "token_type_ids", "output_attentions", "output_hidden_states",
)  # fmt: skip


class OutlastForCausalLM(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """An Outlast model as a causal language model of transformers.

    The weights are those of `outlast.model(line, task)`, below ``model.``, and so are the logits.
    `model`, if given, is used as it is and not copied.
    """

    config_class = OutlastConfig
    base_model_prefix = ""
    main_input_name = "input_ids"
    _no_split_modules = ("Model",)
    _is_stateful = True

    def __init__(self, config: OutlastConfig, model: Model | None = None) -> None:
        super().__init__(config)
        # from_pretrained builds on the device "meta", and gives buffers that are not saved to
        # `_init_weights`; so the model is built for real, and these buffers are kept
        self._is_loading = torch.empty(0).is_meta
        if model is None:
            with torch.device("cpu" if self._is_loading else torch.get_default_device()):
                seed = 0 if self._is_loading else None
                classes = 1 if config.classes is None else config.classes
                model = build_model(config.line, config.vocab_size, classes, seed)
            _set_up(model, config)
        types = layer_types(model)
        require(config.layer_types == types, "layer_types", config.layer_types, f"{types}")
        self.model = model
        saved = self.model.state_dict()
        self._unsaved = {n: b.clone() for n, b in model.named_buffers() if n not in saved}
        self.post_init()

    @classmethod
    def from_model(cls, model: Model, task: Task | None = None) -> OutlastForCausalLM:
        """A model of Outlast, not copied, and the task it is for, if it is to be recorded."""
        if not isinstance(model, Model):
            raise bad_value("model", shown(model), "a model of outlast.model or outlast.load")
        return cls(OutlastConfig.from_model(model, task), model)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: OutlastCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits (batch, tokens, outputs), the cache after these tokens, and the loss of labels.

        Args:
            input_ids: Whole numbers (batch, tokens).
            attention_mask: 1 for tokens, 0 for padding; (batch, tokens so far and these). Padding
                on the left is skipped. Padding on the right is for passes without a cache.
            past_key_values: What an earlier pass of this model returned.
            labels: The tokens themselves; they are shifted here, as in every causal model. -100 has
                no loss. For targets that stand at their own token give `shift_labels` too.
            use_cache: Whether to return the cache; by default not in training.
            logits_to_keep: How many of the last logits are wanted, or which; 0: all.
            kwargs: For the loss: `shift_labels`, `num_items_in_batch`.
        """
        for name in REFUSED:
            value = kwargs.pop(name, None)
            if value is not None and value is not False:
                raise bad_value(name, shown(value), "none: an Outlast model takes tokens alone")
        if past_key_values is not None and not isinstance(past_key_values, OutlastCache):
            raise bad_value("past_key_values", shown(past_key_values), "an OutlastCache, or None")
        batch, tokens = input_ids.shape
        cache = OutlastCache() if past_key_values is None else past_key_values
        padding, ends_early = read_padding(attention_mask, batch, tokens, cache)
        if ends_early and past_key_values is not None:
            accepted = "no padding after tokens in a pass with a cache: put it on the left"
            raise bad_value("attention_mask", "padding on the right", accepted)
        if not cache.groups:
            cache.begin(padding, batch, input_ids.device)
        logits = self._run(input_ids, cache)
        if isinstance(logits_to_keep, Tensor) or logits_to_keep:
            keep = logits_to_keep
            logits = logits[:, keep if isinstance(keep, Tensor) else slice(-keep, None)]
        loss = None
        if labels is not None:
            outputs, whole = logits.shape[-1], logits.contiguous()
            loss = self.loss_function(logits=whole, labels=labels, vocab_size=outputs, **kwargs)
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training
        keeps = past_key_values is not None or (use_cache and not ends_early)
        return CausalLMOutputWithPast(
            loss=loss, logits=logits, past_key_values=cache if keeps else None
        )

    def _run(self, tokens: Tensor, cache: OutlastCache) -> Tensor:
        """The logits of the next tokens of each row; the cache goes on."""
        key = None
        if self.training and self._drops:  # as torch's dropout does, it draws from torch's state
            key = torch.randint(2**62, (), device=tokens.device)
        before, count = cache.tokens, tokens.shape[1]
        groups, parts = [], []
        for group in cache.groups:
            start = max(0, group.padding - before)
            positions = self._positions(cache, group, before + start, before + count)
            part, state = self.model(
                tokens[group.rows, start:] if len(cache.groups) > 1 or start else tokens,
                group.state,
                positions=positions,
                key=key,
            )
            groups.append(Group(group.rows, group.padding, state))
            parts.append(part)
        cache.groups, cache.tokens = groups, before + count
        if len(parts) == 1 and parts[0].shape[1] == count:
            return parts[0]
        logits = parts[0].new_zeros(tokens.shape[0], count, parts[0].shape[-1])
        for group, part in zip(groups, parts, strict=True):
            logits[group.rows, count - part.shape[1] :] = part
        return logits

    def _positions(self, cache: OutlastCache, group: Group, start: int, stop: int) -> Tensor | None:
        """The positions of a group's tokens, if they are not counted and the end is known."""
        if cache.total is None:
            return None
        positions = self.model.positions(max(cache.total, stop) - group.padding)
        shift = group.padding
        return None if positions is None else positions[start - shift : stop - shift]

    @property
    def _drops(self) -> bool:
        mixers = [sublayer.mixer for sublayer in self.model.sublayers()]
        return bool(self.model.layout.dropout) or any(mixer.dropout for mixer in mixers)

    # ---- generation ------------------------------------------------------------------------------

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """`generate` of transformers; the model must have an output for every token."""
        check_outputs(self.model)
        return super().generate(*args, **kwargs)

    def _prepare_cache_for_generation(
        self,
        generation_config: Any,
        model_kwargs: dict[str, Any],
        generation_mode: Any,
        batch_size: int,
        max_cache_length: int,
    ) -> None:
        kind = generation_config.cache_implementation
        if kind not in (None, "dynamic"):
            raise bad_value("cache_implementation", kind, "none: the model has a cache of its own")
        if (cache := model_kwargs.get("past_key_values")) is not None:
            cache._is_user_defined = True  # transformers asks for it; `forward` checks the type
        elif generation_config.use_cache is not False:
            model_kwargs["past_key_values"] = OutlastCache(total=max_cache_length + 1)

    # ---- weights ---------------------------------------------------------------------------------

    def _init_weights(self, module: nn.Module) -> None:
        """Fill what a checkpoint does not hold. A new model has drawn its weights already."""
        if not self._is_loading:
            return
        (prefix,) = [name for name, inner in self.model.named_modules() if inner is module] or [""]
        for name, weight in module.named_parameters(recurse=False):
            if not getattr(weight, "_is_hf_initialized", False):
                raise OutlastError(f"the checkpoint has no weights {prefix}.{name}, or of no use")
        for name, buffer in module.named_buffers(recurse=False):
            if (whole := f"{prefix}.{name}".lstrip(".")) in self._unsaved:
                buffer.copy_(self._unsaved[whole])

    def save_pretrained(self, *args: Any, **kwargs: Any) -> Any:
        """`save_pretrained` of transformers. Gates are saved as they are now."""
        now = OutlastConfig.from_model(self.model)
        self.config.gates, self.config.span = now.gates, now.span
        return super().save_pretrained(*args, **kwargs)

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embedding

    def get_output_embeddings(self) -> nn.Module:
        return self.model.head

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *_: Any, **__: Any) -> Any:
        """Refused, as the vocabulary is a part of the model."""
        size = self.config.vocab_size
        if new_num_tokens not in (None, size):
            raise bad_value("new_num_tokens", new_num_tokens, f"{size}, the model's vocabulary")
        return self.model.embedding


def _set_up(model: Model, config: OutlastConfig) -> None:
    """Set the gates and the span of a new model."""
    model.span, sublayers = config.span, model.sublayers()
    if config.gates is None:
        return
    fits = len(config.gates) == len(sublayers)
    require(fits, "gates", config.gates, f"a gate for each of {len(sublayers)} sublayers")
    for sublayer, gate in zip(sublayers, config.gates, strict=True):
        sublayer.set_gate(gate)
    log.warning("this model has gates that are not open: %s; see set_gate", config.gates)
