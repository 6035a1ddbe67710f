"""Outlast in Hugging Face's transformers: the extra ``hf``.

- `DelayedAttention`: delayed attention as a callback for `transformers.Trainer`; `hold_back` puts a
  model that was saved in phase 1 back into phase 1.
- `to_tra`, and the model types of `outlast.hf.tra`: threshold relative attention in a Llama.
- `OutlastForCausalLM`: Outlast's own models. `chunked` and `lm_eval` measure any model.

``import outlast.hf`` makes our model types known to the Auto classes.
"""

from __future__ import annotations

from outlast.errors import MissingExtraError

try:
    import transformers as _transformers  # noqa: F401
except ModuleNotFoundError as _error:
    if _error.name is None or _error.name.partition(".")[0] != "transformers":
        raise  # it is there and broken: its own words say more
    raise MissingExtraError("outlast.hf", "transformers", "hf") from _error

from outlast.hf.model import OutlastCache, OutlastConfig, OutlastForCausalLM, chunked, lm_eval
from outlast.hf.tra import register, to_tra
from outlast.hf.trainer import DelayedAttention, hold_back

__all__ = [
    "DelayedAttention",
    "OutlastCache",
    "OutlastConfig",
    "OutlastForCausalLM",
    "chunked",
    "hold_back",
    "lm_eval",
    "register",
    "to_tra",
]

register()
