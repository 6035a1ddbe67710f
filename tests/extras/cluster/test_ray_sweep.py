"""A sweep on a Ray cluster, its node and driver killed, is the plain local sweep bit for bit."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from outlast.cli import main
from outlast.cli.exit_codes import STOPPED
from outlast.errors import OutlastError
from outlast.registry import Entry, studies
from outlast.runs.folder import CHECKPOINT, METRICS, RESULTS
from outlast.runs.records import read_metrics
from outlast.runs.status import own_state
from outlast.runs.study import read_study
from outlast.studies import Arm, Screen, Study
from outlast.studies.runner import cluster_packs, run_study
from outlast.sweep.attempts import ATTEMPTS, CLAIMED, HIDDEN
from outlast.sweep.candidates import find_candidates
from outlast.sweep.cluster import RayCluster
from outlast.sweep.engine import Outcome, PackUpdate, run_packs
from outlast.sweep.halving import Halving
from outlast.sweep.packs import cut_packs
from outlast.workflow.evaluate import Evaluation
from tiny_runs import assert_same_run, create, outlast, tiny, wait_until

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
ray = pytest.importorskip("ray")
from ray.cluster_utils import Cluster  # noqa: E402

RUNS, PACK = 200, 5
SWEEP = [
    "sweep", "--task", "parity(length=2)", "--model", "lstm @ 4", "--batch-size", "2",
    "--steps-per-block", "5", "--probe-every", "0", "--lengths", "1", "3", "--sequences", "16",
]  # fmt: skip
MANY = [
    "--steps", "10", "--checkpoint-every", "5", "--pack-seeds", str(PACK),
    "--grid", "lr=" + ",".join(f"{i}e-5" for i in range(1, RUNS + 1)),
]  # fmt: skip
#: no checkpoint is due before the end, which is many seconds after the first block
STEPS = 1500
LONG = [
    "--steps", str(STEPS), "--checkpoint-every", str(STEPS), "--pack-seeds", "1",
    "--grid", "lr=1e-3,2e-3",
]  # fmt: skip
#: a lost node is noticed in seconds
HEALTH = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 1000,
    "health_check_failure_threshold": 3,
}
MEMORY = 80 * 2**20
#: seconds until a part of the sweep is given up: other tests may hold all cores meanwhile
PATIENCE = 600.0


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[Cluster, list[Any]]]:
    """A cluster of this machine: a head that does no work, and three nodes of one CPU."""
    head = {"num_cpus": 0, "object_store_memory": MEMORY, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head | {"_system_config": HEALTH})
    try:
        yield cluster, [cluster.add_node(num_cpus=1, object_store_memory=MEMORY) for _ in range(3)]
    finally:
        cluster.shutdown()


def driver(address: str, out: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "outlast", *SWEEP, *more, "--ray", address, "--out", str(out)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, text=True, **pipes)


def recorded(out: Path) -> int:
    """How many packs are claimed."""
    return len(list((out / HIDDEN / CLAIMED).glob("*")))


def wait_while_alive(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    def reached() -> bool:
        assert process.poll() is None, process.communicate()[0]
        return condition()

    wait_until(reached, PATIENCE)


def test_sweep_survives_a_killed_node_and_a_killed_driver(
    nodes: tuple[Cluster, list[Any]], tmp_path: Path
) -> None:
    cluster, workers = nodes
    out, plain = tmp_path / "ray", tmp_path / "plain"

    first = driver(cluster.address, out, *MANY)
    wait_while_alive(lambda: recorded(out) >= 6, first)
    first.kill()
    first.communicate()
    done = {path: path.stat().st_mtime_ns for path in out.glob(f"*/{RESULTS}")}

    second = driver(cluster.address, out, *MANY)
    wait_while_alive(lambda: recorded(out) >= RUNS // PACK // 2, second)
    cluster.remove_node(workers[1], allow_graceful=False)
    output, _ = second.communicate(timeout=PATIENCE)
    assert second.returncode == 0, output

    done_again = {path: path.stat().st_mtime_ns for path in done}
    assert done_again == done  # finished work was not repeated
    assert recorded(out) == RUNS // PACK
    assert list((out / HIDDEN / ATTEMPTS).glob("*/*")) == []
    local = outlast(*SWEEP, *MANY, "--devices", "cpu,cpu", "--out", plain)
    assert local.returncode == 0, local.stderr
    names = sorted(path.parent.name for path in plain.glob(f"*/{RESULTS}"))
    assert len(names) == RUNS
    assert sorted(path.parent.name for path in out.glob(f"*/{RESULTS}")) == names
    for name in names:
        assert_same_run(plain / name, out / name)
        assert (plain / name / RESULTS).read_bytes() == (out / name / RESULTS).read_bytes()


def test_interrupted_sweep_saves_on_its_nodes_and_goes_on(
    nodes: tuple[Cluster, list[Any]], tmp_path: Path
) -> None:
    cluster, _ = nodes
    out = tmp_path / "ray"
    first = driver(cluster.address, out, *LONG)
    attempts = out / HIDDEN / ATTEMPTS

    def has_made_a_block() -> bool:  # the file itself is there before
        return any(path.stat().st_size for path in attempts.glob(f"*/*/*/{METRICS}"))

    wait_while_alive(has_made_a_block, first)
    first.send_signal(signal.SIGINT)
    output, _ = first.communicate(timeout=PATIENCE)
    assert first.returncode == STOPPED, output
    assert "; the same command goes on with" in output
    saved = [own_state(path.parent).step for path in attempts.glob(f"*/*/*/{CHECKPOINT}")]
    assert any(0 < step < STEPS for step in saved)  # the other may not have made a step yet

    second = driver(cluster.address, out, *LONG)
    output, _ = second.communicate(timeout=PATIENCE)
    assert second.returncode == 0, output
    for name in ("lr=1e-3", "lr=2e-3"):
        assert own_state(out / name).step == STEPS
        steps = [line.step for line in read_metrics(out / name)]
        assert steps == list(range(5, STEPS + 1, 5))  # no block is lost, and none was made twice


def test_pack_that_no_node_can_hold_is_refused(nodes: tuple[Cluster, list[Any]]) -> None:
    cluster, _ = nodes
    for needs, message in (
        ({"gpus": 0.5}, r"needs 1 CPU and 0.5 GPU, and no node .*Ray would wait for ever"),
        ({"threads": 9}, r"needs 9 CPU, .* the most that one has is 1 CPU"),
        ({"memory": 1e6}, r"needs 1 CPU and 1,000,000 GiB, and no node"),
    ):
        with pytest.raises(OutlastError, match=message):
            RayCluster(cluster.address, **needs)
        assert not ray.is_initialized()


def test_cluster_of_one_command_leaves_no_token_behind(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    environment = {n: v for n, v in os.environ.items() if not n.startswith("RAY_AUTH")}
    words = [*SWEEP, "--steps", "10", "--grid", "lr=1e-3,2e-3", "--ray", "local"]
    done = outlast(*words, "--out", tmp_path / "sweep", env=environment | {"HOME": str(home)})
    assert done.returncode == 0, done.stderr
    assert recorded(tmp_path / "sweep") > 0
    assert not (home / ".ray").exists()  # later commands of Ray would ask for what is in it


def test_arms_of_a_study_on_a_cluster_are_those_trained_here(
    nodes: tuple[Cluster, list[Any]], tmp_path: Path
) -> None:
    cluster, _ = nodes
    arms = [
        Arm("plain", tiny(steps=10, probe_every=0)),
        Arm("dat", tiny("dat(switch=5)", steps=10, probe_every=0)),
    ]
    bad = Arm("bad", tiny(steps=10, probe_every=0, lr=0.1), ladder=(-1.0,))
    study = Study("mini", "demo", "A small one", "Is it so?", arms, [], (1, 3), 32)
    with RayCluster(cluster.address) as machine:
        packs = cluster_packs(study, [*arms, bad], tmp_path / "ray", together=False)
        outcome = run_packs(tmp_path / "ray", packs, machine, lambda update: None)
    assert list(outcome.failed) == [packs[-1].name]
    assert "bad: lengths=-1.0: expected" in outcome.failed[packs[-1].name]
    assert not outcome.stopped
    assert cluster_packs(study, arms, tmp_path / "ray", together=False) == []
    run_study(study, arms, tmp_path / "here", "cpu", 2, False, lambda update: None)
    for arm in arms:
        assert_same_run(tmp_path / "here" / arm.name, tmp_path / "ray" / arm.name)

    create(arms[0].run, tmp_path / "begun" / "plain")
    with pytest.raises(OutlastError, match="plain was begun without a cluster"):
        cluster_packs(study, arms, tmp_path / "begun", together=False)


def test_screen_of_a_study_is_carried_out_on_a_cluster_and_its_best_is_tracked(
    nodes: tuple[Cluster, list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def screening(scale: Literal["demo"] = "demo") -> Study:
        """Two candidates, of which one is trained."""
        run = tiny(steps=10, probe_every=0, checkpoint_every=5)
        arms = [Arm("recipe", run), Arm("gru", replace(run, model="gru > mlp @ 8"))]
        screen = Screen(
            ("recipe", "gru"), Halving(at=3.0, rounds=2, keep=0.5, steps=0.5),
            seeds=(100, 101), steps=1.0, survivors=1,
        )  # fmt: skip
        return Study(
            "screening", scale, "Small", "Is it so?", arms, [], (1, 3), 32, default=("screen",),
            screen=screen,
        )  # fmt: skip

    monkeypatch.setitem(studies._entries, "screening", Entry("screening", screening, "tests"))
    out = tmp_path / "study"
    words = ["reproduce", "screening", "--ray", nodes[0].address, "--out", str(out)]
    assert main([*words, "--track", "tensorboard"]) == 0
    screen = read_study(out).screen
    assert screen is not None
    assert [len(made.scores) for made in screen.rounds] == [2, 1]
    (best,) = screen.survivors
    assert (out / best / RESULTS).exists()
    assert list((out / best / "tensorboard" / "mean").glob("events*"))


def test_node_that_lacks_a_package_fails_no_pack_and_gets_no_more_of_them(
    nodes: tuple[Cluster, list[Any]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster, _ = nodes
    (tmp_path / "site" / "outlast").mkdir(parents=True)
    (tmp_path / "site" / "outlast" / "__init__.py").write_text("import a_package_that_is_not_here")
    lacking = cluster.add_node(
        num_cpus=4, object_store_memory=MEMORY, env_vars={"PYTHONPATH": str(tmp_path / "site")}
    )
    runs = find_candidates(tiny(steps=10, probe_every=0), ["lr=0.001,0.002,0.003,0.004,0.005"])
    packs = cut_packs(runs, Evaluation((1.0,), 16), 1)
    updates: list[PackUpdate] = []
    try:
        with RayCluster(cluster.address) as machine, caplog.at_level(logging.WARNING):
            outcome = run_packs(tmp_path / "sweep", packs, machine, updates.append)
            assert set(machine.faults) == {lacking.node_id}
    finally:
        cluster.remove_node(lacking, allow_graceful=True)
    assert outcome == Outcome({}, [])
    losses = [update for update in updates if update.state == "lost"]
    assert losses
    assert max(Counter(update.pack.name for update in losses).values()) == 1
    message = f"node {lacking.node_ip_address}: ModuleNotFoundError: .*a_package_that_is_not_here"
    assert all(re.match(message, update.error) for update in losses)
    assert caplog.text.count("packs go to other nodes") == 1
