"""Outlast: sequence models that keep working far past the lengths they were trained on.

Everything is usable alone::

    import outlast

    task = outlast.task("composite(modulus=10)")        # an iterator: task.stream(batch=64)
    model = outlast.model("4 x (lstm > attention > mlp)", task)
    rows = outlast.evaluate(model, task)                # any callable, by length
    rows = outlast.fit("parity", "lstm > mlp", "runs/p")  # ten seeds at once, tested by length
    rows = outlast.results("runs/p")                    # of a run, a grid or a study, once more
    page = outlast.report("runs/p")                     # pictures and tables
    delayed = outlast.delay(mine, "*.attn")             # DAT in a loop of one's own
    model = outlast.load("runs/dat", seed=0)            # a trained model

Nothing heavy is imported until it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from outlast.version import __version__

if TYPE_CHECKING:
    from outlast.api import fit, model, results, task
    from outlast.errors import OutlastError
    from outlast.evaluation.ladder import evaluate
    from outlast.kernels.tra import threshold_relative_attention
    from outlast.methods.delay import delay
    from outlast.reporting.page import report
    from outlast.trackers.tracking import track
    from outlast.workflow.load import load
    from outlast.workflow.train import Listener

__all__ = [
    "Listener",
    "OutlastError",
    "__version__",
    "delay",
    "evaluate",
    "fit",
    "load",
    "model",
    "report",
    "results",
    "task",
    "threshold_relative_attention",
    "track",
]

_HOMES = {
    "Listener": "outlast.workflow.train",
    "OutlastError": "outlast.errors",
    "delay": "outlast.methods.delay",
    "evaluate": "outlast.evaluation.ladder",
    "fit": "outlast.api",
    "load": "outlast.workflow.load",
    "model": "outlast.api",
    "report": "outlast.reporting.page",
    "results": "outlast.api",
    "task": "outlast.api",
    "threshold_relative_attention": "outlast.kernels.tra",
    "track": "outlast.trackers.tracking",
}


#: rooms that need an extra, which an error then names
_ROOMS = ("hf", "lightning")


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"outlast.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'outlast' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
