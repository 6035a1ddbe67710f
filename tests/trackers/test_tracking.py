"""Trackers beside training, with trackers of our own: no extra is needed."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from shutil import copytree
from typing import ClassVar, Literal

import pytest
from safetensors.torch import load_file

import outlast
import outlast.reporting.page as page_module
from outlast.cli import main
from outlast.errors import MissingExtraError, SpecError
from outlast.registry import Entry, studies, trackers
from outlast.runs.folder import CHECKPOINT, METRICS, RESULTS, TRACKERS
from outlast.runs.records import EventLine, MetricLine, append_metrics, read_metrics
from outlast.runs.spec import Settings
from outlast.studies import Arm, Study
from outlast.trackers import lane as lane_module
from outlast.trackers import tracking as tracking_module
from outlast.trackers.base import Conclusion, Ending, Memory, Point, TrackedRun, Tracker
from outlast.trackers.points import PointReader
from outlast.trackers.recorded import RecordedRuns
from outlast.trackers.tracking import Tracking
from outlast.workflow.train import Outcome
from tiny_runs import start_processes_at_once, tiny

ARMS = {"joint": (), "dat": ("dat(switch=10)",)}
PARTS = ("joint", "state", "running")
TASK, MODEL = "parity(length=3)", "lstm > mlp @ 8"
FEW = {
    "seeds": [0, 1], "device": "cpu", "steps": 6, "steps_per_block": 2, "checkpoint_every": 2,
    "probe_every": 2, "batch_size": 4, "progress": False,
}  # fmt: skip


class Memo(Tracker):
    """Keeps what it is given, and may fail at one of its calls."""

    calls: ClassVar[list[object]] = []
    opened: ClassVar[list[TrackedRun]] = []
    last_step: ClassVar[int] = 0

    def __init__(self, fails: str = "", hangs: bool = False) -> None:
        self.fails, self.hangs = fails, hangs

    def _call(self, name: str, what: object) -> None:
        self.calls.append((name, what))
        if self.fails == name:
            raise OSError(28, "No space left on device")
        if self.hangs:
            threading.Event().wait(60)

    def open(self, run: TrackedRun, memory: Memory | None) -> tuple[Memory, int]:
        self.opened.append(run)
        self._call("open", memory)
        return {"id": "x"}, self.last_step

    def log(self, point: Point) -> None:
        self._call("log", point)

    def conclude(self, conclusion: Conclusion) -> None:
        assert conclusion.page is not None
        assert (conclusion.page / "index.html").exists()
        self._call("conclude", conclusion)

    def close(self, ending: Ending) -> None:
        self._call("close", ending)


@pytest.fixture(autouse=True)
def memo(monkeypatch: pytest.MonkeyPatch) -> type[Memo]:
    trackers.names()  # ours are registered
    monkeypatch.setattr(trackers, "_entries", dict(trackers._entries))
    trackers.register("memo", "tests")(Memo)
    Memo.calls, Memo.opened, Memo.last_step = [], [], 0
    monkeypatch.setattr(tracking_module, "report", quick_page)
    return Memo


def quick_page(folders: list[Path], out: Path) -> Path:
    """In place of the real page, which takes seconds; tests/extras/track make that one."""
    out.mkdir(parents=True)
    (out / "index.html").write_text("<p>a page</p>")
    return out / "index.html"


def named(name: str) -> list[object]:
    return [what for call, what in Memo.calls if call == name]  # type: ignore[misc]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain") / "run"
    outlast.fit(TASK, MODEL, folder, **FEW)
    return folder


def outcome_files(folder: Path) -> list[object]:
    tensors = {name: t.tolist() for name, t in load_file(folder / CHECKPOINT).items()}
    return [tensors, *((folder / name).read_bytes() for name in (METRICS, RESULTS))]


def test_tracker_gets_every_point_once_and_then_the_conclusion(plain: Path, tmp_path: Path) -> None:
    tracking = outlast.track("memo")
    outlast.fit(TASK, MODEL, tmp_path / "run", callbacks=[tracking], **FEW)
    assert outcome_files(tmp_path / "run") == outcome_files(plain)
    points = named("log")
    assert [point.step for point in points] == [2, 4, 6]
    lines = [line for line in read_metrics(plain) if line.step == 4]
    losses = [line.loss["state"] for line in lines if isinstance(line, MetricLine) and line.loss]
    assert points[1].mean["loss/state"] == pytest.approx(sum(losses) / 2)
    assert [points[1].seeds[seed]["loss/state"] for seed in (0, 1)] == losses
    assert {"learning_rate", "accuracy/state", "probe/1x", "probe/3x"} <= set(points[1].mean)
    (conclusion,) = named("conclude")
    assert conclusion.columns == ("seed", "variant", "length", "multiple", *PARTS)
    assert {row[0] for row in conclusion.rows} == {0, 1}
    assert named("close") == ["finished"]
    assert not tracking.failures


@pytest.mark.parametrize("call", ["open", "log", "conclude", "close"])
def test_tracker_that_raises_changes_nothing_of_the_run_and_is_named_once(
    call: str, plain: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said: list[str] = []
    tracking = Tracking([f"memo(fails={call})", "memo"], said.append)
    with caplog.at_level(logging.WARNING):
        outlast.fit(TASK, MODEL, tmp_path / "run", callbacks=[tracking], **FEW)
    assert outcome_files(tmp_path / "run") == outcome_files(plain)
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 1
    assert "No space left on device" in warnings[0]
    assert len(said) == 1
    assert f"memo(fails={call})" in said[0]
    assert list(tracking.failures) == [f"memo(fails={call})"]
    assert named("close").count("finished") == (2 if call == "close" else 1), "the other goes on"
    assert not (tmp_path / "run" / "report").exists()


def test_tracker_that_does_not_answer_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_module, "PATIENCE", 0.2)
    tracking = outlast.track("memo(hangs=true)")
    outlast.fit(TASK, MODEL, tmp_path / "run", callbacks=[tracking], **FEW)
    assert "did not answer" in tracking.failures["memo(hangs=true)"]


def test_resumed_run_sends_what_the_tracker_does_not_have(tmp_path: Path) -> None:
    class Full(outlast.Listener):
        def training(self, folder: Path, progress: object) -> None:
            if progress.step == 4:  # type: ignore[attr-defined]
                raise InterruptedError("stop here")

    run = tmp_path / "run"
    with pytest.raises(InterruptedError):
        outlast.fit(TASK, MODEL, run, callbacks=[outlast.track("memo"), Full()], **FEW)
    assert named("close") == ["failed"]
    assert [point.step for point in named("log")] == [2, 4]
    Memo.calls, Memo.last_step = [], 4
    assert main(["resume", str(run), "--track", "memo", "--device", "cpu"]) == 0
    assert named("open") == [{"id": "x"}]
    assert [point.step for point in named("log")] == [6]
    assert len(named("conclude")) == 1
    Memo.calls = []
    assert main(["resume", str(run), "--track", "memo", "--device", "cpu"]) == 0
    assert not Memo.calls, "a run that the tracker has in full is not sent again"


def test_overwritten_run_is_a_new_one_for_the_tracker(plain: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    outlast.fit(TASK, MODEL, run, callbacks=[outlast.track("memo")], **FEW)
    assert (run / TRACKERS).exists()
    outlast.fit(TASK, MODEL, run, callbacks=[outlast.track("memo")], overwrite=True, **FEW)
    assert named("open") == [None, None]
    assert len(named("conclude")) == 2


def test_events_are_curves_of_seeds_and_a_count_over_seeds(tmp_path: Path) -> None:
    reader = PointReader(tmp_path, Settings(steps=10))
    append_metrics(tmp_path, [MetricLine(2, 0, loss={"state": 1.0, "recall": None})])
    append_metrics(tmp_path, [EventLine(2, 0, "switch", {"method": "dat"})])
    append_metrics(tmp_path, [EventLine(4, 1, "switch")])
    first, second = reader.read()
    assert first.mean["event/switch"] == 1
    assert second.mean["event/switch"] == 2
    assert second.seeds == {1: {"event/switch": 1.0}}
    assert first.events == ("seed 0: switch (method dat)",)
    assert set(first.seeds[0]) == {"loss/state", "event/switch"}


def test_reader_waits_for_a_step_that_is_still_being_written(tmp_path: Path) -> None:
    reader = PointReader(tmp_path, Settings(steps=10))
    append_metrics(tmp_path, [MetricLine(2, 0), MetricLine(4, 0)])
    with (tmp_path / METRICS).open("a") as file:
        file.write('{"step": 4, "se')
    assert [point.step for point in reader.read(2)] == [2]
    with (tmp_path / METRICS).open("a") as file:
        file.write('ed": 1}\n')
    (point,) = reader.read(4)
    assert sorted(point.seeds) == [0, 1]
    assert reader.read() == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("tensorbord", "did you mean 'tensorboard'"),
        ("wandb(mode=of)", "online | offline"),
        ('mlflow(uri="file:./mlruns")', "MLflow takes no folder"),
        ("mlflow(uri=mlruns)", "sqlite:///mlflow.db"),
        ("wandb(projects=x)", "no argument 'projects'"),
    ],
)
def test_bad_line_is_an_error_before_a_folder_is_made(
    line: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["--task", TASK, "--model", MODEL, "--steps", "2", "--out", str(tmp_path / "run")]
    assert main(["train", *run, "--track", line]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    with pytest.raises(SpecError):
        outlast.track(line)


def test_missing_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlast.trackers.base.find_spec", lambda name: None)
    for name in ("tensorboard", "wandb", "mlflow", "trackio"):
        with pytest.raises(MissingExtraError, match=rf"pip install -e '\.\[{name}\]' in"):
            outlast.track(name)


def test_one_tracker_twice_is_an_error() -> None:
    with pytest.raises(SpecError, match="each tracker once"):
        outlast.track("memo", "memo()")


def test_every_callback_is_told_the_same_in_order(tmp_path: Path) -> None:
    calls: list[tuple[str, str]] = []

    class Diary(outlast.Listener):
        def __init__(self, name: str) -> None:
            self.name = name

        def training(self, folder: Path, progress: object) -> None:
            lines = progress.lines  # type: ignore[attr-defined]
            assert {line.seed for line in lines} == {0, 1}
            calls.append((self.name, "training"))

        def ended(self, folders: Sequence[Path], outcome: Outcome) -> None:
            raise RuntimeError(self.name)

        def failed(self, folders: Sequence[Path], error: BaseException) -> None:
            calls.append((self.name, f"failed {error}"))

    with pytest.raises(RuntimeError, match="first"):
        outlast.fit(
            TASK, MODEL, tmp_path / "run", callbacks=[Diary("first"), Diary("second")], **FEW
        )
    assert calls == [("first", "training"), ("second", "training")] * 3 + [
        ("first", "failed first"), ("second", "failed first")
    ]  # fmt: skip


def test_reproduce_sends_every_arm_and_the_page_of_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mini(scale: Literal["demo", "paper"] = "demo") -> Study:
        """Two arms of three blocks."""
        arms = [Arm(name, tiny(*methods, steps=15)) for name, methods in ARMS.items()]
        return Study("tracked", scale, "A study", "Is it sent?", arms, [], (1,), 8)

    monkeypatch.setattr(page_module, "report", quick_page)
    monkeypatch.setitem(studies._entries, "tracked", Entry("tracked", mini, "tests"))
    command = ["reproduce", "tracked", "--out", str(tmp_path / "study"), "--device", "cpu"]
    assert main([*command, "--together", "True", "--track", "memo"]) == 0
    for name in ARMS:
        assert (tmp_path / "study" / name / TRACKERS).exists()
    points = named("log")
    assert sorted(point.step for point in points) == [5, 5, 10, 10, 15, 15]
    assert sum("event/switch" in point.mean for point in points) == 1
    assert [conclusion.page.parent.name for conclusion in named("conclude")] == ["study"] * 2
    assert named("close") == ["finished"] * 2


SWEEP = [
    "sweep", "--task", TASK, "--grid", "model=lstm @ 4,gru @ 4", "lr=0.01,0.02", "--steps", "4",
    "--steps-per-block", "2", "--probe-every", "0", "--batch-size", "2", "--sequences", "8",
    "--lengths", "1", "--devices", "cpu",
]  # fmt: skip


def test_sweep_sends_every_run_once_and_a_failing_tracker_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start_processes_at_once(monkeypatch)
    out = tmp_path / "sweep"
    command = [*SWEEP, "--out", str(out)]
    assert main([*command, "--track", "memo", "--track", "memo(fails=log)"]) == 0
    said = capsys.readouterr().out
    assert said.count("tracker failed: memo(fails=log): OSError") == 1
    assert "\nsent 4 runs to memo\n" in said
    groups = {(run.group, run.folder.parent.name) for run in Memo.opened}
    assert groups == {("sweep", "sweep")}
    names = {path.parent.name for path in out.glob(f"*/{RESULTS}")}
    assert len(names) == 4
    assert {path.parent.name for path in out.glob(f"*/{TRACKERS}")} == names
    assert len(named("conclude")) == 4
    assert named("close") == ["finished"] * 4
    # each run has two points, and the tracker that fails got one
    assert sorted(point.step for point in named("log")) == [2] * 5 + [4] * 4

    Memo.calls, Memo.opened = [], []
    assert main([*command, "--track", "memo"]) == 0
    assert not Memo.calls, "a run that the tracker has in full is not sent again"
    said = capsys.readouterr().out
    assert "\nnothing was left to send: memo had every run before\n" in said
    (out / "model=gru-4,lr=0.02" / TRACKERS).unlink()  # as if it was killed before
    assert main([*command, "--track", "memo"]) == 0
    assert "\nsent 1 run to memo\n" in capsys.readouterr().out
    assert [run.name for run in Memo.opened] == ["model=gru-4,lr=0.02"]


def test_runs_that_are_not_sent_when_a_sweep_is_left_are_told(plain: Path) -> None:
    said: list[str] = []
    with RecordedRuns(Tracking(["memo"]), said.append) as sender:
        sender.leave_rest()
        sender.send([plain], "group")
    assert said == ["not yet sent to trackers: 1 pack; the same command sends them"]
    assert not Memo.calls


def test_run_that_cannot_be_read_stops_no_sweep(
    tmp_path: Path, plain: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copied = tmp_path / "copied"
    copytree(plain, copied)
    with RecordedRuns(Tracking(["memo"])) as sender:
        sender.send([tmp_path / "gone"], "group")
        sender.send([copied], "group")
    assert "gone and others were not sent" in caplog.text
    assert named("close") == ["finished"], "those after it are sent"


def test_pack_with_a_run_that_cannot_be_read_leaves_no_run_open(
    tmp_path: Path, plain: Path
) -> None:
    copied = tmp_path / "copied"
    copytree(plain, copied)
    with RecordedRuns(Tracking(["memo"])) as sender:
        sender.send([copied, tmp_path / "gone"], "group")
    assert named("close") == ["failed"]


def test_folder_that_is_called_like_a_package_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W&B makes a folder `wandb` where it runs."""

    class Absent(Tracker):
        extra, packages = "absent", ("absent_tracker",)

    (tmp_path / "absent_tracker").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingExtraError, match="absent_tracker"):
        Absent().check()


def test_mlflow_is_told_to_report_nothing_before_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "MLFLOW_DISABLE_TELEMETRY"
    stand_in = f"import os\nraise OSError(os.environ['{name}'])"
    (tmp_path / "mlflow.py").write_text(stand_in)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mlflow", raising=False)
    tracker = trackers.build("mlflow")
    for value in ("true", "false"):
        monkeypatch.setenv(name, value)
        if value == "true":
            monkeypatch.delenv(name)  # nobody has said anything
        with pytest.raises(OSError, match=value):
            tracker.open(TrackedRun(tmp_path, None), None)  # type: ignore[arg-type]
