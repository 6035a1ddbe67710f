"""Evaluation: accuracy by length, by part and jointly, and statistics over seeds."""

import sys
from types import ModuleType

from outlast.evaluate.ladder import LADDER, evaluate

__all__ = ["LADDER", "evaluate"]


class _Callable(ModuleType):
    """Once this package is imported, `outlast.evaluate` is the package; so it can be called."""

    __call__ = staticmethod(evaluate)


sys.modules[__name__].__class__ = _Callable
