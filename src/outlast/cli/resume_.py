"""`outlast resume`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro


def main(folder: Annotated[Path, tyro.conf.Positional], device: str = "auto") -> int:
    """Go on with a run that was stopped or killed; the result is the same as if it had not been.

    Example: outlast resume runs/parity

    Args:
        folder: The run folder.
        device: auto, cpu, cuda, cuda:1 ...
    """
    from outlast.cli.running import train_and_test
    from outlast.train.session import pick_device

    return train_and_test(folder, pick_device(device))
