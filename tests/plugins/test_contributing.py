"""The examples of CONTRIBUTING.md are typed; `test_check.py` runs them against every rule."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from plug_in_package import GOOD, ROOT, examples

from outlast.methods.phases import STATE_PARTS, _default_watch
from outlast.registry import KINDS

#: what `mypy --strict` asks for beyond our own settings
STRICT = "# mypy: warn-return-any, disallow-untyped-decorators, warn-unused-ignores\n"


def test_every_example_is_installed_as_an_item() -> None:
    assert {name for _, name, _ in GOOD} | {"test"} == set(examples())
    assert {kind for kind, _, _ in GOOD} | {"study"} == set(KINDS)


def test_examples_pass_mypy_strict(tmp_path: Path) -> None:
    """With our settings and the cache of `make lint`, which is warm; else it takes a while."""
    for name, text in examples().items():
        (tmp_path / f"example_{name}.py").write_text(STRICT + text, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", *map(str, tmp_path.glob("*.py"))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"no issues found in {len(examples())} source files" in done.stdout


def test_example_with_a_wrong_type_does_not_pass(tmp_path: Path) -> None:
    """So that the test above can fail."""
    wrong = examples()["window"].replace("keys: Tensor) -> Tensor:", "keys):")
    assert wrong != examples()["window"]
    (tmp_path / "example_wrong.py").write_text(STRICT + wrong, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", str(tmp_path / "example_wrong.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 1
    assert "type annotation" in done.stdout


@pytest.mark.usefixtures("_installed")
def test_test_in_the_examples_passes(site: Path) -> None:
    names: dict[str, object] = {}
    exec(compile(examples()["test"], "CONTRIBUTING.md", "exec"), names)
    (test,) = [value for name, value in names.items() if name.startswith("test_")]
    assert callable(test)
    test()


def test_page_names_the_parts_that_methods_look_for() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.split("### Which names of parts matter")[1].split("\n## ")[0]
    for part in (*STATE_PARTS, "recall", "joint"):
        assert f"| `{part}` |" in section
    assert _default_watch(("recall", "state", "running")) == "running"
    assert _default_watch(("recall", "state")) == "state"
    assert _default_watch(("letters", "recall")) == "letters"
