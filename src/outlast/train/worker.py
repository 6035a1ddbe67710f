"""The life of a hand: a process that steps the rows it is given (`train/workers.py`)."""

from __future__ import annotations

import logging
import os
import traceback
import warnings
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from queue import SimpleQueue
from threading import Thread

import torch

from outlast.machine import keep_freed_memory
from outlast.registry import tasks
from outlast.train.seeds import SeedState
from outlast.train.step import Stepper
from outlast.train.workers import READY, Done, Orders, Work, bare, dressed


class StepServer:
    """A model without weights of its own, and how to step any rows of it."""

    def __init__(self, orders: Orders) -> None:
        torch.set_num_threads(orders.threads)
        torch.set_float32_matmul_precision(orders.products)
        keep_freed_memory()
        # one seed of each run: there is then an average where any of them keeps one
        runs = [replace(run, seeds=run.seeds[:1]) for run in orders.runs]
        self.mould = SeedState.create(runs, torch.device("cpu"))
        self.parts = tasks.build(runs[0].task).parts
        self.bf16 = runs[0].settings.precision == "bf16"
        self.by_length = all(run.settings.by_length for run in runs)

    def step(self, work: Work) -> Done:
        """The steps of a block."""
        rows = self.mould.part([0] * len(work.plan.lengths))
        rows.write(work.rows)
        stepper = Stepper(rows, self.parts, self.bf16, by_length=self.by_length)
        metrics = stepper.run(work.data, work.plan)
        return Done(rows.read(), metrics)


def main(number: int) -> None:
    """Do what comes down the line of this number, until it is closed."""
    warnings.simplefilter("ignore")  # whoever gives the work has said it
    logging.disable()
    os.set_inheritable(number, False)
    line = Connection(number)
    inbox: SimpleQueue[Orders | Work] = SimpleQueue()
    Thread(target=_listen, args=(line, inbox), daemon=True).start()
    worker: StepServer | None = None
    while True:
        answer: Done | Exception = READY
        try:
            message = dressed(inbox.get())
            if isinstance(message, Orders):
                worker = StepServer(message)
            elif worker is not None:
                answer = worker.step(message)
        except Exception as error:
            answer = sendable(error)
        with suppress(OSError):  # nobody is there any more, as `_listen` finds too
            line.send(bare(answer))


def _listen(line: Connection, inbox: SimpleQueue[Orders | Work]) -> None:
    """Take in what comes, also in the middle of work: where the line is closed, all is over."""
    try:
        while True:
            inbox.put(line.recv())
    finally:
        os._exit(0)


def sendable(error: Exception) -> Exception:
    """The error itself, or its words where it does not travel; with where it came from."""
    note = "in a process that stepped seeds:\n" + "".join(traceback.format_exception(error))
    try:
        same: Exception = ForkingPickler.loads(ForkingPickler.dumps(error))
    except Exception:
        same = RuntimeError(f"{type(error).__name__}: {error}")
    same.add_note(note)
    return same
