"""The page of the Python API, which the builder fills from the docstrings."""

from __future__ import annotations

import outlast
from docs_site.markdown import code

#: what is used beside the names of `outlast` itself, by the extra that it needs
MORE = {
    "For plug-ins": ["outlast.testing.check"],
    "To add an item": [
        "outlast.tasks.base.Task",
        "outlast.tasks.base.Batch",
        "outlast.mixers.base.Mixer",
        "outlast.mixers.attention.schemes.base.Scheme",
        "outlast.mixers.attention.weights.Weights",
        "outlast.methods.base.Method",
        "outlast.methods.base.Control",
        "outlast.trackers.base.Tracker",
        "outlast.trackers.base.Point",
        "outlast.trackers.base.Conclusion",
    ],
    "Specs": ["outlast.specs.parse", "outlast.specs.parse_layout", "outlast.specs.Layout"],
}


def api_page() -> str:
    """Every public name, with its signature and docstring."""
    lines = [
        "# Python API\n",
        "Generated from the docstrings. Nothing heavy is imported until it is used.\n",
        "## outlast\n",
    ]
    for name in outlast.__all__:
        if name != "__version__":
            lines.append(_member(f"{outlast._HOMES[name]}.{name}", f"outlast.{name}"))
    for title, members in MORE.items():
        lines += [f"## {title}\n", *(_member(path, path) for path in members)]
    return "\n".join(lines)


def _member(path: str, shown: str) -> str:
    return f"### {code(shown)}\n\n::: {path}\n"
