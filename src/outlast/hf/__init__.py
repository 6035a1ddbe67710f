"""Outlast and Hugging Face's transformers, which comes with ``pip install 'outlast[hf]'``."""

from importlib.util import find_spec

if find_spec("transformers") is None:
    raise ImportError("outlast.hf needs transformers: install it with pip install 'outlast[hf]'")

from outlast.hf.model import OutlastCache, OutlastConfig, OutlastForCausalLM, chunked, lm_eval

__all__ = ["OutlastCache", "OutlastConfig", "OutlastForCausalLM", "chunked", "lm_eval"]
