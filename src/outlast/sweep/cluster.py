"""Packs on a Ray cluster: one task a pack, on whichever node has room for it (`outlast[ray]`).

All nodes must see the folder of the sweep by the same path. A task writes there as a local worker
does (`ray_tasks.py`). Ray itself retries nothing. It would wait for ever for a pack that no node
can hold, and try without end a pack that runs out of memory. So we ask first whether a node has
room, and the engine counts how often a pack was lost.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from outlast.errors import MissingExtraError, OutlastError, require
from outlast.sweep.devices import Event, Events
from outlast.sweep.ray_address import check_address, connection_error, token_of_this_process
from outlast.sweep.ray_tasks import NodeFault, encode, forget_reports, look, make_task, read_answer
from outlast.sweep.work import PackJob, Slot

#: seconds between two looks at all packs; for packs to save when the sweep is asked to stop; until
#: what a node has written is seen here
LOOK, SAVE, SEEN = 0.5, 60.0, 90.0
#: tasks for each place of the cluster: one runs and one waits. More would be lost on a bad node,
#: which fails tasks faster than others do them
AHEAD = 2
#: the share of a GPU that a pack takes, unless it is said
GPU_SHARE = 0.25
GIB = 2**30
#: the label by which Ray tells one node from another
NODE = "ray.io/node-id"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Need:
    """What a pack takes of a node."""

    cpus: int = 1
    gpus: float = 0.0
    memory: float | None = None

    def __post_init__(self) -> None:
        require(self.cpus >= 1, "threads", self.cpus, "a whole number >= 1")
        accepted = "a number from 0 to 1: a pack is trained on one GPU at most"
        require(0 <= self.gpus <= 1, "gpus_per_pack", self.gpus, accepted)
        if self.memory is not None:
            require(self.memory > 0, "memory_per_pack", self.memory, "a number of GiB > 0")

    @property
    def resources(self) -> dict[str, float]:
        """As Ray counts them."""
        memory = {} if self.memory is None else {"memory": self.memory * GIB}
        return {"CPU": float(self.cpus), "GPU": self.gpus} | memory


class RayCluster:
    """Packs on a Ray cluster. Use it as a context: it connects, and leaves at the end.

    `address` is ``HOST:PORT``, ``auto`` for the cluster of this machine, or ``local`` for a new one
    on this machine alone. `gpus` is the share of a GPU that a pack takes; by default a quarter
    where the cluster has any.
    """

    def __init__(
        self,
        address: str,
        threads: int = 1,
        gpus: float | None = None,
        memory: float | None = None,
    ) -> None:
        self.address, self.ray = address, _import_ray()
        #: nodes that cannot take part, by the names that Ray has for them, and why
        self.faults: dict[str, str] = {}
        Need(threads, gpus or 0.0, memory)
        check_address(address)
        self._connect()
        if gpus is None:
            gpus = GPU_SHARE if self.ray.cluster_resources().get("GPU") else 0.0
        self.need = Need(threads, gpus, memory)
        self.on_gpus = gpus > 0
        try:
            self.check_room()
        except OutlastError:
            self.ray.shutdown()
            raise

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.ray.shutdown()

    def __str__(self) -> str:
        nodes = self._alive()
        total = self.ray.cluster_resources()
        gpus = f", {total['GPU']:g} GPUs" if total.get("GPU") else ""
        many = f"{len(nodes)} node{'s' * (len(nodes) != 1)}"
        return f"Ray at {self.address} ({many}, {total.get('CPU', 0):g} CPUs{gpus})"

    def _connect(self) -> None:
        options = {"log_to_driver": False, "logging_level": "ERROR"}
        local = self.address == "local"
        if local:
            options["include_dashboard"] = False
        expected = (
            ConnectionError,
            RuntimeError,
            ValueError,
            OSError,
            self.ray.exceptions.RayError,
        )
        try:
            with token_of_this_process() if local else nullcontext():
                self.ray.init(address=self.address, **options)
        except expected as error:
            raise connection_error(self.address, error) from None

    def check_room(self) -> None:
        """Raise if no node could ever hold a pack: Ray would wait for ever."""
        if self._nodes_with_room():
            return
        nodes, wanted = self._alive(), self.need.resources
        most = {
            n: max((node["Resources"].get(n, 0.0) for node in nodes), default=0.0) for n in wanted
        }
        raise OutlastError(
            f"a pack needs {_words(wanted)}, and no node of {self} has that: the most that one "
            f"has is {_words(most)}. Ray would wait for ever. Give a pack less with --threads, "
            f"--gpus-per-pack or --memory-per-pack"
        )

    def _alive(self) -> list[dict[str, Any]]:
        return [node for node in self.ray.nodes() if node["Alive"]]

    def _packs_on(self, node: dict[str, Any]) -> int:
        """How many packs a node could hold if it had nothing else to do."""
        resources, wanted = node["Resources"], self.need.resources.items()
        return min(int(resources.get(n, 0.0) / value + 1e-9) for n, value in wanted if value)

    def _nodes_with_room(self) -> set[str]:
        """The nodes that could hold a pack if they had nothing else to do."""
        return {node["NodeID"] for node in self._alive() if self._packs_on(node)}

    def _most_submitted(self) -> int:
        """How many tasks are in the hands of Ray at most, running and waiting."""
        return max(1, AHEAD * sum(map(self._packs_on, self._alive())))

    def run(self, jobs: deque[PackJob], asked: Sequence[int]) -> Events[PackJob]:
        """Do jobs, also those that are added to the queue meanwhile, and tell what happens."""
        device = "cuda" if self.need.gpus else "cpu"
        slot = Slot(device, self.need.cpus, self.need.gpus or 1.0)
        task = self.ray.remote(make_task())
        running: dict[Any, PackJob] = {}
        last_look = 0.0
        try:
            while (jobs and not asked) or running:
                if asked:
                    yield from self._stop(running)
                    return
                if jobs:
                    count = min(len(jobs), self._most_submitted() - len(running))
                    running |= self._submit(task, [jobs.popleft() for _ in range(count)], slot)
                ended, _ = self.ray.wait(list(running), num_returns=1, timeout=LOOK)
                yield from [self._outcome(ref, running.pop(ref)) for ref in ended]
                if time.monotonic() - last_look > LOOK:
                    last_look = time.monotonic()
                    yield from look({job.pack.name: job for job in running.values()})
        finally:
            for ref in running:
                self.ray.cancel(ref)

    def _submit(self, task: Any, jobs: Sequence[PackJob], slot: Slot) -> dict[Any, PackJob]:
        """A task for each job, on nodes without a known fault; on all, if no other has room."""
        avoided = {}
        if self.faults and self._nodes_with_room() - self.faults.keys():
            avoided = {"label_selector": {NODE: f"!in({','.join(self.faults)})"}}
        task = task.options(
            num_cpus=self.need.cpus,
            num_gpus=self.need.gpus,
            memory=None if self.need.memory is None else int(self.need.memory * GIB),
            max_retries=0,
            **avoided,
        )
        submitted = {}
        for job in jobs:
            forget_reports(job)
            submitted[task.remote(encode(job, slot))] = job
        return submitted

    def _stop(self, running: dict[Any, PackJob]) -> Iterator[Event[PackJob]]:
        """Ask all packs to save and leave; those that do not in time are left behind."""
        for ref in running:
            self.ray.cancel(ref)  # an interrupt: training saves and leaves
        deadline = time.monotonic() + SAVE
        while running and time.monotonic() < deadline:
            ended, _ = self.ray.wait(list(running), num_returns=1, timeout=LOOK)
            yield from [self._outcome(ref, running.pop(ref)) for ref in ended]

    def _outcome(self, ref: Any, job: PackJob) -> Event[PackJob]:
        """What became of a task: an error of its pack, or the loss of its worker or node."""
        errors = self.ray.exceptions
        try:
            answer = read_answer(self.ray.get(ref))
        except errors.TaskCancelledError:  # first: one that was interrupted early is both
            return Event(job, "ended")
        except errors.RayTaskError as error:
            if isinstance(error.cause, KeyboardInterrupt | errors.TaskCancelledError):
                return Event(job, "ended")
            cause = error.cause if isinstance(error.cause, Exception) else error
            return Event(job, "failed", cause)
        except errors.RayError as error:
            first = (str(error).strip().splitlines() or [""])[0]
            return Event(job, "died", OutlastError(f"{type(error).__name__}: {first}"))
        if isinstance(answer, NodeFault):
            return Event(job, "died", self._note(answer))
        if answer:
            _wait_for_claim(job)
        return Event(job, "ended")

    def _note(self, fault: NodeFault) -> OutlastError:
        """Remember that a node cannot take part, and say so once."""
        error = OutlastError(f"node {fault.address}: {fault.reason}")
        if fault.node not in self.faults:
            self.faults[fault.node] = str(error)
            log.warning("%s; packs go to other nodes, if any has room", error)
        return error


def _wait_for_claim(job: PackJob) -> None:
    """Wait until a claim is seen here that was made elsewhere: shared disks may be slow."""
    deadline = time.monotonic() + SEEN
    while not job.folder.claimed and time.monotonic() < deadline:
        time.sleep(LOOK)


def _words(resources: dict[str, float]) -> str:
    """``1 CPU, 0.25 GPU and 4 GiB``."""
    words = [f"{value:g} {name}" for name, value in resources.items() if name != "memory" and value]
    if "memory" in resources:
        memory = resources["memory"] / GIB
        words.append(f"{memory:,.0f} GiB" if memory >= 100 else f"{memory:.3g} GiB")
    return " and ".join(words) or "nothing"


def _import_ray() -> Any:
    # Ray reads these when it is imported
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise MissingExtraError("--ray", "ray", "ray") from None
    return ray
