"""Packs: runs that are trained as one, on one device, and recorded together or not at all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from outlast.errors import require
from outlast.runs.spec import RunSpec
from outlast.train.seeds import shared_by_pack
from outlast.workflow.create import canonical
from outlast.workflow.evaluate import Evaluation

#: the most seeds of a pack on a GPU and on a CPU, unless a sweep says otherwise: it takes many to
#: fill a GPU, and on a CPU small packs share the cores better
GPU_SEEDS, CPU_SEEDS = 64, 8
#: the digits of a pack's hash in its name
DIGITS = 12


@dataclass(frozen=True)
class Pack:
    """Runs of one model, task and batch by the names of their folders; how each is tested."""

    name: str
    runs: tuple[tuple[str, RunSpec], ...]
    evaluations: tuple[Evaluation, ...]

    @property
    def seeds(self) -> int:
        return sum(len(run.seeds) for _, run in self.runs)

    @property
    def seed_steps(self) -> int:
        return sum(len(run.seeds) * run.settings.steps for _, run in self.runs)

    @property
    def title(self) -> str:
        """What a person reads: ``lr=0.001 and 3 more``."""
        more = len(self.runs) - 1
        return f"{self.runs[0][0]} and {more} more" if more else self.runs[0][0]

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.runs]


def make_pack(runs: Mapping[str, RunSpec], evaluations: Mapping[str, Evaluation]) -> Pack:
    """A pack whose name is a hash of its runs: other runs are another pack."""
    identity = [[name, canonical(run).identity] for name, run in runs.items()]
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:DIGITS]
    return Pack(digest, tuple(runs.items()), tuple(evaluations[name] for name in runs))


def cut_packs(runs: Mapping[str, RunSpec], evaluation: Evaluation, most_seeds: int) -> list[Pack]:
    """Runs that can be trained as one go together, in their order, up to so many seeds.

    The cut depends on the runs and on `most_seeds` alone, not on the devices. So a sweep gives the
    same bits on any number of devices of one kind. A run with more seeds is a pack by itself.
    """
    require(most_seeds >= 1, "pack_seeds", most_seeds, "a whole number >= 1")
    kinds: dict[object, list[dict[str, RunSpec]]] = {}
    seeds: dict[object, int] = {}
    for name, run in runs.items():
        kind = shared_by_pack(canonical(run))
        if kind not in kinds or seeds[kind] + len(run.seeds) > most_seeds:
            kinds.setdefault(kind, []).append({})
            seeds[kind] = 0
        kinds[kind][-1][name] = run
        seeds[kind] += len(run.seeds)
    packs = [pack for packs_of_kind in kinds.values() for pack in packs_of_kind]
    return [make_pack(pack, dict.fromkeys(pack, evaluation)) for pack in packs]
