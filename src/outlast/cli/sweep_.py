"""`outlast sweep`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from outlast.runs.spec import LADDER, RunSpec, Settings

if TYPE_CHECKING:
    from outlast.sweep.cluster import RayCluster
    from outlast.sweep.devices import LocalDevices


def main(
    out: Path,
    task: str = "",
    model: str = "",
    preset: str | None = None,
    method: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    seeds: str = "0",
    grid: Annotated[tuple[tuple[str, ...], ...], tyro.conf.UseAppendAction] = (),
    random: int | None = None,
    search_seed: int = 0,
    halving: str | None = None,
    most_runs: int = 10_000,
    label: str = "",
    devices: str = "auto",
    per_device: int | None = None,
    ray: str | None = None,
    gpus_per_pack: float | None = None,
    memory_per_pack: float | None = None,
    threads: int = 1,
    pack_seeds: int | None = None,
    lengths: tuple[float, ...] = LADDER,
    sequences: int | None = None,
    precision_of_test: Literal["fp32", "tf32", "bf16"] = "fp32",
    dry: bool = False,
    track: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    settings: Annotated[Settings, tyro.conf.arg(name="")] = Settings(),
) -> int:
    """Train and test many runs on all devices of a machine, or on a Ray cluster.

    Runs of one model, task and batch are trained together, in packs. Given again, the same command
    goes on where it was stopped or killed: what is recorded is not trained again. A pack that fails
    does not stop the others; the exit code is then 1.

    Example: outlast sweep --task parity --model "lstm @ 16" --grid lr=0.001,0.002 --out s --dry

    Args:
        out: The folder to make, with a run folder for each run.
        task: What to learn; or --grid "task=parity,copy".
        model: The model line; or --grid "model=lstm > mlp @ 16,mlp @ 16".
        preset: Task, model, method and settings in one word, as for train.
        method: What changes while training, as for train.
        seeds: Seeds of every run, such as 0-4; or --grid seeds=0-3,4-7 for several runs.
        grid: Axes of the sweep: tasks, models, methods, seeds or any setting, each with its values,
            lr=0.001,0.002; with --random also a range, "lr=log(1e-4, 1e-2)" or "lr=uniform(0, 1)".
        random: Draw so many different runs from the axes; by default every combination is a run.
        search_seed: Decides what --random draws.
        halving: Search by successive halving, "at=3, rounds=3, keep=0.5, seeds=1, steps=0.25": few
            seeds and steps first, and the best share by joint accuracy at that length goes on.
        most_runs: More runs than this are refused.
        label: What the names of all runs in plots begin with.
        devices: all, or devices such as cuda:0,cuda:1 or cpu,cpu: one worker process each.
        per_device: Packs at the same time on each device; by default four on a GPU, one on a CPU.
        ray: Train on a Ray cluster: HOST:PORT, auto for one that runs here, local for a new one.
        gpus_per_pack: The share of a GPU that a pack takes on the cluster, such as 0.25.
        memory_per_pack: GiB of a node's memory that a pack takes on the cluster.
        threads: Threads of the CPU that each pack has.
        pack_seeds: The most seeds of a pack; by default 64 on GPUs and 8 on CPUs.
        lengths: Multiples of the training length that runs are tested at.
        sequences: Test sequences at each length; by default that of the task.
        precision_of_test: Of matmuls in the test.
        dry: Only say which runs and packs there would be.
        track: A tracker that gets every run once it is recorded, such as tensorboard or
            "wandb(mode=offline)"; may be given several times.
        settings: The numbers of training.
    """
    from outlast.arguments import check_whole
    from outlast.cli.listener import tracked
    from outlast.cli.sweeping import Plan, carry_out, show_plan
    from outlast.errors import bad_value, incompatible
    from outlast.evaluation.ladder import as_ladder
    from outlast.runs.spec import read_methods, read_seeds
    from outlast.sweep.candidates import find_candidates
    from outlast.sweep.halving import Halving, check_halving
    from outlast.sweep.record import SweepRecord, check_folder, shared_by_all, usual_pack_seeds
    from outlast.workflow.evaluate import Evaluation

    if not all(grid):
        raise bad_value("grid", "", "axes and their values, such as lr=0.001,0.002")
    if ray is not None and devices != "auto":
        raise incompatible("--ray", f"--devices {devices}", "the cluster has devices of its own")
    axes = tuple(axis for several in grid for axis in several)
    run = RunSpec(task, model, read_methods(method), read_seeds(seeds), settings, label)
    candidates = find_candidates(run, axes, random, search_seed, most_runs)
    rule = None if halving is None else Halving.read(halving)
    if rule is not None:
        check_halving(candidates, rule)
    as_ladder("lengths", lengths)
    if sequences is not None:
        check_whole("sequences", sequences, 1)
    if pack_seeds is not None:
        check_whole("pack_seeds", pack_seeds, 1)
    evaluation = Evaluation(lengths, sequences, precision_of_test)
    tracking = tracked(track)
    with _machine(ray, devices, per_device, threads, gpus_per_pack, memory_per_pack) as machine:
        if pack_seeds is None:
            pack_seeds = usual_pack_seeds(out, machine.on_gpus)
        record = SweepRecord(
            run=shared_by_all(run),
            axes=axes,
            random=random,
            search_seed=search_seed,
            halving=None if rule is None else str(rule),
            pack_seeds=pack_seeds,
            threads=threads,
            lengths=tuple(map(float, lengths)),
            sequences=sequences,
            precision=precision_of_test,
        )
        plan = Plan(out, candidates, evaluation, record, rule)
        if dry:
            check_folder(out, record)
            plan.check_free()
            show_plan(plan, machine)
            return 0
        return carry_out(plan, machine, tracking)


@contextmanager
def _machine(
    ray: str | None,
    devices: str,
    per_device: int | None,
    threads: int,
    gpus_per_pack: float | None,
    memory_per_pack: float | None,
) -> Iterator[LocalDevices | RayCluster]:
    """Where the packs are trained."""
    from outlast.arguments import check_whole
    from outlast.cli.common import say, wrapped
    from outlast.errors import incompatible
    from outlast.runs.spec import MOST_PROCESSES
    from outlast.sweep.cluster import RayCluster
    from outlast.sweep.devices import LocalDevices, find_devices

    if ray is not None:
        if per_device is not None:
            raise incompatible("--ray", "--per-device", "a pack takes --gpus-per-pack of a GPU")
        with RayCluster(ray, threads, gpus_per_pack, memory_per_pack) as cluster:
            yield cluster
        return
    for name, value in (("gpus", gpus_per_pack), ("memory", memory_per_pack)):
        if value is not None:
            raise incompatible(f"--{name}-per-pack", "no --ray", "it is for a Ray cluster")
    check_whole("threads", threads, 1, MOST_PROCESSES)
    machine = LocalDevices(find_devices(devices, threads), threads, per_device)
    if machine.surplus is not None:
        say(wrapped(machine.surplus))
    yield machine
