"""Weights & Biases: online, or in a folder that is synced later."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from outlast.errors import OutlastError
from outlast.registry import trackers
from outlast.trackers.base import Conclusion, Ending, Memory, Point, TrackedRun, Tracker


@trackers.register("wandb")
class WeightsAndBiases(Tracker):
    """A run of Weights & Biases, online or offline. A resumed run goes on under the same id.

    An offline run that is resumed has a second folder of the same id; ``wandb sync`` joins them.
    What W&B has of a step is not sent again.

    Args:
        project: The project that the runs are listed under.
        entity: The user or the team; by default W&B's own choice.
        mode: online or offline; by default W&B's own choice (the variable WANDB_MODE).
        group: The group of the run; by default the folder of its grid or study.
        folder: Where W&B keeps its folder "wandb"; by default W&B's own choice.
    """

    extra = "wandb"
    packages = ("wandb",)

    def __init__(
        self,
        project: str = "outlast",
        entity: str | None = None,
        mode: Literal["online", "offline"] | None = None,
        group: str | None = None,
        folder: str | None = None,
    ) -> None:
        self.project, self.entity, self.mode = project, entity, mode
        self.group, self.folder = group, folder

    def check(self) -> None:
        super().check()
        import wandb

        if (self.mode or wandb.setup().settings.mode) not in ("online", "shared"):
            return
        try:  # asks for a key now, on a terminal; in the middle of a run nobody would answer
            is_known = wandb.login()
        except Exception as error:
            raise OutlastError(
                f"--track wandb: {error}; log in with 'wandb login', or give wandb(mode=offline)"
            ) from None
        if not is_known:
            raise OutlastError(
                "--track wandb: expected a login ('wandb login'), or wandb(mode=offline)"
            )

    def open(self, run: TrackedRun, memory: Memory | None) -> tuple[Memory, int]:
        import wandb

        if self.folder is not None:
            Path(self.folder).mkdir(parents=True, exist_ok=True)
        before = [] if memory is None else _files(memory)
        self.run: Any = wandb.init(
            project=self.project,
            entity=self.entity,
            mode=self.mode,
            dir=self.folder,
            group=self.group or run.group,
            name=run.name,
            config=run.config,
            id=None if memory is None else memory["id"],
            resume=None if memory is None else "allow",
            reinit="create_new",
            # the console is ours, and a service that does not answer must not be waited for
            settings=wandb.Settings(console="off", silent=True, init_timeout=60),
        )
        memory = {"id": self.run.id, "folder": str(Path(self.run.settings.wandb_dir).resolve())}
        online = self.run.step - 1 if self.run.resumed else 0
        return memory, max([online, *(step for file in before for step in _steps(file))], default=0)

    def log(self, point: Point) -> None:
        self.run.log(point.flat(), step=point.step)

    def conclude(self, conclusion: Conclusion) -> None:
        import wandb

        rows = [list(row) for row in conclusion.rows]
        shown: dict[str, Any] = {
            "accuracy by length": wandb.Table(columns=list(conclusion.columns), data=rows)
        }
        if conclusion.figure is not None:
            shown["accuracy by length, figure"] = wandb.Image(str(conclusion.figure))
        self.run.log(shown, step=conclusion.step + 1)
        if conclusion.page is not None:
            page = wandb.Artifact(f"report-{self.run.id}", type="report")
            page.add_dir(str(conclusion.page))
            self.run.log_artifact(page)

    def close(self, ending: Ending) -> None:
        self.run.finish(exit_code=1 if ending == "failed" else 0)


def _files(memory: Memory) -> list[Path]:
    """The files of an offline run, those of before it was resumed included."""
    files = sorted(Path(memory["folder"]).glob(f"offline-run-*-{memory['id']}/*.wandb"))
    return [file for file in files if file.stat().st_size]  # a kill may leave an empty one


def _steps(file: Path) -> Iterator[int]:
    """The steps that a file of an offline run holds, as W&B's own inspector reads it."""
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    done = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300
    )
    if done.returncode != 0:  # points would be doubled
        words = (done.stderr or done.stdout).strip().splitlines() or ["no reason"]
        raise OutlastError(
            f"'wandb leet inspect {file}' ended with exit code {done.returncode}: {words[-1]}"
        )
    for text in done.stdout.splitlines():
        record = json.loads(text)
        if record["type"] == "history":
            yield int(record["history"]["step"]["num"])
