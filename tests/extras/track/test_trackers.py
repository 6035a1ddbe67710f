"""Each tracker has what the run folder has, read back by its own client; killed and resumed too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from shutil import copytree

import pytest
import tracker_files
from tracker_files import READERS, expected, memory, same

from outlast.errors import OutlastError
from outlast.runs.folder import TRACKERS
from outlast.runs.records import read_run
from outlast.trackers.base import TrackedRun
from outlast.trackers.lane import read_entries
from outlast.trackers.tracking import Tracking
from outlast.trackers.trackio import Trackio
from outlast.trackers.wandb import _steps as steps_in
from tiny_runs import wait_until

#: trains and kills itself with SIGKILL; each block waits until every tracker has taken it
SCRIPT = """
import os, signal, sys, time
import outlast

KILL_AT = int(sys.argv[2])

class Killer(outlast.Listener):
    def training(self, folder, progress):
        while not all(lane.jobs.empty() for lane in tracking.lanes):
            time.sleep(0.001)
        if progress.step == KILL_AT:
            time.sleep(1)  # trackio writes every half second
            os.kill(os.getpid(), signal.SIGKILL)

tracking = outlast.track(*sys.argv[3:])
outlast.fit(
    "composite(modulus=2, keys=32, queries=2, length=4)", "lstm > attention(heads=2) > mlp @ 8",
    sys.argv[1], "dat(switch=20)", seeds=[0, 1], device="cpu", steps=100, steps_per_block=1,
    checkpoint_every=40, probe_every=30, batch_size=2, callbacks=[tracking, Killer()],
    progress=False,
)
"""


def run_script(folder: Path, home: Path, kill_at: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SCRIPT, str(folder), str(kill_at)]
    environment = os.environ | tracker_files.environment(home)
    return subprocess.run(
        [*command, *tracker_files.lines(home)],
        env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trackers")


@pytest.fixture(scope="module", autouse=True)
def clients(home: Path):
    """The clients of this process look where the runs have written."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in tracker_files.environment(home).items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def killed(home: Path, clients: None) -> Path:
    """A run that was killed at step 75, past its checkpoint at 40, and then resumed."""
    folder = home / "killed"
    done = run_script(folder, home, kill_at=75)
    assert done.returncode == -signal.SIGKILL, done.stderr
    before = {name: reader(folder, home) for name, reader in READERS.items()}
    assert all(max(step for _, step in curves) > 40 for curves in before.values()), (
        "every tracker has steps that will be trained again"
    )
    command = [sys.executable, "-m", "outlast", "resume", str(folder), "--device", "cpu"]
    for line in tracker_files.lines(home):
        command += ["--track", line]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "tracker failed" not in done.stdout + done.stderr
    return folder


@pytest.mark.parametrize("name", READERS)
def test_killed_and_resumed_run_has_every_point_once(name: str, killed: Path, home: Path) -> None:
    curves = READERS[name](killed, home)
    assert {"loss/state", "learning_rate", "probe/3x", "event/switch", "seed_1/event/switch"} <= {
        curve for curve, _ in curves
    }
    assert same(curves, expected(killed))


def test_trackers_that_cannot_write_leave_the_run_whole_and_are_named(home: Path) -> None:
    nowhere, run = "/dev/null/nowhere", home / "broken"
    lines = [
        f'tensorboard(folder="{nowhere}")', f'mlflow(uri="sqlite:///{nowhere}/mlflow.db")',
        f'wandb(mode=offline, folder="{nowhere}")', "trackio",
    ]  # fmt: skip
    command = [sys.executable, "-m", "outlast", "train", "--device", "cpu", "--out", str(run)]
    command += ["--task", "parity(length=3)", "--model", "lstm > mlp @ 8", "--steps", "4"]
    for line in lines:
        command += ["--track", line]
    environment = os.environ | {"TRACKIO_DIR": nowhere}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    for line in lines:
        assert f"tracker failed: {line}: " in done.stdout
    assert done.stderr.count("has failed and is left out") == len(lines)
    assert (run / "results.json").exists()


