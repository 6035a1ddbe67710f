"""``python -m findings table FOLDER CSV`` and the like: see ``python -m findings --help``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from findings import page_table
from findings.analysis_table import write_analyses
from findings.causes_figure import draw_causes
from findings.copy_errors import describe
from findings.gradients_figure import draw_gradients
from findings.page_figure import draw_table
from findings.seed_figure import draw
from findings.seed_table import read, write


def command_parser() -> argparse.ArgumentParser:
    """What can be typed."""
    parser = argparse.ArgumentParser(prog="findings", description=main.__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    table = verbs.add_parser("table", help="every seed of every arm of studies, as a CSV file")
    table.add_argument("folders", type=Path, nargs="+", metavar="folder")
    table.add_argument("csv", type=Path)
    analyses = verbs.add_parser("analyses", help="analyses of every arm of studies, as a CSV file")
    analyses.add_argument("folders", type=Path, nargs="+", metavar="folder")
    analyses.add_argument("csv", type=Path)
    causes = verbs.add_parser("causes", help="of such a table, why the answers of arms are wrong")
    causes.add_argument("csv", type=Path)
    causes.add_argument("png", type=Path)
    causes.add_argument("--arms", nargs="+", required=True, help="names, in order")
    causes.add_argument("--labels", nargs="+", default=[], help="words for the arms, in order")
    causes.add_argument("--columns", type=int, default=4, help="panels in a row")
    gradients = verbs.add_parser("gradients", help="of such a table, gradients over training")
    gradients.add_argument("csv", type=Path)
    gradients.add_argument("png", type=Path)
    gradients.add_argument("--designs", nargs="+", required=True, help="a row for each")
    gradients.add_argument("--ways", nargs="+", required=True, help="an arm is DESIGN-WAY")
    gradients.add_argument("--labels", nargs="+", default=[], help="words for the ways, in order")
    figure = verbs.add_parser("figure", help="some arms of such a table, each seed a dot")
    figure.add_argument("csv", type=Path)
    figure.add_argument("png", type=Path)
    figure.add_argument("--arms", nargs="+", required=True, help="names or patterns, in order")
    figure.add_argument("--times", nargs="+", type=float, required=True, help="one panel for each")
    figure.add_argument("--part", default="joint", help="joint, state or recall")
    figure.add_argument("--labels", nargs="+", default=[], help="words for the arms, in order")
    page = verbs.add_parser("page-figure", help="a table that stands on a page, each seed a dot")
    page.add_argument("page", type=Path)
    page.add_argument("png", type=Path)
    page.add_argument("--columns", nargs="+", required=True, help="their heads; a panel for each")
    page.add_argument("--names", nargs="+", default=[], help="columns that name a line")
    copies = verbs.add_parser("copy-errors", help="where a run of copy errs, and what is before")
    copies.add_argument("folder", type=Path)
    copies.add_argument("--seed", type=int, default=0)
    copies.add_argument("--times", type=float, default=10)
    copies.add_argument("--rows", type=int, default=64)
    return parser


def main() -> None:
    """Write a table of every seed, draw some of its arms, or look at what was copied wrongly."""
    words = command_parser().parse_args()
    if words.verb == "table":
        write(words.folders, words.csv)
    elif words.verb == "analyses":
        write_analyses(words.folders, words.csv)
    elif words.verb == "causes":
        draw_causes(words.csv, words.arms, words.labels, words.columns, words.png)
    elif words.verb == "gradients":
        draw_gradients(words.csv, words.designs, words.ways, words.labels, words.png)
    elif words.verb == "page-figure":
        draw_table(page_table.read(words.page, words.columns, words.names), words.png)
    elif words.verb == "copy-errors":
        lines = describe(words.folder, words.seed, words.times, words.rows)
        sys.stdout.write("\n".join(lines) + "\n")
    else:
        draw(read(words.csv), words.arms, words.times, words.part, words.png, words.labels)


if __name__ == "__main__":
    main()
