"""From the path of a request to its answer. The server and the bundle use the same paths."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from outlast.errors import OutlastError, short_of_memory, shortened
from outlast.view import shipped
from outlast.view.catalogue import BUNDLE_MARK
from outlast.view.library import Library
from outlast.view.server import Reply

log = logging.getLogger(__name__)

JSON = "application/json; charset=utf-8"

RUNS = BUNDLE_MARK
RUN = "data/run/{run}.json"
ANATOMY = "data/anatomy/{run}.json"
EXAMPLES = "data/examples/{run}/{seed}/{number}.json"
LENGTHS = "data/lengths/{run}.json"
SEQUENCE = "data/sequence/{run}/{seed}/{name}.json"
ATTENTION = "data/attention/{run}/{seed}/{name}/{number}.json"
MAP = "data/map/{run}/{seed}/{name}/{number}-{head}.json"

#: what may stand for each word of a path
WORDS = {
    "run": r"[^/]+",
    "seed": r"\d{1,20}",
    "name": r".+",
    "number": r"\d{1,9}",
    "head": r"\d{1,9}",
}


def _pattern(path: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", path)
    words = [f"(?P<{p}>{WORDS[p]})" if i % 2 else re.escape(p) for i, p in enumerate(parts)]
    return re.compile("".join(words))


class Router:
    """Answers every path of the page from a library of runs."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self._routes: dict[re.Pattern[str], Callable[..., Reply]] = {
            _pattern(RUNS): lambda: _json(library.runs()),
            _pattern(RUN): lambda run: _json(library.curves(run)),
            _pattern(ANATOMY): lambda run: _json(library.anatomy(run)),
            _pattern(EXAMPLES): lambda run, seed, number: _json(
                library.examples(run, int(seed), int(number))
            ),
            _pattern(LENGTHS): lambda run: _json(library.lengths(run)),
            _pattern(SEQUENCE): lambda run, seed, name: _json(
                library.sequence(run, int(seed), name)
            ),
            _pattern(ATTENTION): lambda run, seed, name, number: _json(
                library.attention(run, int(seed), name, int(number))
            ),
            _pattern(MAP): lambda run, seed, name, number, head: _json(
                library.attention_map(run, int(seed), name, int(number), int(head))
            ),
        }

    def __call__(self, path: str) -> Reply:
        """The answer to a path; what went wrong is a message for the page."""
        asset = path.removeprefix("assets/") if path else shipped.INDEX
        if asset in shipped.names() and path in ("", f"assets/{asset}"):
            return Reply(*shipped.read(asset))
        for pattern, answer in self._routes.items():
            if match := pattern.fullmatch(path):
                return _guarded(lambda: answer(**match.groupdict()))  # noqa: B023
        return _problem(HTTPStatus.NOT_FOUND, f"there is nothing under {path!r:.80}")


def _guarded(answer: Callable[[], Reply]) -> Reply:
    try:
        return answer()
    except OutlastError as error:
        return _problem(HTTPStatus.UNPROCESSABLE_ENTITY, str(error))
    except Exception as error:  # the page shows what went wrong, whatever it is
        if short_of_memory(error):
            words = "memory does not suffice for this sequence: take a shorter one"
            return _problem(HTTPStatus.INSUFFICIENT_STORAGE, words)
        words = shortened(f"this went wrong in outlast itself: {type(error).__name__}: {error}")
        log.error("%s", words)
        log.debug("where it went wrong", exc_info=error)
        return _problem(HTTPStatus.INTERNAL_SERVER_ERROR, words)


def _json(values: Any) -> Reply:
    text = json.dumps(values, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return Reply(text.encode(), JSON)


def _problem(status: HTTPStatus, words: str) -> Reply:
    return Reply(json.dumps({"error": words}).encode(), JSON, status)