def test_killed_sweep_has_every_point_of_every_run_once_when_it_has_gone_on(home: Path) -> None:
    out = home / "sweep"
    command = [sys.executable, "-m", "outlast", "sweep", "--task", "parity(length=2)"]
    command += ["--model", "lstm @ 4", "--grid", "lr=0.01,0.02,0.03", "--pack-seeds", "1"]
    command += ["--steps", "120", "--steps-per-block", "2", "--probe-every", "0"]
    command += ["--batch-size", "2", "--sequences", "8", "--lengths", "1", "--devices", "cpu"]
    command += ["--out", str(out), "--track", "tensorboard"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as first:
        # the first run has begun to be sent, and the last is not yet trained
        wait_until(lambda: any(out.glob("*/tensorboard/mean/*")) or first.poll() is not None, 300)
        assert first.poll() is None
        first.kill()
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "tracker failed" not in done.stdout + done.stderr
    runs = sorted(out.glob("lr=*"))
    assert len(runs) == 3
    for run in runs:
        assert same(tracker_files.tensorboard(run, home), expected(run))
        assert (run / "tensorboard" / "report" / "index.html").exists()


def test_tensorboard_shows_the_table_the_figure_and_the_page(killed: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(killed / "tensorboard" / "mean"))
    events.Reload()
    assert "accuracy by length" in events.Tags()["images"]
    (image,) = events.Images("accuracy by length")
    assert image.encoded_image_string.startswith(b"\x89PNG")
    table = events.Tensors("accuracy by length/text_summary")[0].tensor_proto.string_val[0]
    assert b"| seed | variant | length | multiple |" in table
    switches = events.Tensors("events/text_summary")
    assert {event.step for event in switches} == {20}
    assert (killed / "tensorboard" / "report" / "index.html").exists()


def test_mlflow_has_one_finished_run_with_table_figure_and_page(killed: Path, home: Path) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{home}/mlflow.db")
    experiment = client.get_experiment_by_name("outlast")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["steps"] == "100"
    files = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert {"accuracy-by-length.csv", "accuracy.png", "report"} <= files
    pages = {file.path for file in client.list_artifacts(run.info.run_id, "report")}
    assert "report/index.html" in pages


def test_wandb_has_two_folders_of_one_run_with_table_figure_and_page(
    killed: Path, home: Path
) -> None:
    folders = list((home / "wandb").glob(f"offline-run-*-{memory(killed, 'wandb')['id']}"))
    assert len(folders) == 2
    records = tracker_files.wandb_records(killed, home)
    items = [r["history"]["item"] for r in records if r["type"] == "history"]
    (last,) = [item for item in items if "accuracy by length._type" in item]
    assert last["accuracy by length._type"] == "table-file"
    assert last["accuracy by length, figure._type"] == "image-file"
    pages = [r["artifact"] for r in records if r["type"] == "artifact"]
    (page,) = [artifact for artifact in pages if artifact["type"] == "report"]
    assert "index.html" in {file["path"] for file in page["manifest"]["contents"]}


def test_trackio_has_the_table_the_figure_and_the_page(killed: Path) -> None:
    import trackio

    (last,) = [log for log in tracker_files.trackio_logs(killed) if "accuracy by length" in log]
    assert last["accuracy by length"]["_type"] == "trackio.table"
    assert "accuracy by length, figure" in last
    assert [run.name for run in trackio.Api().runs("tests")] == ["killed"]


def test_trackio_keeps_two_runs_of_one_name_apart(killed: Path, tmp_path: Path) -> None:
    folders, line = [tmp_path / place / "same" for place in ("here", "elsewhere")], "trackio"
    for folder in folders:
        copytree(killed, folder)
        (folder / TRACKERS).unlink()
        Tracking([line]).send([folder], "")
    entries = [read_entries(folder)[line] for folder in folders]
    assert [entry.memory["name"] for entry in entries] == ["same", "same-2"]
    assert entries[0].memory["id"] != entries[1].memory["id"]
    lost = {"name": "same", "id": "of a run that trackio has not"}
    with pytest.raises(OutlastError, match="another run that is called same"):
        Trackio().open(TrackedRun(folders[0], read_run(folders[0])), lost)


def test_client_that_does_not_say_what_it_has_is_an_error_and_doubles_nothing(home: Path) -> None:
    damaged = home / "damaged.wandb"
    damaged.write_text("garbage")
    with pytest.raises(OutlastError, match=r"wandb leet inspect .* exit code 1: .*bad header"):
        list(steps_in(damaged))
    other = Trackio()
    other.run = object()  # a version that keeps it elsewhere
    with pytest.raises(OutlastError, match="does not say which steps it has"):
        other._last_step()
