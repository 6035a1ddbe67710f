"""What `outlast reproduce --ray` does: the arms of a study as packs of a sweep on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from outlast.cli.common import say
from outlast.cli.pack_table import PackDisplay
from outlast.cli.sending import and_send, sending
from outlast.cli.sweeping import conclude
from outlast.errors import incompatible
from outlast.runs.folder import locked
from outlast.studies import Arm, Study
from outlast.studies.runner import cluster_packs
from outlast.sweep.cluster import RayCluster
from outlast.sweep.engine import Machine, run_packs

if TYPE_CHECKING:
    from outlast.trackers.tracking import Tracking


def check_place(
    device: str,
    devices: str | None,
    workers: int | None,
    ray: str | None,
    gpus_per_pack: float | None,
    overwrite: bool,
) -> None:
    """Flags that do not go together are errors."""
    if devices is not None and device != "auto":
        raise incompatible(f"--device {device}", f"--devices {devices}", "give one of them")
    if ray is None and gpus_per_pack is not None:
        raise incompatible("--gpus-per-pack", "no --ray", "it is for a Ray cluster")
    if ray is None:
        return
    if devices is not None or device != "auto":
        raise incompatible("--ray", "--device or --devices", "the cluster has its own")
    if workers is not None:
        raise incompatible("--ray", "--workers", "a pack takes --gpus-per-pack of a GPU")
    if overwrite:
        raise incompatible("--ray", "--overwrite", "delete the folder of the study to start anew")


def run_on_ray(
    study: Study,
    choose: Callable[[Machine], tuple[list[Arm] | None, int]],
    out: Path,
    together: bool | None,
    address: str,
    gpus_per_pack: float | None,
    tracking: Sequence[Tracking] = (),
) -> int:
    """Train and test arms on a cluster; returns the exit code.

    `choose` says which arms. A screen is carried out on the cluster, too: its rounds are packs.
    """
    with RayCluster(address, gpus=gpus_per_pack) as cluster, sending(tracking) as senders:
        arms, lost = choose(cluster)
        if arms is None:
            return lost
        with locked(out):
            together = cluster.on_gpus if together is None else together
            packs = cluster_packs(study, arms, out, together)
            group, open_arms = out.resolve().name, {name for pack in packs for name in pack.names}
            for sender in senders:  # what a killed driver had not sent
                for arm in arms:
                    if arm.name not in open_arms:
                        sender.send([out / arm.name], group)
            say(f"{len(packs)} pack{'s' * (len(packs) != 1)} with work to do on {cluster}")
            with PackDisplay() as display:
                watch = and_send(display.begin(packs), out, group, senders)
                outcome = run_packs(out, packs, cluster, watch)
            for sender in senders if outcome.stopped else ():
                sender.leave_rest()  # it was asked to leave
        return conclude(outcome) or lost
