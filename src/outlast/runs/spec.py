"""What decides a run: its task, model, methods and seeds, and the settings of its training."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from typing import Any, Literal, get_type_hints

from outlast.arguments import build_from, coerce
from outlast.errors import SpecError, bad_value, conflict, incompatible
from outlast.registry import suggest
from outlast.runs.folder import is_text
from outlast.specs import Spec, parse

#: multiples of the training length at which a run is tested, and fresh sequences for each
LADDER = (1.0, 1.2, 2.0, 3.0, 4.0, 10.0)
SEQUENCES = 2048
#: the same for text, where many bytes of a sequence count
TEXT_SEQUENCES = 256
#: multiples of the training length at which a run is probed while it trains, and sequences for each
PROBED = (1, 3)
PROBE_SEQUENCES = 128
#: names that settings had before, in run folders of format 1 and in recorded commands
RENAMED = {
    "batch": "batch_size",
    "clip": "max_grad_norm",
    "block": "steps_per_block",
    "probe": "probe_every",
    "checkpoint": "checkpoint_every",
    "together": "seeds_at_once",
}
NEVER = "never"
#: how a run without any method is written
NONE = "none"
#: the steps of a warm-up whose length is not given, if training is long enough
LONGEST_WARMUP = 200
#: the most seeds of a run; far more than can be trained
MOST_SEEDS = 100_000
#: the most processes of a run
MOST_PROCESSES = 1024
#: settings that may change when a run is resumed: they say when it is saved and how it is stepped
CHANGEABLE = ("checkpoint_every", "keep_checkpoints", "seeds_at_once", "processes")


@dataclass(frozen=True)
class Settings:
    """The numbers of training. Methods change what is trained when; these stay as they are."""

    #: optimiser steps
    steps: int = 6000
    #: sequences in a batch
    batch_size: int = 128
    #: the highest learning rate; at 1e-3 the first phase of DAT converges on few seeds
    lr: float = 2e-3
    #: how the learning rate moves after the warm-up
    schedule: Literal["constant-cosine", "cosine", "constant"] = "constant-cosine"
    #: steps over which the learning rate rises to its highest (none: 200, but at most a tenth of
    #: the steps)
    warmup: int | None = None
    #: share of training after which constant-cosine begins to fall
    decay_from: float = 0.7
    #: largest norm of a seed's gradient
    max_grad_norm: float = 1.0
    #: decay of matrices (vectors are not decayed)
    weight_decay: float = 0.01
    #: of matmuls; auto is fp32 on the CPU and tf32 on a GPU
    precision: Literal["auto", "fp32", "tf32", "bf16"] = "auto"
    #: steps between two looks of the host: triggers, metrics, data
    steps_per_block: int = 50
    #: steps between two probes of accuracy at 1 x and 3 x the training length (0: none)
    probe_every: int = 250
    #: steps between two checkpoints
    checkpoint_every: int = 500
    #: weights kept along the way: never, or every=500 for those of each 500 steps, of the start and
    #: of each seed's switch
    keep_checkpoints: str = NEVER
    #: when a seed is done before its last step: never, or success(accuracy=0.999, at=1, probes=2),
    #: that share of sequences right at that multiple of the length, in so many probes in a row; a
    #: schedule is then left where it is, unfinished
    stop: str = NEVER
    #: whether a block's sequences are sorted into its steps by length, so that less of a step is
    #: padding; each is seen once either way, but beside others of its length
    by_length: bool = False
    #: seeds stepped at once, the others in waves (0: as many as fit in memory)
    seeds_at_once: int = 0
    #: on the CPU, processes that step the seeds side by side (0: one for each usable core, where
    #: that pays; 1: all seeds in this process)
    processes: int = 0

    def __post_init__(self) -> None:
        for name, kind in _types().items():
            coerce(getattr(self, name), kind, name)
        for name in ("steps", "batch_size", "steps_per_block", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise bad_value(name, getattr(self, name), "a whole number >= 1")
        for name in ("probe_every", "weight_decay", "seeds_at_once", "processes"):
            if not 0 <= getattr(self, name) < math.inf:
                raise bad_value(name, getattr(self, name), "a number >= 0")
        if self.warmup is not None and self.warmup < 0:
            raise bad_value("warmup", self.warmup, "a number >= 0, or none")
        if self.processes > MOST_PROCESSES:
            raise bad_value("processes", self.processes, f"a number from 0 to {MOST_PROCESSES:,}")
        for name in ("lr", "max_grad_norm"):
            if not 0 < getattr(self, name) < math.inf:
                raise bad_value(name, getattr(self, name), "a number > 0")
        if not 0 <= self.decay_from <= 1:
            raise bad_value("decay_from", self.decay_from, "a share of training from 0 to 1")
        block, kept = self.steps_per_block, self.keep_every or 0
        fitting = math.gcd(block, self.probe_every, self.checkpoint_every, kept)
        accepted = (
            f"a multiple of steps_per_block={block}, "
            f"or give --steps-per-block {fitting} (in Python steps_per_block={fitting})"
        )
        for name in ("probe_every", "checkpoint_every"):
            if getattr(self, name) % block:
                raise bad_value(name, getattr(self, name), accepted)
        if kept % block:
            raise bad_value("keep_checkpoints", self.keep_checkpoints, f"every= {accepted}")
        if self.stop_rule is not None and not self.probe_every:
            raise incompatible(f"stop={self.stop}", "probe_every=0", "stopping needs probes")

    @property
    def warmup_steps(self) -> int:
        """The steps of the warm-up: as given, or a tenth of all steps and no more than 200."""
        return min(LONGEST_WARMUP, self.steps // 10) if self.warmup is None else self.warmup

    @property
    def keep_every(self) -> int | None:
        """The steps from one checkpoint that is kept to the next; None if none are."""
        return read_keep(self.keep_checkpoints)

    @property
    def stop_rule(self) -> Success | None:
        """What `stop` says; None is never."""
        return read_stop(self.stop)

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Settings:
        """Settings from plain values; unknown names and wrong types are clear errors.

        A name that a setting had before is taken as the setting's.
        """
        kinds = _types()
        current: dict[str, Any] = {}
        for old, value in values.items():
            name = _current(old)
            if name not in kinds:
                raise SpecError(f"settings have no {name!r}{suggest(name, kinds)}")
            if name in current:
                raise conflict(name, *(f"{n}={values[n]}" for n in values if _current(n) == name))
            current[name] = coerce(value, kinds[name], f"settings: {name}")
        return cls(**current)


def _current(name: str) -> str:
    """Today's name of a setting."""
    return RENAMED.get(name, name)


