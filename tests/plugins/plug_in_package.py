"""A second package with good items and bad ones, as an installer lays it out."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from bad_items import FAULTS

from outlast.registry import KINDS

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
PACKAGE = "second-package"
#: what the examples of CONTRIBUTING.md define: kind, name of the item, and of the class or function
GOOD = [
    ("task", "first", "First"),
    ("scheme", "window", "Window"),
    ("weights", "squared", "Squared"),
    ("mixer", "average", "Average"),
    ("method", "late_recall", "LateRecall"),
    ("preset", "averaging", "averaging"),
]


def examples() -> dict[str, str]:
    """Every Python block of CONTRIBUTING.md, by the name of the item that it registers."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    names = [re.search(r'\.register\("(\w+)"\)', block) for block in blocks]
    return {name[1] if name else "test": block for name, block in zip(names, blocks, strict=True)}


def entry_points() -> dict[str, dict[str, str]]:
    """What the package declares: by kind, the name of each item and what it refers to."""
    points: dict[str, dict[str, str]] = {kind: {} for kind in KINDS}
    for kind, name, attribute in GOOD:
        points[kind][name] = f"second_package.{name}:{attribute}"
    for kind, name in FAULTS:
        points[kind][name] = f"second_package.bad_items:{name}"
    points["study"]["good_study"] = "second_package.bad_items:good_study"
    points["study"]["twice"] = "second_package.bad_items:twice"
    points["task"]["twice"] = "second_package.bad_items:Twice"
    points["mixer"]["gone"] = "second_package.broken:Gone"
    return points


def install(folder: Path) -> None:
    """Put the package into a folder such as site-packages."""
    package, info = folder / "second_package", folder / "second_package-1.0.dist-info"
    package.mkdir()
    info.mkdir()
    (package / "__init__.py").touch()
    for name, text in examples().items():
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    shutil.copy(HERE / "bad_items.py", package)
    (package / "broken.py").write_text("import a_module_that_is_not_there\n")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1.0\n")
    lines = []
    for kind, points in entry_points().items():
        lines += [f"[{KINDS[kind].group}]", *(f"{name} = {to}" for name, to in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
