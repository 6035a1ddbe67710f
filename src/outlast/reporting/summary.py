"""The numbers of a report: each arm by variant, length and part, over its seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import msgspec

from outlast.evaluation.statistics import (
    LEVEL,
    Summary,
    cliff,
    effective_length,
    present,
    summarise,
    summarise_bits,
)
from outlast.reporting.load import Arm, Run, Study
from outlast.reporting.phase import Phase, phase_of
from outlast.runs.records import ResultRow

LEVELS = (0.9, 0.99)


@dataclass(frozen=True)
class Measure:
    """One accuracy, or bits per byte, at one length: each seed's, and the summary over them."""

    seeds: dict[int, float]
    summary: Summary


@dataclass(frozen=True)
class Rung:
    """One tested length. A part that could not be tested is absent, and ``reason`` says why."""

    length: float
    multiple: float
    tokens: int | None
    exact: dict[str, Measure]
    answers: dict[str, Measure]
    reason: str | None
    #: of text: bits per byte by part, how many bytes that is, and bits per byte by position
    bits: dict[str, Measure] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    positions: dict[str, Measure] = field(default_factory=dict)


@dataclass(frozen=True)
class Ladder:
    """One version of the test: its lengths, short to long."""

    variant: str | None
    rungs: tuple[Rung, ...]
    #: the share of sequences that guessing gets right at the training length
    chance: float = 0.0

    def at(
        self, multiple: float, part: str = "joint", measure: Literal["exact", "bits"] = "exact"
    ) -> Measure | None:
        """The measure at a multiple of the training length, if there is one."""
        rung = self.rung(multiple)
        if rung is None:
            return None
        return rung.exact.get(part) if measure == "exact" else rung.bits.get(part)

    def rung(self, multiple: float) -> Rung | None:
        return next((r for r in self.rungs if abs(r.multiple - multiple) < 1e-6), None)

    def means(self, part: str = "joint") -> list[float | None]:
        measures = [rung.exact.get(part) for rung in self.rungs]
        return [measure.summary.mean if measure else None for measure in measures]

    def of_seed(self, seed: int, part: str = "joint") -> list[float | None]:
        measures = [rung.exact.get(part) for rung in self.rungs]
        return [measure.seeds.get(seed) if measure else None for measure in measures]

    def effective(self, level: float, seed: int | None = None) -> Rung | None:
        """The rung up to which accuracy holds: of the mean over seeds, or of one seed.

        None if it does not hold at all, or if guessing would: then it says nothing of a model.
        """
        if self.chance >= level:
            return None
        values = self.means() if seed is None else self.of_seed(seed)
        lengths = [rung.length for rung in self.rungs]
        reached = effective_length(lengths, values, level)
        return None if reached is None else self.rungs[lengths.index(reached)]

    def cliff(self) -> tuple[float, Rung, Rung] | None:
        """The largest fall of the mean between neighbouring rungs: size, from, to."""
        lengths = [rung.length for rung in self.rungs]
        fall = cliff(lengths, self.means())
        if fall is None:
            return None
        before, after = lengths.index(fall.before), lengths.index(fall.after)
        return fall.size, self.rungs[before], self.rungs[after]


@dataclass(frozen=True)
class ArmSummary:
    """Everything a report says about one arm. ``run`` is None until it has been started."""

    name: str
    label: str
    group: str | None
    run: Run | None
    status: str
    ladders: tuple[Ladder, ...]
    phase: Phase | None

    @property
    def diverged(self) -> bool:
        return self.run is not None and self.run.diverged

    @property
    def progress(self) -> str:
        """How far an unfinished run is, ``step 600 of 3,000``; nothing for one at its end."""
        return "" if self.diverged else _progress(self.run)

    @property
    def zlib(self) -> float | None:
        """The bits per byte that zlib takes of the text of the test, if it is one of text."""
        corpus = self.run.record.corpus if self.run else None
        return corpus.baselines.get("zlib") if corpus else None

    def count_parked(self, measure: Measure) -> int:
        """How many of the seeds of a measure were parked."""
        return len(measure.seeds.keys() & self.run.parked.keys()) if self.run else 0

    def ladder(self, variant: str | None) -> Ladder | None:
        return next((ladder for ladder in self.ladders if ladder.variant == variant), None)


