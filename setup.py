"""The page on PyPI is the README with whole addresses; everything else is in pyproject.toml."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
REPOSITORY = PROJECT["urls"]["Repository"]
RAW = REPOSITORY.replace("github.com", "raw.githubusercontent.com")


def whole_addresses(text: str) -> str:
    """Links to files of the repository, which PyPI does not have, as links to its page."""
    text = re.sub(r"(!\[[^]]*\]\()(?!https?:|#)", rf"\1{RAW}/main/", text)
    return re.sub(r"((?<!!)\[[^]]*\]\()(?!https?:|#)", rf"\1{REPOSITORY}/blob/main/", text)


setup(
    long_description=whole_addresses((ROOT / "README.md").read_text("utf-8")),
    long_description_content_type="text/markdown",
)
