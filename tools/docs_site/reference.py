"""The generated pages: every item of the registry, every command, the run folder, the API."""

from __future__ import annotations

from docs_site.api_reference import api_page
from docs_site.command_reference import command_page
from docs_site.folder_schema import folder_page
from docs_site.item_reference import item_page
from outlast.registry import SHOWN


def reference_pages() -> dict[str, str]:
    """The Markdown of each generated page, by its path in the site."""
    pages = {f"reference/{registry.plural}.md": item_page(registry) for registry in SHOWN.values()}
    return pages | {
        "reference/api.md": api_page(),
        "reference/commands.md": command_page(),
        "reference/run-folder.md": folder_page(),
    }
