"""The local server of the page: read-only, on 127.0.0.1 alone, behind a token in the address."""

from __future__ import annotations

import hmac
import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from outlast.errors import OutlastError

HOST = "127.0.0.1"
#: no evaluated text, no inline script or style, nothing from elsewhere; the bundle has the same
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'"
)
HEADERS = {
    "Content-Security-Policy": f"{POLICY}; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
#: the longest address that is answered; a typed sequence is part of it
LONGEST_ADDRESS = 60_000
#: what is said of a longer one
TOO_LONG = (
    f"the address has more than {LONGEST_ADDRESS:,} characters: a typed sequence is part of it"
)
NO_TOKEN = "the address lacks the token that outlast view printed: it has a new one at each start"


@dataclass(frozen=True)
class Reply:
    """What the page gets for a path."""

    body: bytes
    kind: str
    status: HTTPStatus = HTTPStatus.OK


Answer = Callable[[str], Reply]


class Server(ThreadingHTTPServer):
    """Answers GET and HEAD for paths below its token."""

    daemon_threads = True

    def __init__(self, answer: Answer, port: int = 0) -> None:
        try:
            super().__init__((HOST, port), Handler)
        except OSError as error:
            reason = error.strerror or error
            raise OutlastError(f"port={port}: expected a free port of {HOST}: {reason}") from None
        self.answer, self.token = answer, secrets.token_urlsafe(24)

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that leaves before the answer is no error; others are shown as usual."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names under which a browser may ask for the page."""
        return tuple(f"{name}:{self.server_port}" for name in (HOST, "localhost"))

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}/{self.token}/"


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Server
    server_version, sys_version = "outlast", ""
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        self._send(self._reply())

    def do_HEAD(self) -> None:
        self._send(self._reply())

    def _reply(self) -> Reply:
        hosts, host, origin = self.server.hosts, self.headers.get("Host"), self.headers["Origin"]
        if host not in hosts:
            return _refusal(HTTPStatus.FORBIDDEN, "this page is for its own machine only")
        if origin is not None and origin not in [f"http://{name}" for name in hosts]:
            return _refusal(HTTPStatus.FORBIDDEN, "another page may not read this one")
        if len(self.path) > LONGEST_ADDRESS:
            return _refusal(HTTPStatus.REQUEST_URI_TOO_LONG, TOO_LONG)
        try:
            _, token, path = urlsplit(self.path).path.split("/", 2)
        except ValueError:
            token, path = "", ""
        if not hmac.compare_digest(token.encode("utf-8", "replace"), self.server.token.encode()):
            return _refusal(HTTPStatus.NOT_FOUND, NO_TOKEN)
        return self.server.answer(unquote(path))

    def _send(self, reply: Reply) -> None:
        self.send_response(reply.status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", reply.kind)
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Any other method or a broken request: in plain text, with the same headers."""
        self.close_connection = True
        words = f"{message or HTTPStatus(code).phrase}: only GET and HEAD are answered"
        too_long = code == HTTPStatus.REQUEST_URI_TOO_LONG
        self._send(_refusal(HTTPStatus(code), TOO_LONG if too_long else words))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing: the address holds the token."""


def _refusal(status: HTTPStatus, words: str) -> Reply:
    return Reply(f"{words}\n".encode(), "text/plain; charset=utf-8", status)
