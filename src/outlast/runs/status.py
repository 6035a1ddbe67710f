"""What a run has come to: whether it is finished, tested, diverged, and what its test covers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outlast.errors import RunFolderError, TrainingError
from outlast.runs.checkpoint import TrainingState, load_state
from outlast.runs.folder import CHECKPOINT, RESULTS, has_file
from outlast.runs.records import Results, is_tested, read_results, read_run
from outlast.runs.spec import RunSpec

#: why a seed is parked
NOT_FINITE = "the loss or a weight is not finite"


def own_state(folder: Path) -> TrainingState:
    """The state of a run's last checkpoint; one of another run is an error."""
    return load_state(folder, read_run(folder).spec)


def finished(folder: Path) -> bool:
    """Whether a run was trained to its last step, or until no seed was left to train."""
    if not has_file(folder, CHECKPOINT):
        return False
    return own_state(folder).is_at_end(read_run(folder).settings.steps)


def tested(folder: Path) -> bool:
    """Whether the results of a run are of what its last checkpoint holds."""
    if not (has_file(folder, RESULTS) and has_file(folder, CHECKPOINT)):
        return False
    return read_results(folder / RESULTS).step == own_state(folder).step


def diverged(folder: Path) -> TrainingError | None:
    """What to say of a run whose every seed was parked, as its last checkpoint tells."""
    state = own_state(folder)
    return divergence(read_run(folder).spec, folder, state.parked, state.step)


def divergence(
    run: RunSpec, folder: Path, parked: Sequence[int | None], step: int
) -> TrainingError | None:
    """What to say of a run whose every seed is parked; `step` is where the last of them was."""
    since = [at for at in parked if at is not None]
    if len(since) < len(run.seeds):
        return None
    last = [seed for seed, at in zip(run.seeds, since, strict=True) if at == max(since)]
    earlier = len(run.seeds) - len(last)
    others = f" (the other {earlier} were parked before)" if earlier else ""
    return TrainingError(
        f"seed{'s' * (len(last) > 1)} {', '.join(map(str, last))}: {NOT_FINITE} between steps "
        f"{max(since)} and {step}{others}; the last good weights are kept in {folder}. No seed is "
        f"left to train. Try a smaller lr (it is {run.settings.lr:g}) or a longer warmup."
    )


@dataclass(frozen=True)
class Coverage:
    """How much a test covers; `asked` are all its multiples, `tested` those that it could test."""

    step: int | None
    sequences: int
    asked: frozenset[float]
    tested: frozenset[float]

    @classmethod
    def of(cls, results: Results) -> Coverage:
        rows = results.rows
        return cls(
            results.step,
            results.sequences or 0,
            frozenset(row["multiple"] for row in rows),
            frozenset(row["multiple"] for row in rows if is_tested(row)),
        )

    @classmethod
    def read(cls, path: Path) -> Coverage | None:
        """That of a file; a file that is not there, or is no results, has none."""
        try:
            return cls.of(read_results(path))
        except RunFolderError:
            return None

    @property
    def size(self) -> tuple[int, int]:
        return self.sequences, len(self.tested)

    def __str__(self) -> str:
        lengths = " ".join(f"{multiple:g}" for multiple in sorted(self.tested))
        return f"lengths {lengths}, {self.sequences:,} sequences each"


def covers(folder: Path, ladder: Sequence[float], sequences: int) -> bool:
    """Whether the results of a run have all these lengths, from as many sequences or more."""
    coverage = Coverage.read(folder / RESULTS)
    multiples = {float(multiple) for multiple in ladder}
    return coverage is not None and multiples <= coverage.asked and coverage.sequences >= sequences
