"""The functions of `outlast`: their arguments, and what is true of their results."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from api_values import (
    PARITY,
    Argument,
    as_int,
    either,
    instance,
    nothing,
    number,
    sound,
    whole,
)
from torch import Tensor, nn

import outlast
from outlast.models import Model
from outlast.specs import Layout, Spec, parse_layout
from outlast.tasks import Task

LSTM, HYBRID = "lstm @ 4", "lstm > attention(heads=2) @ 4"
FEW = {"steps": 2, "steps_per_block": 1, "checkpoint_every": 1, "probe_every": 0, "warmup": 0}
FOREVER, MOST, WIDE = 10**12, 2**31 - 1, 2**62


@dataclass(frozen=True)
class Call:
    """A public function, its arguments, and a check of its result.

    `clash` says whether arguments that are accepted one by one exclude each other. A `costly` call
    is made only with an argument that must be refused.
    """

    function: Callable[..., Any]
    arguments: dict[str, Argument]
    check: Callable[[Any], bool] = lambda result: True
    clash: Callable[[dict[str, Any]], bool] = lambda arguments: False
    costly: bool = False


@cache
def task() -> Task:
    return outlast.task(PARITY)


@cache
def model() -> Model:
    return outlast.model(HYBRID, task(), seed=0)


@cache
def run_folder() -> Path:
    folder = Path(tempfile.mkdtemp()) / "run"
    outlast.fit(PARITY, LSTM, folder, seeds=[0, 2], batch_size=2, device="cpu", **FEW)
    return folder


class Attn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = Attn()


def net() -> nn.Module:
    with torch.random.fork_rng():  # what is compared is the state before a refusal and after it
        return nn.Sequential(Layer(), nn.Linear(2, 2))


def zeros(tokens: Tensor) -> Tensor:
    return torch.zeros(*tokens.shape, 2)


def is_text(*words: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value in words


# ---- arguments -----------------------------------------------------------------------------------

LINE = sound(
    PARITY,
    lambda: Spec("parity"),
    lambda: task(),
    odd=("party", "parity(", "parity(1, 2, 3)", "parity(length=x)"),
    accepts=either(is_text(PARITY), instance(Task), lambda v: type(v) is Spec),
    large=False,
)
LAYOUT = sound(
    LSTM,
    lambda: parse_layout(LSTM),
    odd=("lsmt", "lstm @", "0 x (lstm)", ">", "lstm @ 0"),
    accepts=either(is_text(LSTM), instance(Layout)),
    large=False,
)
DEVICE = sound(
    "cpu",
    lambda: torch.device("cpu"),
    odd=("gpu", "cuda:99", "meta", "cpu:x"),
    accepts=either(is_text("cpu"), lambda v: isinstance(v, torch.device) and v.type == "cpu"),
    large=False,
)
FLAG = sound(True, False, accepts=lambda v: isinstance(v, bool))
FOLDER = sound(
    lambda: run_folder(),
    lambda: str(run_folder()),
    odd=("missing", "run.json", "/", "/dev/null"),
    accepts=lambda v: isinstance(v, str | Path) and str(v) == str(run_folder()),
    large=False,
)


def is_new_path(value: Any) -> bool:
    short = isinstance(value, str | Path) and 0 < len(str(value)) < 200
    return short and not set(str(value)) & {"\0", "\ud800"}


def is_method(value: Any) -> bool:
    if is_text("ema", "ema(0.9)")(value):
        return True
    if isinstance(value, Tensor | np.ndarray):
        return value.shape == (0,) if not getattr(value, "is_nested", False) else False
    return isinstance(value, tuple | list | dict | set) and all(is_method(v) for v in value)


def are_seeds(value: Any) -> bool:
    if isinstance(value, str):
        return value in ("0", "3", "0-1")
    if isinstance(value, Iterator):  # those that are drawn hold 1 and 2
        return True
    if isinstance(value, np.ndarray | Tensor):
        plain = not isinstance(value, Tensor) or not (value.is_nested or value.is_sparse)
        value = list(value) if plain and value.ndim else [None]
    if not isinstance(value, list | tuple | range | set | dict):
        return False
    numbers = [as_int(number) for number in value]
    return 0 < len(set(numbers)) == len(numbers) and all(whole(0, 2**64 - 1)(n) for n in numbers)


def are_callbacks(value: Any) -> bool:
    if not isinstance(value, list | tuple):
        return False
    return all(isinstance(callback, outlast.Listener) for callback in value)


def is_ladder(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        value = list(value) if value.ndim == 1 else []
    rungs = value if isinstance(value, list | tuple | range | set | dict) else []
    return len(rungs) > 0 and all(number(1e-300, 1e9)(rung) for rung in rungs)


def is_step(value: Any) -> bool:
    is_share = isinstance(value, float | np.floating) and 0 <= value <= 1
    return bool(is_share) or whole(0, FOREVER)(value)


def is_switch(value: Any) -> bool:
    words = is_text("0", "3", "below(0.5)", "plateau")
    return is_step(value) or words(value) or (type(value) is Spec and value.name == "plateau")


def needs_steps(arguments: dict[str, Any]) -> bool:
    shares = [isinstance(arguments[name], float | np.floating) for name in ("switch", "latest")]
    return arguments["steps"] is None and any(shares)


def chooses_attention(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(chooses_attention, value)) and all(map(chooses_attention, value))
    return value in (Attn, nn.Linear) if isinstance(value, type) else is_text("*.attn")(value)


CALLS: dict[str, Call] = {
    "task": Call(outlast.task, {"spec": LINE}, lambda built: isinstance(built, Task)),
    "model": Call(
        outlast.model,
        {
            "layout": LAYOUT,
            "task": LINE,
            "seed": sound(0, None, 2**63, accepts=either(nothing, whole(0, 2**64 - 1))),
        },
        lambda built: isinstance(built, Model),
    ),
    "fit": Call(
        lambda **arguments: outlast.fit(**FEW, **arguments),
        {
            "task": LINE,
            "model": LAYOUT,
            "out": sound("run", odd=("", "a\0b", "a" * 5000), accepts=is_new_path),
            "methods": sound(
                (), None, "ema(0.9)", ["ema"], odd=("dta", ["dat", 3]),
                accepts=either(nothing, is_method), large=False,
            ),
            "preset": sound(None, odd=("serial", "raech", 3), accepts=nothing),
            "start_from": sound(None, odd=("no_run", "", 3), accepts=nothing),
            "seeds": sound(
                [0], "0-1", range(2), odd=([0, 0], [-1], [True], "a", [2**64]),
                accepts=either(nothing, are_seeds), large=False,
            ),
            "device": DEVICE,
            "overwrite": FLAG,
            "progress": sound(False, accepts=either(nothing, FLAG.accepts)),
            "callbacks": sound(
                (), lambda: [outlast.Listener()], odd=(outlast.Listener, [outlast.Listener]),
                accepts=are_callbacks,
            ),
            "batch_size": sound(2, odd=(0, 2.5), accepts=whole(1), large=False),
            "lr": sound(0.01, odd=(0, -1.0), accepts=number(1e-30, 1e30), large=False),
        },
        costly=True,
    ),
    "evaluate": Call(
        outlast.evaluate,
        {
            "model": sound(
                lambda: zeros, lambda: model(), accepts=lambda v: v is zeros or v is model(),
                odd=(LSTM, Model), large=False, called=True,
            ),
            "task": LINE,
            "ladder": sound(
                (1,), [1, 2.5], lambda: np.array([1.0, 2.0]), odd=([], [0], "1", [-1.0]),
                accepts=is_ladder, large=False,
            ),
            "sequences": sound(
                4, lambda: np.int8(2), accepts=either(nothing, whole(1)), odd=(0, 2.5), large=False
            ),
            "device": DEVICE,
            "ceiling": sound(None, 100, accepts=either(nothing, whole(1))),
        },
        lambda rows: all(row["exact"] is None or 0 <= row["exact"]["joint"] <= 1 for row in rows),
    ),
    "load": Call(
        outlast.load,
        {
            "folder": FOLDER,
            "seed": sound(0, 2, None, odd=(1,), accepts=lambda v: v is None or as_int(v) in (0, 2)),
        },
        lambda built: isinstance(built, Model) and not built.training,
    ),
    "results": Call(
        outlast.results,
        {"folder": FOLDER, "as_frame": FLAG},
        lambda rows: len(rows) > 0,
        clash=lambda arguments: arguments["as_frame"],  # pandas may not be installed
    ),
    "report": Call(
        outlast.report,
        {"folders": FOLDER, "out": sound("page", accepts=either(nothing, is_new_path))},
        costly=True,
    ),
    "delay": Call(
        outlast.delay,
        {
            "model": sound(lambda: net(), accepts=instance(nn.Sequential)),
            "where": sound(
                "*.attn", Attn, ["*.attn"], odd=([3], b"*.attn", ["nope"], nn.LSTM, Attn()),
                accepts=chooses_attention,
            ),
            "mode": sound(
                "skip", "freeze", "ramp", "detach", odd=("Skip", ["skip"]),
                accepts=is_text("skip", "freeze", "ramp", "detach"),
            ),
            "switch": sound(
                *(3, 0.5, "below(0.5)", "plateau", Spec("plateau")),
                odd=("bellow", "[1]", "below(-1)", "-3", "0.5.5"),
                accepts=is_switch, large=False,
            ),
            "steps": sound(10, None, accepts=either(nothing, whole(1, FOREVER))),
            "latest": sound(None, 8, 0.5, accepts=either(nothing, is_step)),
            "ramp": sound(5, 0, accepts=whole(0, FOREVER)),
        },
        lambda built: "attn" in repr(built),
        clash=needs_steps,
    ),
}  # fmt: skip