@cache
def _types() -> dict[str, Any]:
    return get_type_hints(Settings)


@dataclass(frozen=True)
class Success:
    """When a seed is done before its last step: the setting `stop`, written as a spec.

    ::

        stop=never                                    every seed is trained to its last step
        stop=success                                  until it succeeds, with the defaults below
        stop=success(accuracy=0.95, at=3, probes=4)

    A seed succeeds when the share of sequences that it gets entirely right is at least `accuracy`
    in `probes` probes in a row, at `at` times the training length. Each probe has fresh sequences.
    From then on its weights rest. A run ends when no seed is left to train.

    - A probe has 128 sequences, so a level above 127/128 asks for all of them.
    - A probe measures what a test would: the average of the weights where one is kept, gates as
      they are. A seed may succeed before a method is through with it.
    - A learning rate that falls by a schedule has not fallen yet. A seed that stops early is not
      the seed that a shorter run of the same schedule would give.
    - With `at=3` the end is chosen by accuracy beyond the training length. That is a fair question
      of how soon, and not a fair measure of how well.
    """

    accuracy: float = 0.999
    at: int = 1
    probes: int = 2

    def __post_init__(self) -> None:
        if not 0 < self.accuracy <= 1:
            accepted = "a share of sequences > 0 and up to 1"
            raise bad_value("stop: accuracy", self.accuracy, accepted)
        if self.at not in PROBED:
            multiples = " or ".join(map(str, PROBED))
            raise bad_value("stop: at", self.at, f"a multiple that is probed, {multiples}")
        if self.probes < 1:
            raise bad_value("stop: probes", self.probes, "a whole number >= 1")

    def __str__(self) -> str:
        return str(Spec("success", (), tuple(asdict(self).items())))


def read_stop(text: str) -> Success | None:
    """What stands behind ``stop=``; None is never."""
    try:
        spec = parse(text)
    except SpecError as error:
        raise SpecError(f"stop={text}: expected never or success; {error}") from None
    if spec == Spec(NEVER):
        return None
    if spec.name != "success":
        hint = suggest(spec.name, (NEVER, "success"))
        raise SpecError(f"stop={text}: expected never or success{hint}")
    rule: Success = build_from(spec, Success, get_type_hints(Success), "stop")
    return rule


