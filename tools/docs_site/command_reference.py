"""The page of the command line, from the parser of each verb."""

from __future__ import annotations

import re
import warnings
from typing import Any

import tyro

from docs_site.markdown import code, table
from outlast.cli import DESCRIPTION, VERBS, _function


def verb_parser(verb: str) -> Any:
    """The parser of a verb, like one of argparse. tyro has no way to it but a deprecated one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return tyro.extras.get_parser(_function(verb), prog=f"outlast {verb}")


def command_page() -> str:
    """Every verb with its arguments."""
    parsers = {verb: verb_parser(verb) for verb in VERBS}
    first = [(f"[{code(verb)}](#{verb})", _lines(p)[0]) for verb, p in parsers.items()]
    return "\n".join(
        [
            "# Commands\n",
            f"{DESCRIPTION.splitlines()[0]} `outlast VERB --help` prints the same as this page, "
            "which is generated from the parser.\n",
            table(["verb", "what it does"], first),
            *(_verb(verb, parser) for verb, parser in parsers.items()),
        ]
    )


def _lines(parser: Any) -> list[str]:
    return (parser.description or "").strip().splitlines()


def _verb(verb: str, parser: Any) -> str:
    prose: list[str] = []
    examples: list[str] = []
    for line in _lines(parser):
        is_example = line.startswith("Example: ")
        (examples if is_example else prose).append(line.removeprefix("Example: "))
    rows = [_argument(action) for action in parser._actions if action.dest != "help"]
    shown = "\n".join(examples)
    return "\n".join(
        [
            f"## {verb}\n",
            "\n".join(prose).strip() + "\n",
            f"```text\n{shown}\n```\n" if examples else "",
            table(["argument", "value", "default", "what it means"], rows) if rows else "",
        ]
    )


def _argument(action: Any) -> tuple[str, str, str, str]:
    """Name, what it takes, default and meaning. The help has the default at its end."""
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    metavar = metavar.replace("{None}|", "").replace("{None,", "{")  # nobody types it
    words = " ".join(str(action.help or "").split())
    match = re.search(r" ?\((required|repeatable|default: .*?)\)$", words)
    default = match[1].removeprefix("default: ") if match else ""
    names = ", ".join(map(code, action.option_strings)) or code(metavar)
    needed = default in ("required", "repeatable")
    shown = default if needed or not default else code(default)
    return names, code(metavar), shown, words[: match.start()] if match else words
