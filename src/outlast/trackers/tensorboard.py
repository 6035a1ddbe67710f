"""TensorBoard: event files, by default in the run folder."""

from __future__ import annotations

from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

from matplotlib.image import imread

from outlast.registry import trackers
from outlast.trackers.base import Conclusion, Ending, Memory, Point, TrackedRun, Tracker

#: the curves of the means; each seed has its own folder beside it, under the same names
MEAN = "mean"


@trackers.register("tensorboard")
class TensorBoard(Tracker):
    """Event files of TensorBoard, one folder for the mean and one for each seed.

    A run that is resumed has its later points purged by TensorBoard's own rule, and sent again.

    Args:
        folder: Where to write, each run in a folder of its name; by default in the run folder, so
            that ``tensorboard --logdir runs`` shows every run.
    """

    extra = "tensorboard"
    packages = ("tensorboard",)

    def __init__(self, folder: str | None = None) -> None:
        self.folder = folder
        self.writers: dict[str, Any] = {}
        self.purge_step: int | None = None

    def open(self, run: TrackedRun, memory: Memory | None) -> tuple[Memory, int]:
        home = run.folder / "tensorboard" if self.folder is None else Path(self.folder)
        if memory is not None:
            # the run folder may have been moved since
            self.home = home if self.folder is None else Path(memory["folder"])
            self.purge_step = max(min(_last_whole_step(self.home), run.step) + 1, 0)
            return memory, self.purge_step - 1
        self.home = home if self.folder is None else _free(home / run.name)
        if self.home.exists():  # of a run that was overwritten
            rmtree(self.home)
        config = "\n".join(f"| {name} | {value} |" for name, value in run.config.items())
        self._writer(MEAN).add_text("settings", f"| setting | value |\n| --- | --- |\n{config}", 0)
        return {"folder": str(self.home.resolve())}, 0

    def _writer(self, name: str) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        if name not in self.writers:
            self.writers[name] = SummaryWriter(
                str(self.home / name), purge_step=self.purge_step, max_queue=1000
            )
        return self.writers[name]

    def log(self, point: Point) -> None:
        curves = {MEAN: point.mean} | {f"seed_{s}": v for s, v in point.seeds.items()}
        for name, values in curves.items():
            for curve, value in values.items():
                self._writer(name).add_scalar(curve, value, point.step)
        for words in point.events:
            self._writer(MEAN).add_text("events", words, point.step)
        for name in reversed(curves):  # the mean last: what it has, every seed has
            self._writer(name).flush()

    def conclude(self, conclusion: Conclusion) -> None:
        writer = self._writer(MEAN)
        writer.add_text("accuracy by length", conclusion.markdown(), conclusion.step)
        if conclusion.figure is not None:
            picture = imread(conclusion.figure)
            writer.add_image("accuracy by length", picture, conclusion.step, dataformats="HWC")
        if conclusion.page is not None:  # it knows no files: the page lies beside those of its own
            copytree(conclusion.page, self.home / "report", dirs_exist_ok=True)

    def close(self, ending: Ending) -> None:
        for writer in self.writers.values():
            writer.close()


def _last_whole_step(home: Path) -> int:
    """The last step that the mean has in full, after what TensorBoard itself would purge."""
    from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

    events = EventAccumulator(str(home / MEAN), {SCALARS: 1})  # the last of each curve is kept
    events.Reload()
    steps = [events.Scalars(tag)[-1].step for tag in events.Tags()[SCALARS]]
    # the curves of the last step may be cut short by a kill
    return max(steps, default=0) - 1


def _free(folder: Path) -> Path:
    """The folder, or one with a number behind its name if another run has it."""
    number, name = 2, folder.name
    while folder.exists():
        folder, number = folder.with_name(f"{name}-{number}"), number + 1
    return folder
