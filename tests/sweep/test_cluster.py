"""What is wrong with a cluster or a node is told apart and said soon; Ray is not needed here."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from outlast.errors import MissingExtraError, OutlastError, RunFolderError
from outlast.sweep import cluster, ray_address, ray_tasks
from outlast.sweep.attempts import HIDDEN, PROGRESS
from outlast.sweep.candidates import find_candidates
from outlast.sweep.cluster import GIB, Need, RayCluster
from outlast.sweep.packs import Pack, cut_packs
from outlast.sweep.ray_tasks import attempt_in_task, look
from outlast.sweep.work import PackJob, PackProgress, Slot
from outlast.workflow.evaluate import Evaluation
from tiny_runs import tiny


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install -e '\.\[ray\]' in a clone"):
        RayCluster("auto")


@pytest.fixture
def _any_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of Ray is used before somebody answers."""
    monkeypatch.setattr(cluster, "_import_ray", lambda: None)


@pytest.mark.usefixtures("_any_ray")
def test_address_that_does_not_answer_is_named() -> None:
    with socket.socket() as listener:  # a port that nobody listens to any more
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    with pytest.raises(OutlastError, match=f"ray=127.0.0.1:{port}: no Ray cluster answers there"):
        RayCluster(f"127.0.0.1:{port}")


@pytest.mark.usefixtures("_any_ray")
@pytest.mark.parametrize("address", ["", "somewhere", "host:port", ":6379", "host:99999"])
def test_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(OutlastError, match="expected auto, local or HOST:PORT"):
        RayCluster(address)


@pytest.mark.usefixtures("_any_ray")
def test_address_of_rays_client_is_refused_as_such() -> None:
    with pytest.raises(OutlastError, match=r"ray=ray://host:10001: .*HOST:PORT.*\(ray://\) is not"):
        RayCluster("ray://host:10001")


@pytest.mark.usefixtures("_any_ray")
def test_host_that_is_no_name_is_refused() -> None:
    with pytest.raises(OutlastError, match="no Ray cluster answers there"):
        RayCluster("a..b:6379")


