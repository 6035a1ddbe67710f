"""Nothing heavy is loaded until it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import outlast as package

HEAVY = {"torch", "numpy", "matplotlib", "jinja2", "sympy"}


def modules_after(code: str) -> set[str]:
    """What is loaded after some lines of Python in a fresh process."""
    ending = "\nimport sys; sys.stderr.write('|'.join(sys.modules))"
    process = subprocess.run(
        [sys.executable, "-c", code + ending], capture_output=True, text=True, timeout=600
    )
    assert process.returncode == 0, process.stderr
    return set(process.stderr.split("|"))


def test_import_outlast_loads_nothing_heavy() -> None:
    loaded = modules_after("import outlast; dir(outlast); outlast.OutlastError")
    assert "outlast" in loaded
    assert not (HEAVY | {"rich", "tyro", "msgspec"}) & loaded


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["eval", "--help"], ["list"]])
def test_help_and_list_load_nothing_heavy(words: list[str]) -> None:
    code = (
        "from outlast.cli import main\n"
        f"try: main({words})\n"
        "except SystemExit as end: assert not end.code\n"
    )
    loaded = modules_after(code)
    assert "tyro" in loaded
    assert not HEAVY & loaded


def test_training_loads_no_plots_and_no_compiler() -> None:
    loaded = modules_after("import outlast.workflow.train, outlast.registry as r; r.mixers.names()")
    assert "torch" in loaded
    assert not {"matplotlib", "jinja2", "torch._dynamo", "sympy"} & loaded


def test_names_of_the_package_are_not_hidden_by_its_modules() -> None:
    code = (
        "import outlast, inspect\n"
        "for name in outlast.__all__ * 2:\n"
        "    assert name == '__version__' or callable(getattr(outlast, name)), name\n"
        "import outlast.workflow.evaluate, outlast.reporting.page, outlast.train.trainer\n"
        "for name in outlast.__all__:\n"
        "    assert name == '__version__' or callable(getattr(outlast, name)), name\n"
        "assert 'sequences' in inspect.signature(outlast.evaluate).parameters\n"
        "assert 'folders' in inspect.signature(outlast.report).parameters\n"
        "assert not callable(outlast.evaluation) and not callable(outlast.reporting)\n"
    )
    assert "outlast.evaluation.ladder" in modules_after(code)


def test_unknown_name_of_the_package_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'evalute'"):
        _ = package.evalute
