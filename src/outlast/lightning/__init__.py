"""Outlast in Lightning (the extra ``lightning``): `DelayedAttention` is a callback."""

from outlast.errors import MissingExtraError

try:
    from outlast.lightning.callback import DelayedAttention
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "lightning":
        raise
    raise MissingExtraError("outlast.lightning", "lightning", "lightning") from error

__all__ = ["DelayedAttention"]
