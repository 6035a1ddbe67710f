"""The wheel holds the rules and the command that runs them."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from plug_in_package import ROOT


def test_wheel_has_the_rules_and_the_command(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        source.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, source)
    shutil.copytree(
        ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
    )
    # the build backend itself, as an installer calls it: no network, nothing is installed
    code = "import setuptools.build_meta as b, sys; print(b.build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=source, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
        points = next(name for name in names if name.endswith("entry_points.txt"))
        assert "outlast = outlast.cli:main" in wheel.read(points).decode()
    shipped = {path.relative_to(ROOT / "src").as_posix() for path in ROOT.glob("src/**/*.py")}
    assert shipped <= names
    assert {"outlast/testing/checking.py", "outlast/cli/check_.py", "outlast/py.typed"} <= names
    assert not [name for name in names if "conformance" in name or name.startswith("tests")]
