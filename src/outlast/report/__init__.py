"""The report: run folders in; a page, tables, figures and machine-readable numbers out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

__all__ = ["report"]


def report(folders: Sequence[Path], out: Path) -> Path:
    """Write the report on run and study folders into ``out``; the path of its ``index.html``.

    Beside the page: ``report.md`` and ``results.json`` with the same numbers, and ``figures/``.
    The same folders always give the same files.
    """
    from outlast.report.page import write_report  # matplotlib and jinja2 only when used

    return write_report(folders, out)


class _Callable(ModuleType):
    """Once this package is imported, `outlast.report` is the package; so it can be called."""

    __call__ = staticmethod(report)


sys.modules[__name__].__class__ = _Callable
