"""Random streams: each use of random numbers has its own stream, named and seeded.

A stream is a pure function of the seed, its name and numbers such as the block of steps. So a
resumed run needs no saved generator, and the data of a seed are the same alone and among others.
"""

from __future__ import annotations

import hashlib

import torch


def stream_seed(name: str, *numbers: int) -> int:
    """The seed of a named stream, 63 bits."""
    text = ":".join([name, *map(str, numbers)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def stream(device: torch.device, name: str, *numbers: int) -> torch.Generator:
    """The generator of a named stream on a device."""
    return torch.Generator(device).manual_seed(stream_seed(name, *numbers))
