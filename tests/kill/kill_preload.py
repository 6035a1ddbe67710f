"""Loaded once by the server that the processes are forked from: all that a command needs.

A first run loads what is otherwise loaded late: schemes, tasks, parsers of flags.
"""

from __future__ import annotations

from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from io import StringIO
from tempfile import TemporaryDirectory

import torch
from kill_cases import train

from outlast.cli import main

for name in ("cli.eval_", "cli.resume_", "cli.report_", "cli.reproduce_", "reporting.page",
             "studies.runner", "workflow.subset"):  # fmt: skip
    import_module(f"outlast.{name}")
import_module("tiny_runs")
torch.set_num_threads(1)
with TemporaryDirectory() as home, redirect_stdout(StringIO()), redirect_stderr(StringIO()):
    main(train("--steps", "3", out=f"{home}/run"))
