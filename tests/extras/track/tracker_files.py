"""What each tracker has of a run, read back with its own client."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter
from pathlib import Path

from outlast.runs.folder import TRACKERS
from outlast.runs.records import read_run
from outlast.trackers.points import PointReader

ROOT = Path(__file__).parents[3]
#: (curve, step) -> value; a second value under one name and step is an error
Curves = dict[tuple[str, int], float]


def lines(home: Path) -> list[str]:
    """The four trackers, with all their files in one folder."""
    return [
        "tensorboard",
        f'mlflow(uri="sqlite:///{home}/mlflow.db")',
        f'wandb(mode=offline, folder="{home}")',
        "trackio(project=tests)",
    ]


def environment(home: Path) -> dict[str, str]:
    """Where the clients keep what a line cannot say."""
    return {
        "TRACKIO_DIR": str(home / "trackio"), "WANDB_CACHE_DIR": str(home / "cache"),
        "WANDB_DATA_DIR": str(home / "data"), "WANDB_CONFIG_DIR": str(home / "config"),
        "WANDB_ERROR_REPORTING": "false", "MLFLOW_DISABLE_TELEMETRY": "true",
    }  # fmt: skip


def expected(folder: Path) -> Curves:
    """The curves as the metrics file has them."""
    points = PointReader(folder, read_run(folder).settings).read()
    return {(name, p.step): value for p in points for name, value in p.flat().items()}


def memory(folder: Path, name: str) -> dict[str, str]:
    entries = json.loads((folder / TRACKERS).read_text())
    (entry,) = [each["memory"] for line, each in entries.items() if line.startswith(name)]
    return entry


def once(triples: list[tuple[str, int, float]]) -> Curves:
    doubled = [k for k, count in Counter((n, s) for n, s, _ in triples).items() if count > 1]
    assert not doubled, f"sent twice: {doubled[:5]}"
    return {(name, step): value for name, step, value in triples}


def tensorboard(folder: Path, home: Path) -> Curves:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    triples = []
    for writer in (folder / "tensorboard").iterdir():
        if writer.name == "report":
            continue
        events = EventAccumulator(str(writer), {"scalars": 0})
        events.Reload()
        prefix = "" if writer.name == "mean" else f"{writer.name}/"
        for tag in events.Tags()["scalars"]:
            triples += [(prefix + tag, event.step, event.value) for event in events.Scalars(tag)]
    return once(triples)


def mlflow(folder: Path, home: Path) -> Curves:
    from mlflow import MlflowClient

    client, run = MlflowClient(f"sqlite:///{home}/mlflow.db"), memory(folder, "mlflow")["run_id"]
    triples = []
    for name in client.get_run(run).data.metrics:
        triples += [(name, m.step, m.value) for m in client.get_metric_history(run, name)]
    return once(triples)


def wandb_records(folder: Path, home: Path) -> list[dict]:
    """Every record of every folder of the run, as W&B's own inspector prints them."""
    records = []
    for file in sorted((home / "wandb").glob(f"*-{memory(folder, 'wandb')['id']}/*.wandb")):
        command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        records += map(json.loads, done.stdout.splitlines())
    return records


def wandb(folder: Path, home: Path) -> Curves:
    history = [r["history"] for r in wandb_records(folder, home) if r["type"] == "history"]
    triples = [
        (name, record["step"]["num"], value)
        for record in history
        for name, value in record["item"].items()
        if not name.startswith(("_", "accuracy by length"))
    ]
    return once(triples)


def trackio_logs(folder: Path) -> list[dict]:
    from trackio.sqlite_storage import SQLiteStorage

    return SQLiteStorage.get_logs("tests", memory(folder, "trackio")["name"])


def trackio(folder: Path, home: Path) -> Curves:
    triples = [
        (name, log["step"], value)
        for log in trackio_logs(folder)
        for name, value in log.items()
        if name not in ("step", "timestamp") and not name.startswith("accuracy by length")
    ]
    return once(triples)


READERS = {"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb, "trackio": trackio}


def same(curves: Curves, wanted: Curves) -> bool:
    """Whether all values are there and right; TensorBoard keeps them as float32."""
    close = (math.isclose(curves[k], wanted[k], rel_tol=1e-6, abs_tol=1e-9) for k in wanted)
    return curves.keys() == wanted.keys() and all(close)
