"""Wheel and sdist: built, checked, and installed into an environment without anything of ours."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from outlast.version import __version__

ROOT = Path(__file__).parents[3]
#: what a release is built from
SOURCES = (
    "pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md",
    "CITATION.cff", "SECURITY.md",
)  # fmt: skip


def run(*command: str | Path, cwd: Path) -> str:
    # another outlast may be on the path of this process
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the sdist and of the wheel that is built from it."""
    home = tmp_path_factory.mktemp("release")
    source, dist = home / "source", home / "dist"
    source.mkdir()
    for name in SOURCES:
        shutil.copy(ROOT / name, source)
    clean = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", source / "src", ignore=clean)
    shutil.copytree(ROOT / "tests" / "trackers", source / "tests", ignore=clean)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, source, cwd=home)
    return dist


def test_twine_takes_both(dist: Path) -> None:
    names = {path.name for path in dist.iterdir()}
    assert names == {f"outlast-{__version__}.tar.gz", f"outlast-{__version__}-py3-none-any.whl"}
    said = run(sys.executable, "-m", "twine", "check", "--strict", *dist.iterdir(), cwd=dist)
    assert said.count("PASSED") == 2


def test_sdist_has_the_package_and_no_tests(dist: Path) -> None:
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert set(SOURCES) <= names
    files = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("src/**/*.py")}
    assert files <= names
    assert not [name for name in names if name.startswith(("tests", "docs", "benchmarks"))]


def test_wheel_has_the_package_its_data_and_nothing_else(dist: Path) -> None:
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
    data = [*ROOT.glob("src/outlast/view/assets/*"), *ROOT.glob("src/outlast/reporting/*.html")]
    assert data
    assert {path.relative_to(ROOT / "src").as_posix() for path in data} <= names
    assert {name.partition("/")[0] for name in names} == {
        "outlast", f"outlast-{__version__}.dist-info"
    }  # fmt: skip


def test_page_on_pypi_has_whole_addresses_alone(dist: Path) -> None:
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        text = wheel.read(f"outlast-{__version__}.dist-info/METADATA")
    metadata = message_from_bytes(text)
    assert metadata["Description-Content-Type"] == "text/markdown"
    page = text.decode()
    images = re.findall(r"!\[[^]]*\]\(([^)]*)\)", page)
    assert images
    assert all(image.startswith("https://raw.githubusercontent.com/") for image in images)
    links = re.findall(r"\]\(([^)]*)\)", page)
    assert [link for link in links if not re.match("https?://|#", link)] == []
    for link in links:  # each is a file of the repository
        if match := re.search(r"/outlast/(?:blob/)?main/([^#]+)", link):
            assert (ROOT / match[1]).exists(), link
    assert {"Repository", "Issues", "Changelog", "Documentation"} <= {
        url.partition(",")[0] for url in metadata.get_all("Project-URL")
    }


def test_wheel_works_in_an_empty_environment_from_another_folder(
    dist: Path, tmp_path: Path
) -> None:
    environment = tmp_path / "environment"
    venv.create(environment, symlinks=True)
    python = environment / "bin" / "python"
    wheel = next(dist.glob("*.whl"))
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    run(*pip, "--no-deps", "--no-index", str(wheel), cwd=tmp_path)
    # dependencies are those of this environment; its own outlast is not found that way
    packages = sysconfig.get_path("purelib", vars={"base": str(environment)})
    others = [path for path in sys.path if path.endswith("site-packages")]
    Path(packages, "dependencies.pth").write_text("\n".join(others))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    place = run(python, "-c", "import outlast; print(outlast.__file__)", cwd=elsewhere)
    assert place.startswith(packages)
    assert "parity" in run(environment / "bin" / "outlast", "list", cwd=elsewhere)
    assert (
        run(environment / "bin" / "outlast", "--version", cwd=elsewhere).split()[1] == __version__
    )
    assert list(elsewhere.iterdir()) == []
