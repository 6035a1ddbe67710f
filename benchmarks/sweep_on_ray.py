"""What Ray costs a sweep: the same packs on worker processes of this machine, and as tasks of Ray.

    python benchmarks/sweep_on_ray.py --runs 64 --steps 400 --repeats 3

Both sides train the same packs, one at a time on each core, and the results must be the same bit
for bit. The start of the cluster is told apart. In the first repeat both sides start their workers.
After that Ray has them at hand, and plain running starts them anew. So the overhead is told twice:
of the first repeat, and of the medians.

    python benchmarks/sweep_on_ray.py --kill

What the loss of a node costs: a cluster of three nodes of one CPU on this machine trains the packs
twice, after a start that is not counted. The second time one node is killed half-way. Ray's health
checks are those by default.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from outlast.runs.folder import METRICS, RESULTS
from outlast.runs.spec import RunSpec, Settings
from outlast.sweep.candidates import find_candidates
from outlast.sweep.cluster import RayCluster
from outlast.sweep.devices import LocalDevices
from outlast.sweep.engine import Machine, PackUpdate, Watch, run_packs
from outlast.sweep.packs import Pack, cut_packs
from outlast.workflow.evaluate import Evaluation

#: bytes of a node's object store, which packs do not use
MEMORY = 80 * 2**20


def main() -> None:
    """Cut the packs, and time what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=64)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--pack-seeds", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kill", action="store_true")
    options = parser.parse_args()
    settings = Settings(steps=options.steps, batch_size=16, probe_every=0)
    run = RunSpec("parity(length=8)", "lstm > mlp @ 16", (), (0,), settings)
    rates = ",".join(f"{i}e-5" for i in range(1, options.runs + 1))
    packs = cut_packs(
        find_candidates(run, [f"lr={rates}"]), Evaluation((1.0, 3.0), 256), options.pack_seeds
    )
    torch.set_num_threads(1)
    if options.kill:
        time_kill(packs)
    else:
        time_sides(packs, options.repeats)


def time_sides(packs: Sequence[Pack], repeats: int) -> None:
    """Plain running and Ray in turn: others may use the machine, too."""
    begun = time.monotonic()
    with TemporaryDirectory() as folder, RayCluster("local") as cluster:
        print(f"Ray is up after {time.monotonic() - begun:.1f} s: {cluster}")
        times: dict[str, list[float]] = {"plain": [], "ray": []}
        machines: dict[str, Machine] = {
            "plain": LocalDevices(["cpu"] * int(cluster.ray.cluster_resources()["CPU"])),
            "ray": cluster,
        }
        for repeat in range(repeats):
            for name, machine in machines.items():
                seconds = timed(Path(folder) / f"{name}{repeat}", packs, machine)
                times[name].append(seconds)
                print(f"{name}: {seconds:.1f} s")
        compare(Path(folder) / "plain0", Path(folder) / "ray0", packs)
    show_overhead("first repeat", times["plain"][0], times["ray"][0])
    show_overhead("medians", *map(statistics.median, times.values()))


def time_kill(packs: Sequence[Pack]) -> None:
    """The same packs on three nodes, without and with the loss of one."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": MEMORY}
    nodes = Cluster(initialize_head=True, head_node_args=head)
    workers = [nodes.add_node(num_cpus=1, object_store_memory=MEMORY) for _ in range(3)]
    done: set[str] = set()
    lost: list[str] = []

    def watch(update: PackUpdate) -> None:
        if update.state == "lost":
            lost.append(update.error)
        if update.state == "done":
            done.add(update.pack.name)
        if len(done) >= len(packs) // 2 and workers:
            nodes.remove_node(workers.pop(), allow_graceful=False)
            workers.clear()

    with TemporaryDirectory() as folder, RayCluster(nodes.address) as cluster:
        timed(Path(folder) / "warm", packs, cluster)  # starts the workers
        whole = timed(Path(folder) / "whole", packs, cluster)
        print(f"three nodes: {whole:.1f} s")
        killed = timed(Path(folder) / "killed", packs, cluster, watch)
        print(f"one of them killed half-way: {killed:.1f} s; packs lost: {len(lost)}")
        compare(Path(folder) / "whole", Path(folder) / "killed", packs)
    nodes.shutdown()


def show_overhead(of: str, plain: float, ray: float) -> None:
    """Print by how much Ray is slower."""
    print(f"overhead, {of}: {100 * (ray / plain - 1):.0f} %")


def timed(
    out: Path, packs: Sequence[Pack], machine: Machine, watch: Watch = lambda update: None
) -> float:
    """Seconds that all packs take."""
    begun = time.monotonic()
    outcome = run_packs(out, packs, machine, watch)
    assert not outcome.failed, outcome.failed
    return time.monotonic() - begun


def compare(plain: Path, ray: Path, packs: Sequence[Pack]) -> None:
    """Raise if a run is not the same on both sides."""
    names = [name for pack in packs for name in pack.names]
    for name in names:
        for file in (METRICS, RESULTS):
            assert (plain / name / file).read_bytes() == (ray / name / file).read_bytes(), name
    print(f"{len(names)} runs are the same on both sides")


if __name__ == "__main__":
    main()
