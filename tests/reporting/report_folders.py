"""Run and study folders made up for tests: the files only, no training."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

MULTIPLES = (1, 2, 3, 4, 10)


def write_run(
    folder: Path,
    label: str = "serial hybrid, DAT",
    seeds: Sequence[int] = (0, 1, 2, 3),
    reach: float = 30.0,
    multiples: Sequence[float] = MULTIPLES,
    variants: Sequence[str | None] = (None,),
    methods: Sequence[str] = ("dat(mode=skip, switch=plateau)",),
    failed: Sequence[int] = (),
    evaluated: bool = True,
    until: int = 2500,
    ceiling: float = math.inf,
    salt: int = 0,
    task: str = "composite(modulus=2, queries=4, keys=64)",
) -> Path:
    """A run that is right up to about ``reach`` times its training length of 10."""
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(_about(label, task, seeds, methods)))
    lines: list[dict[str, Any]] = []
    for seed in seeds:
        lines += _training(seed, until, bool(methods), seed in failed, salt)
    text = "".join(json.dumps(line) + "\n" for line in sorted(lines, key=lambda x: x["step"]))
    (folder / "metrics.jsonl").write_text(text)
    if evaluated:
        rows = [
            _row(seed, v, m, reach * (0.6 if seed in failed else 1), ceiling, salt)
            for v in variants
            for seed in seeds
            for m in multiples
        ]
        results = {"format": 1, "sequences": 2048, "rows": rows}
        (folder / "results.json").write_text(json.dumps(results))
    return folder


def _about(label: str, task: str, seeds: Sequence[int], methods: Sequence[str]) -> dict[str, Any]:
    return {
        "format": 1,
        "outlast": "0.1.0",
        "label": label,
        "task": task,
        "model": "1 x (lstm | attention(nope) > mlp) @ 64",
        "methods": list(methods),
        "seeds": list(seeds),
        "settings": {"steps": 2500, "batch": 32, "lr": 0.002},
        "parts": ["state", "recall", "running"],
        "auxiliary": ["running"],
        "length": 10,
        "parameters": 51234,
        "chance": {"state": 0.5, "recall": 0.5, "joint": 0.03125},
        "versions": {"python": "3.11.7", "torch": "2.13.0", "numpy": "2.4.6"},
        "device": "cpu",
        "created": "2026-11-15T08:00:00+00:00",
    }


def _training(seed: int, until: int, phases: bool, failed: bool, salt: int) -> list[dict[str, Any]]:
    chance = random.Random(f"{seed} {salt}")
    switch = 800 + chance.randrange(12) * 50 if phases else 0
    lines: list[dict[str, Any]] = []
    for step in range(50, until + 1, 50):
        late = max(0, step - switch)
        wobble = math.exp(chance.gauss(0, 0.15))
        state = (0.69 * math.exp(-step / (900 if failed else 220)) + 0.004) * wobble
        recall = (0.69 if late == 0 else 0.69 * math.exp(-late / 300) + 0.006) * wobble
        loss = {"state": state, "recall": recall, "running": state * 0.8}
        right = {part: 1 - min(0.5, value) for part, value in loss.items()}
        lines.append({"step": step, "seed": seed, "loss": loss, "accuracy": right})
        if step % 500 == 0:
            one = right["state"] * right["recall"] ** 4
            lines.append({"step": step, "seed": seed, "probe": {"1": one, "3": one**2}})
    if phases and switch <= until:
        event = {"step": switch, "seed": seed, "event": "switch", "method": "dat"}
        lines.append({**event, "converged": not failed, "loss": 0.0099})
        lines.append({"step": switch, "seed": seed, "event": "warm-up (new kind)", "x": [1]})
    return lines


def _row(
    seed: int, variant: str | None, multiple: float, reach: float, ceiling: float, salt: int
) -> dict[str, Any]:
    base = {"seed": seed, "variant": variant, "length": 10 * multiple, "multiple": multiple}
    base["tokens"] = int(25 * multiple)
    if multiple > ceiling:
        return {**base, "exact": None, "answers": None, "reason": "learned table ends at 20"}
    chance = random.Random(f"{seed} {salt} {variant}")
    piece = reach * math.exp(chance.gauss(0, 0.25)) * {"sparse": 0.5}.get(variant or "", 1.0)
    state = 0.5 + 0.5 / (1 + (multiple / piece) ** 4)
    recall = 0.08 + 0.92 / (1 + (multiple / (2 * piece)) ** 3)
    if piece > 12:
        state, recall = round(state, 2), round(recall, 2)
    exact = {"joint": state * recall, "state": state, "recall": recall, "running": state * 0.99}
    answers = {"state": state, "recall": recall**0.25, "running": 0.5 + state / 2}
    return {**base, "exact": exact, "answers": answers}


def write_analyses(
    folder: Path, seeds: Sequence[int] = (0, 1, 2, 3), toward: str | None = None, salt: int = 0
) -> None:
    """Tables as `outlast analyse` writes them; key-probe and gradients are of several steps."""
    rows: dict[str, list[dict[str, Any]]] = {
        "sharpness": [], "covariance": [], "token-filter": [], "gradients": [], "key-probe": [],
    }  # fmt: skip
    for seed in seeds:
        chance = random.Random(f"{seed} {salt}")
        for multiple, head in product((1, 3, 10), (0, 1)):
            place = {"seed": seed, "step": None, "multiple": multiple, "length": 10 * multiple}
            place |= {"layer": "2.attention", "head": head}
            weight = (0.9 if head else 0.2) / (1 + multiple * chance.uniform(0.05, 0.1))
            kept = (6.0 if head else 20.0) * multiple
            spread = {"keys": 20.0 * multiple, "kept": kept, "entropy": 1.0 + head}
            rows["sharpness"].append({**place, "weight": weight, "law": 0.8 * weight, **spread})
            for feature, share in (("logit", 1.0), ("identity", 0.9), ("position", -0.1)):
                value = share * (1 if head else 0.5) * chance.uniform(0.9, 1)
                margin = {"identity_margin": 9.0 * head + 1, "identity_share": value}
                row = {**place, "token": "value", "feature": feature, **margin}
                rows["covariance"].append({**row, "variance_share": value})
        for multiple, share in product((1, 3), (1.0, 0.5, 0.25, 0.1, 0.05)):
            place = {"seed": seed, "step": None, "multiple": multiple, "length": 10 * multiple}
            kept = {"ranking": "answers", "masked": "all", "share": share, "part": "joint"}
            exact = 0.99 if share >= 0.25 else share * chance.uniform(1, 2)
            rows["token-filter"].append({**place, **kept, "exact": exact})
            rows["token-filter"].append({**place, **kept, "ranking": "tokens", "exact": 0.0})
        for step, layer, multiple in product((0, 800, None), (2, 5), (1, 3)):
            row = {"seed": seed, "step": step, "layer": f"{layer}.attention", "place": "stream"}
            row |= {"multiple": multiple, "length": 10 * multiple}
            read = chance.uniform(0.8, 1) / multiple
            rows["key-probe"] += [{**row, "bin": None, "accuracy": read}]
            rows["key-probe"] += [{**row, "bin": 0, "accuracy": 0.0}]
        for step in (0, 800, 1600, 2500):
            row = {"seed": seed, "step": step, "layer": "all", "part": "all"}
            cosine = chance.uniform(-0.2, 0.8)
            norms = {"direct_norm": 0.5, "attention_norm": 0.5 * math.exp(chance.gauss(1, 1))}
            final = {"attention_to_final": 0.01 * cosine, "direct_to_final": 0.2 + 0.1 * cosine}
            rows["gradients"].append({**row, "cosine": cosine, **norms, **final})
            rows["gradients"].append({**row, "layer": "1.lstm", "cosine": 1.0, **norms, **final})
    (folder / "analysis").mkdir()
    for name, several in rows.items():
        table = {"format": 2, "outlast": "0.1.0", "analysis": name, "rows": several}
        settings = {"toward": toward} if name == "gradients" else {}
        text = json.dumps({**table, "settings": settings})
        (folder / "analysis" / f"{name}.json").write_text(text)


def claim(text: str, arm: str, statistic: str = "mean", **more: Any) -> dict[str, Any]:
    """A claim as study.json has it."""
    blank = {"versus": None, "part": "joint", "multiple": 3, "low": None, "high": None}
    return {"text": text, "arm": arm, "statistic": statistic, **blank, "source": "", **more}


def write_demo(folder: Path) -> Path:
    """The demo: five arms and four seeds; one arm not run, one seed whose phase 1 failed."""
    arms = [
        ("joint", "serial hybrid, joint", 1.6, ()),
        ("dat", "serial hybrid, DAT", 40.0, ("dat(mode=skip, switch=plateau)",)),
        ("control", "serial hybrid, recall loss delayed", 2.6, ("delay(part=recall)",)),
        ("lstm", "LSTM alone", 1.3, ()),
        ("transformer", "Transformer (rope)", 1.1, ()),
    ]
    for index, (name, label, reach, methods) in enumerate(arms):
        failed = (3,) if name == "control" else ()
        write_run(folder / name, label, reach=reach, methods=methods, failed=failed, salt=index)
    claims = [
        claim(
            "With DAT the hybrid holds at 3 × the training length",
            "dat", low=0.9, source="paper: > 90 % at 3 ×",
        ),
        claim("Trained jointly it falls off a cliff just past it", "joint", high=0.5,
              source="paper: < 10 % beyond 25"),
        claim("Delaying attention, and nothing else, makes the difference", "dat", "difference",
              versus="joint", low=0.3, source="ours"),
        claim("Every seed with DAT succeeds", "dat", "success", low=1.0, source="ours"),
        claim("Delaying the recall loss alone is enough", "control", "min", low=0.9,
              source="ours, from first trials"),
        claim("It still holds at 40 ×", "dat", multiple=40, low=0.9, source="ours"),
    ]  # fmt: skip
    return write_study(folder, [(n, la, "serial") for n, la, *_ in arms], claims)


def write_many(
    folder: Path, clear: bool = True, seeds: Sequence[int] = (0, 1, 2), until: int = 2500
) -> Path:
    """Forty arms in eight groups."""
    arms = []
    for g, recurrence in enumerate(["lstm", "gru", "mamba", "deltanet", "rwkv", "s4", "min", "x"]):
        for r, role in enumerate(["joint", "DAT", "DAT frozen", "DAT ramp", "control"]):
            name = f"{recurrence}-{r}"
            label = f"{recurrence} hybrid, {role}" if clear else f"{recurrence} {g} {role} {r}"
            arms.append((name, label, recurrence))
            write_run(
                folder / name, label, reach=1.5 if r == 0 else 4.0 * (g + 1),
                salt=10 * g + r, methods=("dat",) if r else (), seeds=seeds, until=until,
            )  # fmt: skip
    return write_study(folder, arms, [claim("DAT helps", "lstm-1", low=0.9)])


def write_study(
    folder: Path, arms: Sequence[tuple[str, str, str]], claims: Sequence[dict[str, Any]]
) -> Path:
    """study.json beside the arms' run folders."""
    folder.mkdir(parents=True, exist_ok=True)
    study = {
        "format": 1,
        "study": "dat",
        "title": "Delayed attention training",
        "scale": "demo",
        "question": "Does a hybrid that first learns without its attention keep working on "
        "sequences longer than those it was trained on?",
        "command": "outlast reproduce dat --scale demo",
        "arms": [{"name": n, "label": label, "group": group} for n, label, group in arms],
        "claims": list(claims),
    }
    (folder / "study.json").write_text(json.dumps(study))
    return folder
