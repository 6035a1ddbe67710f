"""Outlast in Hugging Face `transformers` (``pip install 'outlast[hf]'``).

`DelayedAttention` is a callback for `transformers.Trainer`. `hold_back` puts a model that was saved
in phase 1 back into phase 1.
"""

from outlast.errors import OutlastError

try:
    from outlast.hf.trainer import DelayedAttention, hold_back
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "transformers":
        raise
    raise OutlastError("outlast.hf needs transformers: pip install 'outlast[hf]'") from error

__all__ = ["DelayedAttention", "hold_back"]
