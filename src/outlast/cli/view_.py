"""`outlast view`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

if TYPE_CHECKING:
    from outlast.view.library import Library


def main(
    folders: Annotated[tuple[Path, ...], tyro.conf.Positional] = (Path(),),
    port: int = 0,
    browser: bool = True,
    bundle: Path | None = None,
    lengths: tuple[float, ...] = (1, 2),
    sequences: int = 2,
) -> None:
    """Open a page to look at runs: curves, and single sequences token by token.

    The page is served on this machine alone, from an address with a secret token. Nothing in the
    folders is changed. Ctrl-C ends it.

    Example: outlast view runs/parity --bundle runs/parity-page

    Args:
        folders: Run folders, grids, studies, or folders that hold some of these; by default the
            current folder.
        port: Where the page is served; 0 takes any free port.
        browser: Open the page in the browser.
        bundle: Write the page as files into this folder instead, to share them.
        lengths: For a bundle: lengths of the sequences to compute, in multiples of the training
            length.
        sequences: For a bundle: how many sequences of each length.
    """
    from outlast.cli.common import say
    from outlast.errors import bad_value
    from outlast.view.bundle import write_bundle
    from outlast.view.catalogue import find_entries
    from outlast.view.library import Library

    if not 0 <= port < 2**16:
        raise bad_value("port", port, "a whole number from 0 to 65535")
    entries = find_entries(folders or (Path(),))
    for entry in entries:
        if entry.problem:
            say(f"left out: {entry.problem}")
    library = Library(entries)
    if bundle is None:
        _serve(library, port, browser)
        return
    for words in write_bundle(library, bundle, lengths, sequences, say):
        say(f"left out: {words}")
    say(f"the bundle: {bundle}")
    place = shlex.quote(str(bundle))
    say(f"look at it: python3 -m http.server --bind 127.0.0.1 --directory {place}")


def _serve(library: Library, port: int, browser: bool) -> None:
    import webbrowser

    from outlast.cli.common import say
    from outlast.view.router import Router
    from outlast.view.server import Server

    with Server(Router(library), port) as server:
        say(f"the page: {server.address}")
        say("Ctrl-C ends it")
        if browser:
            webbrowser.open(server.address)
        server.serve_forever()
