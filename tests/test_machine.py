"""The machine: device, precision, signals, cores and free memory, in containers too."""

from __future__ import annotations

import logging
import os
import pty
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import outlast.machine as machine
from outlast.errors import OutlastError
from outlast.machine import (
    cores,
    free_memory,
    least_level,
    memory_left,
    pick_device,
    precision,
    signals,
)
from tiny_runs import CPU

CUDA = torch.device("cuda")

# ---- device and precision ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpu", "meta", "mps", "cuda:99", "cpu:x", ""])
def test_error_names_a_device_that_is_not_there(name: str) -> None:
    with pytest.raises(OutlastError, match=f"device={name}: "):
        pick_device(name)


def test_auto_takes_the_gpu_where_there_is_one() -> None:
    assert pick_device("cpu").type == "cpu"
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


def test_least_level_lasts_as_long_as_its_context(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("outlast.kernels")
    for level in (logging.WARNING, logging.INFO):  # a logger that is quieter already stays so
        with least_level("outlast.kernels", logging.WARNING), least_level("outlast.kernels", level):
            log.warning("inside")
            log.info("unheard")
    with suppress(OutlastError), least_level("outlast.kernels", logging.ERROR):
        log.warning("unheard")
        raise OutlastError("an error ends it too")
    log.warning("after")
    assert caplog.messages == ["inside", "inside", "after"]


@pytest.mark.parametrize("outside", ["highest", "high"])
def test_precision_lasts_as_long_as_its_context(outside: str) -> None:
    with precision("tf32" if outside == "high" else "fp32", CPU):
        for name, on_cpu, on_gpu in (
            ("fp32", "highest", "highest"),
            ("tf32", "high", "high"),
            ("auto", "highest", "high"),
            ("bf16", "highest", "high"),
        ):
            for device, inside in ((CPU, on_cpu), (CUDA, on_gpu)):
                with precision(name, device):
                    assert torch.get_float32_matmul_precision() == inside
                assert torch.get_float32_matmul_precision() == outside


# ---- signals -----------------------------------------------------------------------------------


def handlers() -> list[object]:
    return [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]


def test_signal_is_kept_and_a_second_interrupt_raises() -> None:
    before = handlers()
    sent = [signal.SIGTERM, signal.SIGTERM, signal.SIGHUP, signal.SIGHUP, signal.SIGINT]
    with signals() as asked:
        for number in sent:
            os.kill(os.getpid(), number)
        assert asked == sent
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert handlers() == before


def test_hangup_stays_ignored_under_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals() as asked:
            os.kill(os.getpid(), signal.SIGHUP)
            assert asked == []
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("lost", [True, False], ids=["closed terminal", "open terminal"])
def test_output_after_a_hangup_is_an_error_of_nobody(lost: bool) -> None:
    """A closed terminal is left. One that is still open is written to."""
    pid, terminal = pty.fork()
    if pid == 0:  # pragma: no cover
        code = 1
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also if the tests run under nohup
        try:
            with signals() as asked:
                os.write(1, b"listening")
                while not asked:
                    time.sleep(0.01)
                os.write(1, b"saved")
                os.write(2, b"saved")
                code = 7
        finally:
            os._exit(code)
    assert os.read(terminal, 9) == b"listening"
    if lost:
        os.close(terminal)  # the system sends the signal
    else:
        os.kill(pid, signal.SIGHUP)
        assert os.read(terminal, 5) == b"saved"
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def test_signals_are_left_alone_in_another_thread() -> None:
    def inside() -> list[object]:
        with signals():
            return handlers()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(inside).result() == handlers()


# ---- cores -------------------------------------------------------------------------------------


def test_cores_are_limited_by_control_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the cores a process is bound to and by its time on them, in both versions of groups."""
    system, container = tmp_path / "proc", tmp_path / "cgroup"

    def write(path: str, text: str) -> int:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"{text}\n")
        return cores(system, container)

    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(12)), raising=False)
    assert cores(system, container) == 12
    assert write("proc/self/cgroup", "1:cpu,cpuacct:/box\n0::/job/step") == 12
    assert write("cgroup/job/step/cpu.max", "max 100000") == 12
    assert write("cgroup/job/cpu.max", "750000 100000") == 8
    assert write("cgroup/job/step/cpu.max", "50000 100000") == 1
    assert write("cgroup/job/step/cpu.max", "nonsense") == 8
    assert write("cgroup/cpu/box/cpu.cfs_period_us", "100000") == 8
    assert write("cgroup/cpu/box/cpu.cfs_quota_us", "-1") == 8
    assert write("cgroup/cpu/box/cpu.cfs_quota_us", "300000") == 3
    monkeypatch.delattr("os.sched_getaffinity")  # as on a Mac
    assert cores(tmp_path, tmp_path) == 64


@pytest.mark.parametrize(("threads", "usable"), [(1, 1), (16, 3)])
def test_usable_threads_are_no_more_than_cores(
    threads: int, usable: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "cores", lambda: 3)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert machine.usable_threads() == usable


# ---- free memory -------------------------------------------------------------------------------


def test_free_memory_is_a_sensible_number() -> None:
    assert 2**20 < free_memory(CPU) < 2**50


def test_memory_that_torch_holds_idle_on_a_gpu_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (70, 100))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 20)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 10)
    assert free_memory(CUDA) == 80


def test_free_memory_counts_caches_and_the_limit_of_a_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "SYSTEM", tmp_path)
    monkeypatch.setattr(machine, "CONTAINER", tmp_path)
    (tmp_path / "meminfo").write_text("MemTotal: 900 kB\nMemFree: 10 kB\nMemAvailable: 600 kB\n")
    assert free_memory(CPU) == 600 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory(CPU) == 600 * 1024
    (tmp_path / "memory.max").write_text("500000\n")
    (tmp_path / "memory.current").write_text("400000\n")
    (tmp_path / "memory.stat").write_text("anon 300000\ninactive_file 60000\nactive_file 1\n")
    assert free_memory(CPU) == 160000
    (tmp_path / "meminfo").unlink()
    (tmp_path / "memory.max").unlink()
    assert 2**20 < free_memory(CPU) < 2**50


def test_memory_is_limited_by_every_group_of_the_process(tmp_path: Path) -> None:
    """In both versions: by its own group, by those above it, and by no other."""
    system, container = tmp_path / "proc", tmp_path / "cgroup"

    def left(*lines: str) -> float | None:
        (system / "self").mkdir(parents=True, exist_ok=True)
        (system / "self" / "cgroup").write_text("\n".join(lines) + "\n")
        return memory_left(system, container)

    def group(path: str, names: str, *values: object) -> None:
        (container / path).mkdir(parents=True, exist_ok=True)
        for name, value in zip(names.split(), values, strict=True):
            (container / path / f"memory.{name}").write_text(f"{value}\n")

    assert memory_left(system, container) is None
    new, old = "max current stat", "limit_in_bytes usage_in_bytes stat"
    group("jobs", new, 9000, 5000, "anon 1\ninactive_file 500")
    group("jobs/one", new, "max", 100, "inactive_file 0")
    group("jobs/one/step", new, 8000, 100, "inactive_file 0")
    group("jobs/other", new, 10, 10, "inactive_file 0")
    group("jobsworth", new, 10, 10, "inactive_file 0")
    assert left("0::/jobs/one/step") == 4500
    assert left("1:name=systemd:/jobs/other", "0::/jobs/one") == 4500
    assert left("0::/elsewhere") is None  # a group that is not shown here
    assert left("nonsense") is None
    stat = "inactive_file 7\ntotal_inactive_file 300"
    group("memory", old, 2**63 - 4096, 0, "total_inactive_file 0")
    group("memory/box", old, 4000, 1000, stat)
    group("memory/box/in", old, 5000, 2500, stat)
    lines = ["4:cpu,memory:/box/in", "3:devices:/jobs"]
    assert left(*lines, "0::/") == 2800
    assert left(*lines, "0::/jobs") == 2800
    group("memory/box/in", old, 500, 2500, stat)
    assert left(*lines) == 0
