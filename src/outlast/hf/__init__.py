"""Outlast in Hugging Face `transformers`: ``pip install 'outlast[hf]'``.

``import outlast.hf`` registers the model types of `outlast.hf.tra` with the Auto classes.
"""

from __future__ import annotations

from outlast.errors import MissingExtraError

try:
    import transformers as _transformers  # noqa: F401
except ModuleNotFoundError as _error:
    if _error.name != "transformers":  # it is there and broken: its own words say more
        raise
    raise MissingExtraError("outlast.hf", "transformers", "hf") from _error

from outlast.hf.tra import register, to_tra

__all__ = ["register", "to_tra"]

register()
