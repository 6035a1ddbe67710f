"""MLflow: a run in its database or on its server."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from outlast.errors import bad_value
from outlast.registry import trackers
from outlast.trackers.base import Conclusion, Ending, Memory, Point, TrackedRun, Tracker

STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
#: what MLflow takes at once
MOST_METRICS, MOST_PARAMETERS, LONGEST_PARAMETER = 1000, 100, 6000
SQLITE = "sqlite:///"
#: a curve that every point has
ALWAYS = "learning_rate"


@trackers.register("mlflow")
class MLflow(Tracker):
    """A run of MLflow. A run that is resumed goes on under the same id.

    MLflow cannot take points back. What it has of a step is not sent again.

    Args:
        uri: The database or the server, such as "sqlite:///mlflow.db"; by default MLflow's own
            choice (the variable MLFLOW_TRACKING_URI).
        experiment: The experiment that the runs are listed under.
    """

    extra = "mlflow"
    packages = ("mlflow", "sqlalchemy", "alembic")

    def __init__(self, uri: str | None = None, experiment: str = "outlast") -> None:
        is_folder = uri is not None and ("://" not in uri or uri.startswith("file:"))
        if is_folder and uri != "databricks":
            accepted = 'a database or a server, such as "sqlite:///mlflow.db"'
            raise bad_value("uri", f'"{uri}"', f"{accepted}: MLflow takes no folder any more")
        self.uri, self.experiment = uri, experiment

    def open(self, run: TrackedRun, memory: Memory | None) -> tuple[Memory, int]:
        # MLflow reads it when it is imported, and would report its use to its makers
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow import MlflowClient

        self.client: Any = MlflowClient(tracking_uri=self.uri or (memory or {}).get("uri"))
        #: curves that MLflow has of the step after the last whole one, if a kill cut it in two
        self.partial: dict[str, int] = {}
        if memory is None:
            return self._begin(run), 0
        self.run_id = memory["run_id"]
        self.client.update_run(self.run_id, status="RUNNING")
        for name in self.client.get_run(self.run_id).data.metrics:
            history = self.client.get_metric_history(self.run_id, name)
            self.partial[name] = max(metric.step for metric in history)  # sorted by the clock
        return memory, self.partial.get(ALWAYS, 0)

    def _begin(self, run: TrackedRun) -> Memory:
        from mlflow.entities import Param

        known = self.client.get_experiment_by_name(self.experiment)
        home = known.experiment_id if known else self._create_experiment()
        tags = {"group": run.group} if run.group else {}
        started = self.client.create_run(home, run_name=run.name, tags=tags)
        self.run_id = started.info.run_id
        parameters = [Param(n, str(v)[:LONGEST_PARAMETER]) for n, v in run.config.items()]
        for begin in range(0, len(parameters), MOST_PARAMETERS):
            batch = parameters[begin : begin + MOST_PARAMETERS]
            self.client.log_batch(self.run_id, params=batch)
        return {"run_id": self.run_id, "uri": self.client.tracking_uri}

    def _create_experiment(self) -> str:
        """Files go to the folder mlruns beside a database; MLflow would take the working folder."""
        database = self.client.tracking_uri.removeprefix(SQLITE)
        files = None
        if database != self.client.tracking_uri:
            files = (Path(database).resolve().parent / "mlruns").as_uri()
        return str(self.client.create_experiment(self.experiment, artifact_location=files))

    def log(self, point: Point) -> None:
        from mlflow.entities import Metric

        values = {n: v for n, v in point.flat().items() if self.partial.get(n, -1) < point.step}
        if ALWAYS in values:  # last: a step that has it is whole
            values[ALWAYS] = values.pop(ALWAYS)
        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, point.step) for name, value in values.items()]
        for begin in range(0, len(metrics), MOST_METRICS):
            self.client.log_batch(self.run_id, metrics[begin : begin + MOST_METRICS])

    def conclude(self, conclusion: Conclusion) -> None:
        self.client.log_text(self.run_id, conclusion.csv(), "accuracy-by-length.csv")
        self.client.log_text(self.run_id, conclusion.markdown(), "accuracy-by-length.md")
        if conclusion.figure is not None:
            self.client.log_artifact(self.run_id, str(conclusion.figure))
        if conclusion.page is not None:
            self.client.log_artifacts(self.run_id, str(conclusion.page), "report")

    def close(self, ending: Ending) -> None:
        self.client.set_terminated(self.run_id, STATUS[ending])
