"""The documentation site: hand-written pages and generated ones, staged and built by Zensical.

`python -m docs_site` stages all pages in `build/docs`, builds the site in `build/site` and checks
every link. It needs the extra `docs` and no network.
"""

from pathlib import Path

#: the repository
ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
#: where pages are staged, and where the site is built
STAGED, SITE = ROOT / "build" / "docs", ROOT / "build" / "site"
