"""`outlast export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro


def main(
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")],
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")],
    seed: int | None = None,
    overwrite: bool = False,
) -> None:
    """Write the trained model of one seed so that Hugging Face's transformers loads it.

    Example: outlast export runs/parity runs/parity/hf --seed 0

    Args:
        folder: The run folder.
        out: The folder to make: config.json, model.safetensors, README.md and a tokenizer.
        seed: One of the run's seeds, by default the first.
        overwrite: Replace a model that was exported to the folder before.
    """
    from outlast.cli.common import say
    from outlast.workflow.export import export

    exported = export(folder, out, seed, overwrite)
    say(f"the model: {exported}")
    say(
        "load it: import outlast.hf; "
        f"transformers.AutoModelForCausalLM.from_pretrained({str(exported)!r})"
    )
