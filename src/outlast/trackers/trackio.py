"""trackio: a local database, or a Space of Hugging Face."""

from __future__ import annotations

from contextvars import Context
from importlib.metadata import version
from itertools import count
from typing import Any

from outlast.errors import OutlastError
from outlast.registry import trackers
from outlast.trackers.base import Conclusion, Ending, Memory, Point, TrackedRun, Tracker

#: the version that this was tested with
KNOWN = "0.43.0"


@trackers.register("trackio")
class Trackio(Tracker):
    """A run of trackio. A run that is resumed goes on under the same name.

    trackio cannot take points back. What it has of a step is not sent again. A second run of the
    same name has a number behind it.

    Args:
        project: The project that the runs are listed under.
        group: The group of the run; by default the folder of its grid or study.
        space: A Space of Hugging Face, such as "me/runs"; by default trackio's own choice, which is
            a database on this machine (the variable TRACKIO_DIR).
    """

    extra = "trackio"
    packages = ("trackio",)

    def __init__(
        self, project: str = "outlast", group: str | None = None, space: str | None = None
    ) -> None:
        self.project, self.group, self.space = project, group, space

    def open(self, run: TrackedRun, memory: Memory | None) -> tuple[Memory, int]:
        import trackio

        if memory is not None:
            name = memory["name"]
        else:  # trackio finds runs by their names: those of two sweeps may be called the same
            name = _free_name(self.project, f"{run.group}-{run.name}" if run.group else run.name)
        # in a context of its own: trackio would end the run that it began before
        self.run: Any = Context().run(
            trackio.init,
            self.project,
            name=name,
            group=self.group or run.group,
            space_id=self.space,
            config=run.config,
            resume="never" if memory is None else "allow",
            auto_log_gpu=False,
            auto_log_cpu=False,
            embed=False,
        )
        if memory is None:
            return {"name": name, "id": self.run.id}, 0
        last_step = self._last_step()
        if last_step >= 0 and self.run.id != memory.get("id", self.run.id):
            raise OutlastError(
                f"trackio has another run that is called {name}, and would go on with that one"
            )
        return {"name": name, "id": self.run.id}, last_step

    def _last_step(self) -> int:
        """The last step that trackio has. It reads it when a run is begun, but does not tell it."""
        next_step = getattr(self.run, "_next_step", None)
        if not isinstance(next_step, int):
            raise OutlastError(
                f"trackio {version('trackio')} does not say which steps it has, so a run cannot go "
                f"on there without doubled points; trackio {KNOWN} does"
            )
        return next_step - 1

    def log(self, point: Point) -> None:
        self.run.log(point.flat(), step=point.step)

    def conclude(self, conclusion: Conclusion) -> None:
        import trackio

        rows = [dict(zip(conclusion.columns, row, strict=True)) for row in conclusion.rows]
        shown: dict[str, Any] = {"accuracy by length": trackio.Table(data=rows)}
        if conclusion.figure is not None:
            shown["accuracy by length, figure"] = trackio.Image(str(conclusion.figure))
        self.run.log(shown, step=conclusion.step + 1)
        if conclusion.page is not None:
            self.run.log_artifact(conclusion.page, name=f"report-{self.run.name}", type="report")

    def close(self, ending: Ending) -> None:
        self.run.finish()


def _free_name(project: str, name: str) -> str:
    """The name, or one with a number behind it if a run in the database here has it."""
    import trackio

    try:
        names = {run.name for run in trackio.Api().runs(project)}
    except ValueError:  # there is no such project yet
        return name
    numbered = (f"{name}-{number}" for number in count(2))
    return name if name not in names else next(each for each in numbered if each not in names)
