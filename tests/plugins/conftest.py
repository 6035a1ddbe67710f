"""The second package is installed for the time of these tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from plug_in_package import entry_points, install

from outlast.registry import KINDS


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder such as site-packages, with the package in it."""
    folder = tmp_path_factory.mktemp("site")
    install(folder)
    return folder


@pytest.fixture(scope="module")
def _installed(site: Path) -> Iterator[None]:
    """The package can be found, and its items are registered as in a new process."""
    for registry in KINDS.values():
        registry.names()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        for registry in KINDS.values():
            registry._load_plug_ins()
        yield
    for kind, points in entry_points().items():
        for name in points:
            KINDS[kind]._entries.pop(name, None)
            KINDS[kind]._broken.pop(name, None)
    for module in [name for name in sys.modules if name.startswith("second_package")]:
        del sys.modules[module]
