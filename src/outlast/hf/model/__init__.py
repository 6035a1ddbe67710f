"""Outlast models as models of transformers, known to its Auto classes once this is imported."""

from transformers import AutoConfig, AutoModelForCausalLM

from outlast.hf.model.cache import OutlastCache
from outlast.hf.model.chunked import chunked
from outlast.hf.model.configuration import OutlastConfig
from outlast.hf.model.harness import lm_eval
from outlast.hf.model.modelling import OutlastForCausalLM

__all__ = ["OutlastCache", "OutlastConfig", "OutlastForCausalLM", "chunked", "lm_eval"]

AutoConfig.register(OutlastConfig.model_type, OutlastConfig, exist_ok=True)
AutoModelForCausalLM.register(OutlastConfig, OutlastForCausalLM, exist_ok=True)