def summarise_arm(arm: Arm) -> ArmSummary:
    """The numbers of one arm."""
    rows = (arm.run.rows or ()) if arm.run else ()
    variants = dict.fromkeys(row["variant"] for row in rows)
    chance = arm.run.record.chance.get("joint", 0.0) if arm.run else 0.0
    ladders = [_ladder(v, [row for row in rows if row["variant"] == v], chance) for v in variants]
    phase = phase_of(arm.run) if arm.run else None
    return ArmSummary(
        arm.name, arm.label, arm.record.group, arm.run, _status(arm), tuple(ladders), phase
    )


def variants_of(arms: Iterable[ArmSummary]) -> list[str | None]:
    """Every variant tested, in order of appearance, the plain task first."""
    seen = dict.fromkeys(ladder.variant for arm in arms for ladder in arm.ladders)
    return sorted(seen, key=lambda variant: variant is not None)


def multiples_of(arms: Iterable[ArmSummary]) -> list[float]:
    """Every tested multiple of the training length, short to long."""
    return sorted({r.multiple for arm in arms for ladder in arm.ladders for r in ladder.rungs})


def parts_of(arms: Iterable[ArmSummary]) -> list[str]:
    """Every part tested, in order of appearance, without ``joint``."""
    rungs = [r for arm in arms for ladder in arm.ladders for r in ladder.rungs]
    return list(dict.fromkeys(part for rung in rungs for part in rung.exact if part != "joint"))


def bits_parts_of(arms: Iterable[ArmSummary]) -> list[str]:
    """Every part of text that was measured, in order of appearance, `all` first."""
    rungs = [r for arm in arms for ladder in arm.ladders for r in ladder.rungs]
    return list(dict.fromkeys(part for rung in rungs for part in rung.bits))


def has_accuracies(arms: Iterable[ArmSummary]) -> bool:
    """Whether any arm was tested, or could not be, by the share of sequences right."""
    rungs = [r for arm in arms for ladder in arm.ladders for r in ladder.rungs]
    return any(rung.exact for rung in rungs) or not any(rung.bits for rung in rungs)


def study_json(study: Study, arms: list[ArmSummary]) -> dict[str, Any]:
    """A study's numbers for machines. The caller adds the claims."""
    return {
        "study": study.record.study,
        "title": study.title,
        "scale": study.record.scale,
        "command": study.record.command,
        "arms": [_arm_json(arm) for arm in arms],
        **(
            {}
            if study.record.screen is None
            else {"screen": msgspec.to_builtins(study.record.screen)}
        ),
    }


def _status(arm: Arm) -> str:
    run = arm.run
    if arm.damage:
        return "left out: a file is damaged"
    if run is None:
        return "not run yet"
    if run.diverged:
        return "diverged: every seed was parked"
    if run.unfinished:
        return f"unfinished: {_progress(run)}"
    return "evaluated" if run.rows else "not evaluated yet"


def _progress(run: Run | None) -> str:
    """``step 600 of 3,000``; nothing for a run at its end."""
    at = run.unfinished if run else None
    return f"step {at[0]:,} of {at[1]:,}" if at else ""


def _ladder(variant: str | None, rows: list[ResultRow], chance: float) -> Ladder:
    lengths = sorted({(row["length"], row["multiple"]) for row in rows})
    return Ladder(
        variant,
        tuple(
            _rung(
                [r for r in rows if (r["length"], r["multiple"]) == at],
                length=at[0],
                multiple=at[1],
            )
            for at in lengths
        ),
        chance,
    )


