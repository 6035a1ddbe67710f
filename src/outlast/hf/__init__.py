"""Outlast in Hugging Face's transformers: ``pip install 'outlast[hf]'``.

``import outlast.hf`` makes our model types known to the Auto classes: Outlast's own models, and
those of `outlast.hf.tra`.
"""

from __future__ import annotations

from outlast.errors import MissingExtraError

try:
    import transformers as _transformers  # noqa: F401
except ModuleNotFoundError as _error:
    if _error.name != "transformers":  # it is there and broken: its own words say more
        raise
    raise MissingExtraError("outlast.hf", "transformers", "hf") from _error

from outlast.hf.model import OutlastCache, OutlastConfig, OutlastForCausalLM, chunked, lm_eval
from outlast.hf.tra import register, to_tra

__all__ = [
    "OutlastCache",
    "OutlastConfig",
    "OutlastForCausalLM",
    "chunked",
    "lm_eval",
    "register",
    "to_tra",
]

register()
