"""The server answers its own page alone, reads, and never writes."""

from __future__ import annotations

import http.client
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.errors import OutlastError
from outlast.view import shipped
from outlast.view.library import Library
from outlast.view.router import Router
from outlast.view.server import POLICY, Server

Answer = tuple[int, dict[str, str], bytes]


@pytest.fixture(scope="module")
def server(library: Library) -> Iterator[Server]:
    with Server(Router(library)) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def ask(server: Server, path: str, method: str = "GET", **headers: str) -> Answer:
    """What the server says to a path as it is written, below its token."""
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=30)
    connection.request(method, f"/{server.token}/{path}", headers=headers)
    reply = connection.getresponse()
    answer = reply.status, dict(reply.getheaders()), reply.read()
    connection.close()
    return answer


def test_page_is_served_on_the_loopback_address_behind_a_token(server: Server) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", server.address)
    status, headers, body = ask(server, "")
    assert status == 200
    assert headers["Content-Type"].startswith("text/html")
    assert b"<title>Outlast</title>" in body


@pytest.mark.parametrize("path", ["", "data/runs.json", "assets/main.js", "nothing"])
def test_every_answer_has_a_strict_policy(server: Server, path: str) -> None:
    _, headers, _ = ask(server, path)
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "Access-Control-Allow-Origin" not in headers


def test_bundle_has_the_same_policy_in_its_page() -> None:
    assert f'content="{POLICY}"' in shipped.read("index.html")[0].decode()


@pytest.mark.parametrize("host", ["example.org", "127.0.0.1", "evil.localhost:80", ""])
def test_foreign_host_is_refused(server: Server, host: str) -> None:
    assert ask(server, "data/runs.json", Host=host)[0] == 403


def test_page_may_be_asked_for_as_localhost(server: Server) -> None:
    assert ask(server, "", Host=f"localhost:{server.server_port}")[0] == 200


@pytest.mark.parametrize("origin", ["http://example.org", "null", "https://127.0.0.1", ""])
def test_foreign_origin_is_refused(server: Server, origin: str) -> None:
    assert ask(server, "data/runs.json", Origin=origin)[0] == 403
    assert ask(server, "", Origin=server.address.rsplit("/", 2)[0])[0] == 200


@pytest.mark.parametrize("token", ["", "x", "%C3%A9", "wrong-token-of-some-length-000000"])
def test_wrong_token_is_not_found(server: Server, token: str) -> None:
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=30)
    connection.request("GET", f"/{token}/data/runs.json")
    response = connection.getresponse()
    assert response.status == 404
    assert b"the address lacks the token that outlast view printed" in response.read()
    connection.close()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_only_reading_is_answered(server: Server, method: str) -> None:
    status, headers, body = ask(server, "data/runs.json", method)
    assert status == 501
    assert "Content-Security-Policy" in headers
    assert b"only GET and HEAD" in body


def test_head_has_no_body(server: Server) -> None:
    status, headers, body = ask(server, "data/runs.json", "HEAD")
    assert status == 200
    assert int(headers["Content-Length"]) > 100
    assert body == b""


@pytest.mark.parametrize(
    "path",
    ["assets/../server.py", "assets/%2e%2e/server.py", "../", "assets/", "data/run/..%2Fx.json",
     "data/run/%2Fetc%2Fpasswd.json", "assets/nothing.js", "index.html", "main.js"],
)  # fmt: skip
def test_nothing_but_the_page_can_be_read(server: Server, path: str) -> None:
    assert ask(server, path)[0] in (404, 422)


def test_very_long_address_is_refused(server: Server) -> None:
    for signs in (61_000, 70_000):  # beyond our limit, beyond that of Python's own server
        status, headers, body = ask(server, "data/sequence/lstm/0/own-" + signs * "1")
        assert (status, headers["Content-Type"]) == (414, "text/plain; charset=utf-8")
        assert b"more than 60,000 characters: a typed sequence is part of it" in body


def test_port_in_use_is_an_error_that_names_it(server: Server, library: Library) -> None:
    with pytest.raises(OutlastError, match=rf"port={server.server_port}: expected a free port"):
        Server(Router(library), server.server_port)


def test_looking_changes_nothing_in_the_folders(server: Server, runs: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in runs.rglob("*")}
    place = "study--dat/0/draw-4-0"
    paths = ["data/run/study--dat.json", "data/anatomy/study--dat.json"]
    paths += [f"data/sequence/{place}.json", f"data/attention/{place}/0.json"]
    paths += [f"data/map/{place}/0-0.json"]
    assert [ask(server, path)[0] for path in paths] == [200] * len(paths)
    assert {path: path.stat().st_mtime_ns for path in runs.rglob("*")} == before


def test_own_files_of_the_page_name_no_other_host_and_no_inline_script() -> None:
    for name in shipped.names():
        if name.startswith("plotly-"):
            continue
        text = shipped.read(name)[0].decode().replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert not re.search(r"https?://|\beval\b|new Function|innerHTML", text), name
        assert not re.search(r"<script>|<style|\son\w+=\"|\sstyle=\"", text), name


def test_plotting_library_is_the_pinned_one_with_its_licence() -> None:
    assert b"plotly.js (cartesian - minified) v4.1.1" in shipped.read("plotly-cartesian.min.js")[0]
    assert b"MIT License" in shipped.read("plotly-LICENSE.txt")[0]
