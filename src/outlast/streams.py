"""Random streams: each use of chance has a stream of its own, named and seeded.

A stream is a pure function of the seed, its name and numbers such as the block of steps, so
nothing needs to be saved to go on where a run stopped, and the data of seed 3 are the same
whether it is trained alone or among thirty others.
"""

from __future__ import annotations

import hashlib

import torch


def stream_seed(name: str, *numbers: int) -> int:
    """A seed of 63 bits for a named stream."""
    text = ":".join([name, *map(str, numbers)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def stream(device: torch.device, name: str, *numbers: int) -> torch.Generator:
    """A generator for a named stream on a device."""
    return torch.Generator(device).manual_seed(stream_seed(name, *numbers))
