"""What a run is: its specs, its seeds and the numbers of its training, as one record."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from typing import Any, Literal, get_type_hints

from outlast.arguments import coerce
from outlast.errors import SpecError, bad_value
from outlast.registry import suggest
from outlast.train.stopping import NEVER, read_stop


@dataclass(frozen=True)
class Settings:
    """The numbers of training. Methods change what is trained when; these stay put."""

    #: optimiser steps
    steps: int = 6000
    #: sequences in a batch
    batch: int = 128
    #: the highest learning rate; at 1e-3 the first phase of DAT converges on few seeds
    lr: float = 2e-3
    #: how the learning rate moves after the warm-up
    schedule: Literal["constant-cosine", "cosine", "constant"] = "constant-cosine"
    #: steps over which the learning rate rises to its highest
    warmup: int = 200
    #: share of training after which constant-cosine begins to fall
    decay_from: float = 0.7
    #: largest norm of a seed's gradient
    clip: float = 1.0
    #: decay of matrices (vectors are not decayed)
    weight_decay: float = 0.01
    #: of products; auto is fp32 on the CPU and tf32 on a GPU
    precision: Literal["auto", "fp32", "tf32", "bf16"] = "auto"
    #: steps between two looks of the host: triggers, metrics, data
    block: int = 50
    #: steps between two probes of accuracy at 1 x and 3 x the training length (0: none)
    probe: int = 250
    #: steps between two checkpoints
    checkpoint: int = 500
    #: when a seed is done before its last step: never, or success(accuracy=0.999, at=1, probes=2),
    #: that share of sequences right at that multiple of the length, in so many probes in a row; a
    #: schedule is then left where it is, unfinished
    stop: str = NEVER
    #: whether a block's sequences are sorted into its steps by length, so that less of a step is
    #: padding; each is seen once either way, but beside others of its length
    by_length: bool = False
    #: seeds stepped at once, the others in waves (0: as many as fit in memory)
    together: int = 0
    #: on the CPU, processes that step the seeds side by side (0: as many as torch has threads
    #: and the process cores, where that pays; 1: all seeds in this process)
    processes: int = 0

    def __post_init__(self) -> None:
        for name, kind in _types().items():
            coerce(getattr(self, name), kind, name)
        for name in ("steps", "batch", "block", "checkpoint"):
            if getattr(self, name) < 1:
                raise bad_value(name, getattr(self, name), "a whole number >= 1")
        for name in ("warmup", "probe", "weight_decay", "together", "processes"):
            if not 0 <= getattr(self, name) < math.inf:
                raise bad_value(name, getattr(self, name), "a number >= 0")
        for name in ("lr", "clip"):
            if not 0 < getattr(self, name) < math.inf:
                raise bad_value(name, getattr(self, name), "a number > 0")
        if not 0 <= self.decay_from <= 1:
            raise bad_value("decay_from", self.decay_from, "a share of training from 0 to 1")
        for name in ("probe", "checkpoint"):
            if getattr(self, name) % self.block:
                raise bad_value(name, getattr(self, name), f"a multiple of block={self.block}")
        if read_stop(self.stop) is not None and not self.probe:
            raise bad_value("stop", self.stop, "never where nothing is probed (probe=0)")

    def rate(self, step: int) -> float:
        """The learning rate of a step, before any method has its say."""
        warm = min(1.0, (step + 1) / max(1, self.warmup))
        start = {"constant": 1.0, "cosine": 0.0}.get(self.schedule, self.decay_from)
        done = step / self.steps
        falling = 0.0 if done <= start else (done - start) / (1 - start)
        return self.lr * warm * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * falling)))

    @classmethod
    def read(cls, values: dict[str, Any]) -> Settings:
        """From a JSON object, with unknown names and wrong types as clear errors."""
        kinds = _types()
        for name in values:
            if name not in kinds:
                raise SpecError(f"settings have no {name!r}{suggest(name, kinds)}")
        return cls(**{k: coerce(v, kinds[k], f"settings: {k}") for k, v in values.items()})


@cache
def _types() -> dict[str, Any]:
    return get_type_hints(Settings)


@dataclass(frozen=True)
class RunSpec:
    """Everything that decides a run: equal records give equal runs."""

    task: str
    model: str
    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    settings: Settings = field(default_factory=Settings)
    label: str = ""

    def __post_init__(self) -> None:
        if not self.seeds:
            raise bad_value("seeds", "", "at least one, such as 0-4")
        if len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            raise bad_value("seeds", list(self.seeds), "different whole numbers >= 0")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def read(cls, values: dict[str, Any]) -> RunSpec:
        """From `run.json`, which holds more than this."""
        known = {f.name for f in fields(cls)}
        missing = known - values.keys()
        if missing:
            raise SpecError(f"run.json has no {', '.join(sorted(missing))}")
        kinds = {
            "task": str,
            "model": str,
            "methods": tuple[str, ...],
            "seeds": tuple[int, ...],
            "label": str,
        }
        for name in ("methods", "seeds"):
            if not isinstance(values[name], (list, tuple)):
                raise bad_value(f"run.json: {name}", values[name], "a list")
        if not isinstance(values["settings"], dict):
            raise bad_value("run.json: settings", values["settings"], "an object")
        read = {n: coerce(values[n], kind, f"run.json: {n}") for n, kind in kinds.items()}
        return cls(**read, settings=Settings.read(values["settings"]))
