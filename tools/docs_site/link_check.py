"""What is wrong with the links of a built site: dead ones, and resources from elsewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: attributes by which a page loads something; a plain link loads nothing
LOADS = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src")}
#: relations of <link> that load nothing
NAMED = {"canonical", "next", "prev", "edit", "alternate"}
OUTSIDE = re.compile(r"(?:@import\s+|url\()[\"']?(?:https?:)?//[^\"')]+")


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[tuple[str, bool]] = []  # address, and whether the page loads it
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        for name in ("id", "name"):
            if values.get(name):
                self.anchors.add(str(values[name]))
        for name in ("href", "src"):
            address = values.get(name)
            if address is not None:
                loads = (tag, name) in LOADS and values.get("rel") not in NAMED
                self.links.append((address, loads))


def problems(site: Path) -> list[str]:
    """Every dead link and every resource from elsewhere, with its page."""
    pages = {path.resolve(): _Page(path.read_text(encoding="utf-8"))
             for path in sorted(site.rglob("*.html"))}  # fmt: skip
    found = [
        f"{path.relative_to(site.resolve())}: {problem}"
        for path, page in pages.items()
        for problem in sorted(set(_page_problems(site.resolve(), path, page, pages)))
    ]
    for path in sorted(site.rglob("*.css")):
        for outside in OUTSIDE.findall(path.read_text(encoding="utf-8")):
            found.append(f"{path.relative_to(site)}: loads {outside}")
    return found


def _page_problems(site: Path, path: Path, page: _Page, pages: dict[Path, _Page]) -> list[str]:
    found = []
    for address, loads in page.links:
        parts = urlsplit(address)
        if parts.scheme or parts.netloc:
            if loads and parts.scheme != "data":
                found.append(f"loads {address}")
            continue
        base = site if parts.path.startswith("/") else path.parent
        target = (base / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
        target = target / "index.html" if target.is_dir() else target
        if not target.exists():
            found.append(f"dead link: {address}")
        elif parts.fragment and target in pages and not parts.fragment.startswith("__"):
            anchor = unquote(parts.fragment)
            found += [f"no such heading: {address}"] * (anchor not in pages[target].anchors)
    return found
