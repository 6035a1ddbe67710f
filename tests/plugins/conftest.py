"""A second package, installed for the time of these tests: good items and bad ones."""

from __future__ import annotations

import importlib
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.registry import KINDS, Registry

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


def install(folder: Path) -> dict[str, list[str]]:
    """Lay out the package as an installer does; returns its names by kind."""
    modules = folder / "second_package"
    modules.mkdir(parents=True)
    (modules / "__init__.py").touch()
    for name, text in examples().items():
        (modules / f"{name}.py").write_text(text, encoding="utf-8")
    shutil.copy(HERE / "bad_items.py", modules / "bad_items.py")
    (modules / "broken.py").write_text("import a_module_that_is_not_there\n")
    points = [(kind, name, f"second_package.{name}:{attribute}") for kind, name, attribute in GOOD]
    sys.path.insert(0, str(folder))
    try:
        importlib.invalidate_caches()
        faults = importlib.import_module("second_package.bad_items").FAULTS
    finally:
        sys.path.remove(str(folder))
    bad = "second_package.bad_items"
    points += [(kind, name, f"{bad}:{name}") for kind, name in faults]
    points += [("study", "good_study", f"{bad}:good_study"), ("study", "twice", f"{bad}:twice")]
    points += [("task", "twice", f"{bad}:Twice"), ("mixer", "gone", "second_package.broken:Gone")]
    info = folder / "second_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1.0\n")
    groups: dict[str, list[str]] = {}
    for kind, name, target in points:
        groups.setdefault(KINDS[kind].group, []).append(f"{name} = {target}")
    lines = [line for group, items in groups.items() for line in (f"[{group}]", *items)]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    names: dict[str, list[str]] = {}
    for kind, name, _ in points:
        names.setdefault(kind, []).append(name)
    return names


def forget(registry: Registry, names: list[str]) -> None:
    for name in names:
        registry._entries.pop(name, None)
        registry._broken.pop(name, None)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder such as site-packages, with the package in it."""
    folder = tmp_path_factory.mktemp("site")
    install(folder)
    return folder


@pytest.fixture
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The package can be found, and its items are registered."""
    folder = tmp_path_factory.mktemp("site")
    for registry in KINDS.values():
        registry.names()
    with pytest.MonkeyPatch.context() as patch:
        names = install(folder)
        patch.syspath_prepend(folder)
        for registry in KINDS.values():
            registry._load_plug_ins()
        yield
    for kind, of_kind in names.items():
        forget(KINDS[kind], of_kind)
    for module in [name for name in sys.modules if name.startswith("second_package")]:
        del sys.modules[module]
