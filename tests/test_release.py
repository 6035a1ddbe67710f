"""What a release says of itself agrees, and the package needs its hard dependencies alone."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest

from outlast.version import __version__

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_changelog_and_citation_have_the_version_of_the_package() -> None:
    heading = re.search(r"^## (\S+), (.+)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    assert heading is not None
    assert heading[1] == __version__
    assert re.fullmatch(r"unreleased|\d{4}-\d\d-\d\d", heading[2])
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"\nversion: {__version__}\n" in citation
    assert f'repository-code: "{PROJECT["urls"]["Repository"]}"' in citation


def test_citation_has_the_licence_of_our_own_code_and_the_package_that_of_all_it_holds() -> None:
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    licence = re.search(r"^license: (\S+)$", citation, re.M)
    assert licence is not None
    assert PROJECT["license"] == f"{licence[1]} AND MIT"
    assert f'"{PROJECT["license"]}"' in citation


def test_address_of_the_documentation_is_a_page_of_the_repository() -> None:
    page = PROJECT["urls"]["Documentation"].partition("/blob/main/")[2]
    assert page == "docs/index.md"
    assert (ROOT / page).exists()


def test_citation_names_every_paper_that_the_readme_names() -> None:
    readme, citation = ((ROOT / name).read_text("utf-8") for name in ("README.md", "CITATION.cff"))
    papers = set(re.findall(r"arxiv\.org/abs/([\d.]+\d)", readme))
    assert len(papers) >= 2
    assert papers == set(re.findall(r"arXiv:([\d.]+\d)", citation))


def test_classifiers_go_from_the_oldest_python_on() -> None:
    prefix = "Programming Language :: Python :: 3."
    minors = [int(c.removeprefix(prefix)) for c in PROJECT["classifiers"] if c.startswith(prefix)]
    oldest = int(PROJECT["requires-python"].removeprefix(">=3."))
    assert minors == list(range(oldest, 15))


def test_workflow_tests_every_python_and_the_oldest_torch() -> None:
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")
    assert ".ci/run" in workflow
    for classifier in PROJECT["classifiers"]:
        if version := re.search(r":: (3\.\d+)$", classifier):
            assert f'"{version[1]}"' in workflow
    (torch,) = [name for name in PROJECT["dependencies"] if name.startswith("torch>")]
    assert f"torch=={torch.removeprefix('torch>=')}.0" in workflow


def workflow_jobs() -> dict[str, str]:
    """The text of each job, without comments."""
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")
    jobs = re.sub(r"^ *#.*\n", "", workflow.split("\njobs:\n")[1], flags=re.M)
    _, *parts = re.split(r"^  (\w+):\n", jobs, flags=re.M)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_workflow_holds_on_to_the_tested_triton_and_downloads_no_model() -> None:
    versions = workflow_jobs()["versions"]
    assert re.search(r"pip install .*-c constraints-dev\.txt .*\[dev\]", versions)
    assert "triton==" in (ROOT / "constraints-dev.txt").read_text("utf-8")
    assert 'HF_HUB_OFFLINE: "1"' in versions.split("python -m pytest")[1]


def test_workflow_runs_the_wheel_in_an_empty_environment() -> None:
    wheel = workflow_jobs()["wheel"]
    steps = ["-m build --wheel", "-m venv", "install dist/*.whl", "outlast list"]
    places = [wheel.index(step) for step in steps]
    assert places == sorted(places)
    assert "-e ." not in wheel
    assert "working-directory: ${{ runner.temp }}" in wheel


def hard_dependencies() -> set[str]:
    """Every distribution that the package needs, and what these need, without extras."""
    names, waiting = set(), [*PROJECT["dependencies"]]
    while waiting:
        requirement = waiting.pop()
        name = normal(re.split(r"[^\w.-]", requirement, maxsplit=1)[0])
        if "extra ==" in requirement or name in names:
            continue
        names.add(name)
        try:
            waiting += requires(name) or []
        except PackageNotFoundError:  # of another platform
            continue
    return names


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


#: finds no module of the distributions that are named on the command line
BLOCKER = """
import sys
class Blocker:
    names = set(sys.argv[1].split())
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
"""


@pytest.mark.parametrize(
    "code",
    [
        "import outlast; [getattr(outlast, name) for name in outlast.__all__]",
        "from outlast.cli import main; assert main(['list']) == 0",
    ],
)
def test_package_works_with_its_hard_dependencies_alone(code: str, tmp_path: Path) -> None:
    needed = hard_dependencies() | {"outlast"}
    blocked = {
        module
        for module, owners in packages_distributions().items()
        if not needed & {normal(owner) for owner in owners}
    }
    assert {"pytest", "hypothesis"} <= blocked
    assert not {"torch", "numpy", "sympy", "markupsafe"} & blocked
    done = subprocess.run(
        [sys.executable, "-c", BLOCKER + code, " ".join(blocked)],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
