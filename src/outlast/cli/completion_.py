"""`outlast completion`."""

from __future__ import annotations

from typing import Annotated, Literal

import tyro


def main(shell: Annotated[Literal["bash", "zsh", "fish"], tyro.conf.Positional]) -> int:
    """Print a script that makes the shell complete verbs and flags on Tab.

    In bash or zsh: eval "$(outlast completion bash)", best in ~/.bashrc or ~/.zshrc. In fish:
    outlast completion fish | source.

    Example: outlast completion bash

    Args:
        shell: The shell that is to complete commands.
    """
    from outlast.cli import run_all

    return run_all(["--tyro-print-completion", shell]) or 0
