"""Outlast in Lightning (``pip install 'outlast[lightning]'``): `DelayedAttention` is a callback."""

from outlast.errors import OutlastError

try:
    from outlast.lightning.callback import DelayedAttention
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "lightning":
        raise
    raise OutlastError(
        "outlast.lightning needs lightning: pip install 'outlast[lightning]'"
    ) from error

__all__ = ["DelayedAttention"]