def read_keep(text: str) -> int | None:
    """What stands behind ``keep_checkpoints=``: the steps of ``every=500``; None is never."""
    if text.strip() == NEVER:
        return None
    match = re.fullmatch(r"\s*every\s*=\s*([0-9]{1,12})\s*", text)
    if match is None or int(match[1]) < 1:
        raise bad_value("keep_checkpoints", text, "never, or every= a number of steps: every=500")
    return int(match[1])


@dataclass(frozen=True)
class Start:
    """The weights that a run begins with, where they are not drawn: the last ones of another run.

    `seeds` are those that the run was created with, and `checksums` those of their weights.
    """

    #: the folder of the other run, as it was named
    run: str
    #: the step that it ended at
    step: int
    seeds: tuple[int, ...]
    checksums: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.seeds) != len(self.checksums):
            raise bad_value("start_from: checksums", len(self.checksums), "one for each seed")

    def __str__(self) -> str:
        return f"step {self.step:,} of {self.run}"


@dataclass(frozen=True)
class RunSpec:
    """Everything that decides a run: equal specs give equal runs."""

    task: str
    model: str
    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    settings: Settings = field(default_factory=Settings)
    label: str = ""
    #: the weights it begins with; by default each seed draws its own
    start_from: Start | None = None

    def __post_init__(self) -> None:
        texts = [("task", self.task), ("model", self.model), ("label", self.label)]
        for name, text in [*texts, *(("method", method) for method in self.methods)]:
            if not is_text(text):
                raise bad_value(name, ascii(text), "text in UTF-8")
        if not self.seeds:
            raise bad_value("seeds", "", "at least one, such as 0-4")
        if len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            raise bad_value("seeds", list(self.seeds), "different whole numbers >= 0")

    @property
    def identity(self) -> dict[str, Any]:
        """What a checkpoint must share with its run."""
        identity: dict[str, Any] = {
            "task": self.task,
            "model": self.model,
            "methods": list(self.methods),
            "seeds": list(self.seeds),
            "settings": {n: v for n, v in asdict(self.settings).items() if n not in CHANGEABLE},
        }
        if (start := self.start_from) is not None:
            lists = {"seeds": list(start.seeds), "checksums": list(start.checksums)}
            identity["start_from"] = asdict(start) | lists  # lists, as JSON has them
        return identity

    def differences(self, other: RunSpec) -> list[str]:
        """What two runs do not share: ``lr=0.002, not 0.001``."""
        mine, theirs = _flat(self), _flat(other)
        return [f"{n}={mine[n]}, not {theirs[n]}" for n in theirs if mine[n] != theirs[n]]


def _flat(run: RunSpec) -> dict[str, str]:
    """Every value of a run by its name, written as a person would."""
    values = {f.name: getattr(run, f.name) for f in fields(run)} | vars(run.settings)
    del values["settings"]
    return {
        name: ", ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)
        for name, value in values.items()
    }


# ---- methods and seeds as they are typed ---------------------------------------------------------


def read_methods(lines: Sequence[str]) -> tuple[str, ...]:
    """The methods of a command; ``none`` stands for no method at all."""
    others = [line for line in lines if line.strip() != NONE]
    if len(others) == len(lines):
        return tuple(lines)
    if others:
        reason = f"{NONE} means no method at all"
        raise incompatible(f"--method {NONE}", f"--method {others[0]}", reason)
    return ()


def read_seeds(text: str) -> tuple[int, ...]:
    """``0-4`` or ``0,2,5-7``."""
    seeds: list[int] = []
    for piece in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,20})(?:-([0-9]{1,20}))?\s*", piece)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if last < first:
            raise bad_value("seeds", text, "numbers and ranges such as 0-4 or 0,2,5")
        if len(seeds) + last - first >= MOST_SEEDS:
            raise bad_value("seeds", text, f"at most {MOST_SEEDS:,} of them")
        seeds += range(first, last + 1)
    return tuple(seeds)


def seed_words(seeds: Sequence[int]) -> str:
    """``0-4, 7``, as `read_seeds` takes them; two in a row are named one by one."""
    rows: list[list[int]] = []
    for seed in seeds:
        if rows and seed == rows[-1][-1] + 1:
            rows[-1].append(seed)
        else:
            rows.append([seed])
    pieces = [[f"{row[0]}-{row[-1]}"] if len(row) > 2 else map(str, row) for row in rows]
    return ", ".join(piece for own in pieces for piece in own)