def _rung(rows: list[ResultRow], length: float, multiple: float) -> Rung:
    return Rung(
        length,
        multiple,
        rows[0].get("tokens"),
        _measures((row["seed"], row["exact"]) for row in rows),
        _measures((row["seed"], row.get("answers")) for row in rows),
        next((row["reason"] for row in rows if row.get("reason")), None),
        _measures(((row["seed"], row.get("bits")) for row in rows), summarise_bits),
        next((sizes for row in rows if (sizes := row.get("bytes"))), {}),
        _measures(((row["seed"], row.get("positions")) for row in rows), summarise_bits),
    )


def _measures(
    rows: Iterable[tuple[int, dict[str, float] | None]],
    summary: Callable[[Iterable[float]], Summary] = summarise,
) -> dict[str, Measure]:
    by_part: dict[str, dict[int, float]] = {}
    for seed, accuracies in rows:
        for part, value in (accuracies or {}).items():
            if present(value):
                by_part.setdefault(part, {})[seed] = value
    return {part: Measure(seeds, summary(seeds.values())) for part, seeds in by_part.items()}


def _arm_json(arm: ArmSummary) -> dict[str, Any]:
    record = msgspec.to_builtins(arm.run.record) if arm.run else {}
    copied = ("task", "model", "methods", "parameters", "seeds", "length", "chance", "settings")
    return {
        "name": arm.name,
        "label": arm.label,
        "group": arm.group,
        "status": arm.status,
        **{key: record.get(key) for key in copied},
        "sequences": arm.run.results.sequences if arm.run and arm.run.results else None,
        "phase1": asdict(arm.phase) if arm.phase else None,
        "parked": {str(seed): step for seed, step in arm.run.parked.items()} if arm.run else {},
        "succeeded": {str(seed): step for seed, step in arm.run.succeeded.items()}
        if arm.run
        else {},
        "results": [_ladder_json(ladder) for ladder in arm.ladders],
    }


def _ladder_json(ladder: Ladder) -> dict[str, Any]:
    seeds = sorted({s for r in ladder.rungs for m in r.exact.values() for s in m.seeds})
    fall = ladder.cliff()
    return {
        "variant": ladder.variant,
        "lengths": [_rung_json(rung) for rung in ladder.rungs],
        "effective_length": {
            f"{level:g}": {
                "of_mean": _place(ladder.effective(level)),
                "of_seed": {str(seed): _place(ladder.effective(level, seed)) for seed in seeds},
            }
            for level in LEVELS
        },
        "cliff": fall and {"size": fall[0], "from": _place(fall[1]), "to": _place(fall[2])},
    }


def _place(rung: Rung | None) -> dict[str, float] | None:
    return None if rung is None else {"length": rung.length, "multiple": rung.multiple}


def _rung_json(rung: Rung) -> dict[str, Any]:
    values = {"bits": rung.bits, "positions": rung.positions}
    text = {
        name: {key: _bits_json(measure) for key, measure in measures.items()}
        for name, measures in values.items()
        if measures
    }
    return {
        **text,
        **({"bytes": rung.bytes} if rung.bytes else {}),
        "length": rung.length,
        "multiple": rung.multiple,
        "tokens": rung.tokens,
        "reason": rung.reason,
        "exact": {part: _measure_json(m) for part, m in rung.exact.items()},
        "answers": {part: _measure_json(m) for part, m in rung.answers.items()},
    }


def _bits_json(measure: Measure) -> dict[str, Any]:
    seeds = {str(seed): value for seed, value in sorted(measure.seeds.items())}
    return {"seeds": seeds, "n": measure.summary.n, "mean": measure.summary.mean}


def _measure_json(measure: Measure) -> dict[str, Any]:
    s = measure.summary
    return {
        "seeds": {str(seed): value for seed, value in sorted(measure.seeds.items())},
        "n": s.n,
        "mean": s.mean,
        "interquartile_mean": s.iqm,
        "low": s.low,
        "high": s.high,
        "success": s.success,
        "success_level": LEVEL,
    }
