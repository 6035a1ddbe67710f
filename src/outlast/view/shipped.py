"""The files of the page itself, as the package ships them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "assets"
INDEX = "index.html"
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
    ".svg": "image/svg+xml",
}


@cache
def names() -> frozenset[str]:
    """The files that may be asked for."""
    return frozenset(path.name for path in FOLDER.iterdir() if path.suffix in KINDS)


def read(name: str) -> tuple[bytes, str]:
    """The bytes of a file and its content type."""
    path = FOLDER / name
    return path.read_bytes(), KINDS[path.suffix]