@contextmanager
def listener(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server for one connection; yields its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = Thread(target=lambda: serve(server.accept()[0]), daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join(10)


@contextmanager
def http_server() -> Iterator[str]:
    """As the dashboard of Ray: it waits for a request of HTTP/1."""
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


NOT_RAY = "what answers there is not the head of a Ray cluster: .*6379.*8265 is the dashboard"


@pytest.mark.usefixtures("_any_ray")
def test_server_of_another_kind_is_refused_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_address, "ANSWER", 0.2)
    with ExitStack() as stack:
        addresses = [
            stack.enter_context(http_server()),
            stack.enter_context(listener(lambda peer: peer.recv(1000) and peer.close())),
            # silent until the other side has gone
            stack.enter_context(listener(lambda peer: peer.recv(1000) and peer.recv(1000))),
        ]
        for address in addresses:
            with pytest.raises(OutlastError, match=f"ray={address}: {NOT_RAY}"):
                RayCluster(address)


def speak_grpc(peer: socket.socket) -> None:
    """The first frame of the head of a Ray cluster, in two pieces."""
    assert peer.recv(1000).startswith(b"PRI * HTTP/2.0")
    for piece in (b"\0\0\x18\4", b"\0\0\0\0\0"):
        peer.sendall(piece)
    peer.recv(1000)
    peer.close()


class RayError(Exception):
    """As the one of Ray, of which no Python error is a base."""


class AuthenticationError(RayError):
    pass


def fake_ray(error: Exception) -> SimpleNamespace:
    """Ray that cannot connect."""

    def init(**_: object) -> None:
        raise error

    return SimpleNamespace(init=init, exceptions=SimpleNamespace(RayError=RayError))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            ConnectionError("Failed to connect"),
            r"a server answers there, but Ray does not get through \(Failed to connect\)\. .*10001 "
            r".*or the cluster wants a token: set RAY_AUTH_MODE=token, and have the same token",
        ),
        (
            AuthenticationError("No token was found. Ensure that. And more."),
            r"No token was found\. Give the token of the cluster in RAY_AUTH_TOKEN or in ~/",
        ),
    ],
)
def test_cluster_that_does_not_let_us_in_is_told_from_none(
    error: Exception, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_import_ray", lambda: fake_ray(error))
    with (
        listener(speak_grpc) as address,
        pytest.raises(OutlastError, match=f"^ray={address}: {message}"),
    ):
        RayCluster(address)


@pytest.mark.parametrize("mode", [None, "disabled"])
def test_local_cluster_has_a_token_that_ends_with_it(
    mode: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    if mode:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    tokens = []

    def init(**_: Any) -> None:
        tokens.append(os.environ["RAY_AUTH_TOKEN"])
        os.environ.setdefault("RAY_AUTH_MODE", "token")  # as Ray does
        raise RuntimeError("no room")

    ray = fake_ray(RuntimeError())
    ray.init = init
    monkeypatch.setattr(cluster, "_import_ray", lambda: ray)
    for _ in range(2):
        with pytest.raises(OutlastError, match=r"ray=local: cannot start Ray .*\(no room\)"):
            RayCluster("local")
    assert tokens[0] == tokens[1]  # Ray reads it once
    assert len(tokens[0]) == 64
    assert "RAY_AUTH_TOKEN" not in os.environ
    assert os.environ.get("RAY_AUTH_MODE") == mode


@pytest.mark.parametrize(
    ("gib", "words"), [(0.5, "0.5"), (4, "4"), (12.34, "12.3"), (9999, "9,999"), (1e6, "1,000,000")]
)
def test_memory_is_written_out(gib: float, words: str) -> None:
    assert cluster._words({"CPU": 1.0, "GPU": 0.0, "memory": gib * GIB}) == f"1 CPU and {words} GiB"


@pytest.mark.parametrize(
    ("need", "message"),
    [
        ({"gpus": 2.0}, "gpus_per_pack=2.0: expected a number from 0 to 1"),
        ({"gpus": -0.5}, "gpus_per_pack=-0.5"),
        ({"cpus": 0}, "threads=0"),
        ({"memory": 0.0}, "memory_per_pack=0.0"),
    ],
)
def test_need_that_makes_no_sense_is_refused(need: dict[str, float], message: str) -> None:
    with pytest.raises(OutlastError, match=message):
        Need(**need)  # type: ignore[arg-type]


def packs(length: float = -1.0) -> list[Pack]:
    runs = find_candidates(tiny(steps=5), ["lr=0.001,0.002,0.003"])
    return cut_packs(runs, Evaluation((length,), 16), 1)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ModuleNotFoundError("No module named 'x'"), "ModuleNotFoundError: No module named 'x'"),
        (OSError(116, "Stale file handle"), "OSError: .*Stale file handle"),
    ],
)
def test_fault_of_a_node_is_told_from_an_error_of_the_pack(
    error: Exception, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = packs()[0]
    (tmp_path / HIDDEN).mkdir()
    for job, slot, expected in (
        (PackJob(pack, tmp_path / "not shared"), Slot("cpu"), "must share it"),
        (PackJob(pack, tmp_path, {"outlast": "0"}), Slot("cpu"), "the sweep has outlast 0"),
        (PackJob(pack, tmp_path), Slot("cuda:99"), "cuda:99"),
    ):
        answer = attempt_in_task(job, slot)
        assert isinstance(answer, str)
        assert expected in answer
    with pytest.raises(OutlastError, match=r"lengths=-1\.0"):
        attempt_in_task(PackJob(pack, tmp_path), Slot("cpu"))

    def fail(*_: object) -> bool:
        raise error

    monkeypatch.setattr(ray_tasks, "run_attempt", fail)
    assert re.match(words, str(attempt_in_task(PackJob(pack, tmp_path), Slot("cpu"))))


class SmallRay(SimpleNamespace):
    """Ray with places for three packs; the first task to end says that its node is bad."""

    exceptions = SimpleNamespace(
        RayError=RayError, TaskCancelledError=OSError, RayTaskError=OSError
    )

    def __init__(self) -> None:
        super().__init__(waiting=0, most_waiting=0, selectors=[])

    def init(self, **_: object) -> None: ...

    def shutdown(self) -> None: ...

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 3.0}

    def nodes(self) -> list[dict[str, Any]]:
        pairs = (("bad", 1.0), ("good", 2.0))
        return [{"NodeID": n, "Alive": True, "Resources": {"CPU": cpus}} for n, cpus in pairs]

    def remote(self, _: object) -> SmallRay:
        return self

    def options(self, **options: Any) -> SimpleNamespace:
        def submit(_: bytes) -> int:
            self.waiting += 1
            self.most_waiting = max(self.waiting, self.most_waiting)
            self.selectors.append(options.get("label_selector"))
            return len(self.selectors)

        return SimpleNamespace(remote=submit)

    def wait(self, refs: list[int], **_: object) -> tuple[list[int], list[int]]:
        return refs[:1], refs[1:]

    def get(self, ref: int) -> bool | tuple[str, str, str]:
        self.waiting -= 1
        return ("bad", "10.0.0.9", "no torch here") if ref == 1 else True


def test_bad_node_does_not_get_the_whole_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = SmallRay()
    monkeypatch.setattr(cluster, "_import_ray", lambda: ray)
    monkeypatch.setattr(cluster, "SEEN", 0.0)
    jobs = deque(PackJob(pack, tmp_path) for pack in packs() * 5)
    kinds = [event.kind for event in RayCluster("auto").run(jobs, [])]
    assert kinds == ["died", *["ended"] * 14]
    assert ray.most_waiting == 6  # one runs and one waits for each place
    assert ray.selectors == [None] * 6 + [{"ray.io/node-id": "!in(bad)"}] * 9


def test_report_that_cannot_be_written_is_not_the_fault_of_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / HIDDEN).mkdir()
    job = PackJob(packs(length=1.0)[0], tmp_path)

    def fail(path: Path, _: object) -> None:
        raise RunFolderError(f"cannot write {path}: Stale file handle")

    monkeypatch.setattr(ray_tasks, "write_json", fail)
    assert attempt_in_task(job, Slot("cpu")) is True
    assert job.folder.claimed


def test_only_packs_that_have_begun_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = {pack.name: PackJob(pack, tmp_path) for pack in packs()}
    assert list(look(jobs)) == []  # nothing is there yet
    begun = list(jobs.values())[1]
    folder = begun.folder.begin()
    progress = PackProgress("there cpu", 0.5)
    (folder / PROGRESS).write_text(json.dumps(asdict(progress)))
    looked_at: list[PackJob] = []
    reports = ray_tasks._reports
    monkeypatch.setattr(
        ray_tasks, "_reports", lambda job: [looked_at.append(job), *reports(job)][1:]
    )
    assert [(event.job, event.value) for event in look(jobs)] == [(begun, progress)]
    assert looked_at == [begun]
