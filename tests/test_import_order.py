"""The rooms of the house stand in a line: a module imports its own room and those to its left.

There is no cycle, not even a lazy one. A lazy import is one inside a function. Outside the command
line every lazy import is of an optional package, or of a module of ours that needs one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import outlast

HOME = Path(outlast.__file__).parent
#: from left to right; the last is the package itself, whose names are loaded on first use
ORDER = (
    "version", "errors", "specs", "arguments", "registry", "streams",
    "machine", "processes",
    "runs",
    "tasks", "kernels",
    "mixers",
    "models",
    "methods",
    "evaluation",
    "train",
    "workflow", "integrations", "sweep",
    "hf", "lightning",
    "reporting", "trackers", "studies", "bench", "analysis", "view",
    "api", "testing", "cli",
    "__main__", "__init__",
)  # fmt: skip
#: packages that outlast works without
OPTIONAL = {
    "triton", "fla", "adasplash", "jax", "pandas", "datasets", "tokenizers", "transformers",
    "lm_eval", "lightning", "ray", "tensorboard", "torch.utils.tensorboard", "wandb", "mlflow",
    "trackio",
}  # fmt: skip
#: parts of torch that load its compiler, which few runs need
HEAVY = {"torch.nn.attention.bias"}
#: modules that import others of ours by name when they are first asked for
BY_NAME = {"outlast", "outlast.registry"}


@dataclass(frozen=True)
class Import:
    """One import: `module` imports `target`, a module of ours or the name of another package."""

    module: str
    target: str
    line: int
    lazy: bool

    @property
    def package(self) -> str:
        return self.target.partition(".")[0]

    @property
    def ours(self) -> bool:
        return self.package == "outlast"

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}"


def in_cli(module: str) -> bool:
    return room_of(module) == "cli"


def room_of(module: str) -> str:
    room = module.split(".")[1] if "." in module else "__init__"
    assert room in ORDER, f"{module} is in no room: give {room} a place in ORDER"
    return room


@cache
def sources() -> dict[str, ast.Module]:
    """Every module of ours, parsed."""
    modules = {}
    for path in sorted(HOME.rglob("*.py")):
        names = ("outlast", *path.relative_to(HOME).with_suffix("").parts)
        name = ".".join(names).removesuffix(".__init__")
        modules[name] = ast.parse(path.read_text("utf-8"))
    assert len(modules) > 150
    return modules


@cache
def imports() -> list[Import]:
    return [each for module, tree in sources().items() for each in _imports(tree, module, False)]


def _imports(node: ast.AST, module: str, lazy: bool) -> Iterator[Import]:
    """Every import below a node, under TYPE_CHECKING too; `lazy` if it stands in a function."""
    if isinstance(node, ast.Import):
        yield from (Import(module, alias.name, node.lineno, lazy) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert not node.level, f"{module}:{node.lineno} is a relative import"
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            target = inner if inner in sources() else str(node.module)
            yield Import(module, target, node.lineno, lazy)
    lazy = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for child in ast.iter_child_nodes(node):
        yield from _imports(child, module, lazy)


@cache
def optional_modules() -> set[str]:
    """Optional packages, and modules of ours that cannot be imported without one."""
    modules = set(OPTIONAL)
    eager = [each for each in imports() if not each.lazy]
    while True:
        more = {each.module for each in eager if {each.target, each.package} & modules}
        if more <= modules:
            return modules
        modules |= more


def test_module_imports_only_its_own_room_and_those_to_its_left() -> None:
    violations = [
        str(each)
        for each in imports()
        if each.ours and ORDER.index(room_of(each.target)) > ORDER.index(room_of(each.module))
    ]
    assert violations == []


@pytest.mark.parametrize("room", ORDER)
def test_modules_of_a_room_do_not_import_each_other_in_a_circle(room: str) -> None:
    graph: dict[str, set[str]] = {}
    for each in imports():
        if each.ours and room_of(each.module) == room_of(each.target) == room:
            graph.setdefault(each.module, set()).add(each.target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_lazy_imports_outside_the_command_line_are_only_for_optional_packages() -> None:
    violations = [
        str(each)
        for each in imports()
        if each.lazy
        and not in_cli(each.module)
        and not {each.target, each.package} & {*optional_modules(), *HEAVY}
    ]
    assert violations == []


def test_modules_are_imported_by_name_only_in_the_registry_and_the_package() -> None:
    violations = [
        f"{module}:{node.lineno}"
        for module, tree in sources().items()
        if module not in BY_NAME and not in_cli(module)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).rpartition(".")[2] in ("import_module", "__import__")
    ]
    assert violations == []
