"""Lines of tasks, models and methods: each is refused, or it builds and runs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from random import Random
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import torch
import values
from oracle import Case, check

from outlast.methods.base import Control, Setup
from outlast.models import build_model
from outlast.models.build import canonical_layout
from outlast.registry import KINDS, REQUIRED, Registry, methods, mixers, presets, tasks
from outlast.specs import Spec, parse

#: tokens and answers of the task for which models are built
VOCABULARY, CLASSES = 7, 2
SETUP = Setup(100, ("state", "recall", "running"), (2, 25), 60)


def spec_case(random: Random) -> Case:
    """A line of a task, a model or a method."""
    kind = random.choice(("task", "model", "model", "method"))
    line = {"task": _task, "model": _model, "method": _method}[kind](random)
    match random.randrange(10):
        case 0 | 1 | 2:
            line = values.mutated(random, line)
        case 3:
            line = random.choice((values.raw(random), values.nested(random, line)))
    action = {"task": use_task, "model": use_model, "method": use_method}[kind]
    return Case(f"{kind} {line!a}", lambda home: action(line))


# ---- lines ---------------------------------------------------------------------------------------


def _task(random: Random) -> str:
    return _spec(random, tasks)


def _method(random: Random) -> str:
    return _spec(random, methods)


def _model(random: Random) -> str:
    width = random.choice(("", " @ 4", " @ 8", " @ 8", f" @ {values.number(random)}"))
    options = {
        "embedding": random.choice((values.number(random), f"uniform({values.number(random)})")),
        "norm": random.choice(("rms", "layer", "batch")),
        "residual": random.choice(("plain", "normalised")),
        "dropout": values.number(random),
        "head": values.number(random),
    }
    chosen = random.sample(sorted(options), random.choice((0, 0, 0, 1, 2)))
    written = "".join(f", {name}={options[name]}" for name in chosen)
    return _node(random, 3) + width + (written if width else "")


def _node(random: Random, depth: int) -> str:
    choice = random.randrange(10) if depth else 0
    if choice < 4:
        return _spec(random, random.choice((mixers, mixers, mixers, presets)))
    nodes = [_node(random, depth - 1) for _ in range(random.choice((1, 2, 3)))]
    if choice < 8:
        return random.choice((" > ", " | ")).join(nodes)
    return f"{random.choice(('2', '3', values.number(random)))} x ({nodes[0]})"


def _spec(random: Random, registry: Registry, depth: int = 2) -> str:
    """An item with some of its arguments, most of them of the right kind."""
    name = random.choice(registry.names())
    parameters = registry.entry(name).parameters(registry.caller_arguments)
    needed = [p for p in parameters if p.default is REQUIRED]
    others = [p for p in parameters if p not in needed]
    some = random.sample(others, min(len(others), random.choice((0, 1, 1, 2, 3))))
    arguments = []
    for p in [*needed, *some]:
        if p.annotation is Spec and p.name in KINDS and depth and random.random() < 0.9:
            value = _spec(random, KINDS[p.name], depth - 1)
        else:
            value = _value(random, p.annotation)
        arguments.append(f"{p.name}={value}")
    return f"{name}({', '.join(arguments)})" if arguments or random.random() < 0.1 else name


def _value(random: Random, annotation: Any) -> str:
    if random.random() < 0.1:
        return random.choice((values.number(random), values.word(random)))
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return _value(random, random.choice(inside))
    if origin is Literal:
        return str(random.choice(inside))
    if origin is dict:
        parts = random.sample(("state", "recall", "running", "x"), 2)
        return f"weights({', '.join(f'{p}={values.number(random)}' for p in parts)})"
    if annotation is Spec:
        name = random.choice(("below", "plateau", "rope", "x"))
        return f"{name}({values.number(random)})"
    if annotation is str:
        return random.choice(("state", "recall", "running", "x"))
    words = {bool: random.choice(("true", "false")), NoneType: "none"}
    return words.get(annotation) or values.number(random)


# ---- what must hold of a line that is accepted ---------------------------------------------------


def check_line(line: str, canonical: Callable[[str], object]) -> None:
    """The canonical line is read as itself."""
    written = str(canonical(line))
    check(str(canonical(written)) == written, f"{written!r} is not read as it is written")


def use_task(line: str) -> None:
    """Build a task, draw a few of its shortest sequences, and solve them."""
    task = tasks.build(line)
    check_line(line, tasks.canonical)
    check(task.vocabulary >= task.classes >= 1, f"{task.vocabulary} tokens, {task.classes} answers")
    batch = task.sample(task.lengths[0], 2, torch.Generator().manual_seed(0))
    check(batch.inputs.shape[1] <= task.tokens(task.lengths[0]), "more tokens than were said")
    check(batch.inputs.min() >= 0 and batch.inputs.max() < task.vocabulary, "a token out of range")
    for row in range(2):
        answers = [-100 if a is None else a for a in task.solve(batch.inputs[row].tolist())]
        check(answers == batch.targets[row].tolist(), f"its answers are not {answers}")


def use_model(line: str) -> None:
    """Build a model and run it forward and backward on three tokens."""
    model = build_model(line, VOCABULARY, CLASSES, seed=0)
    check_line(line, canonical_layout)
    tokens = torch.tensor([[1, 2, 6][: model.ceiling]])
    logits, _ = model(tokens)
    outputs = VOCABULARY if model.layout.head is None else model.layout.head
    check(logits.shape == (1, tokens.shape[1], outputs), f"logits are {tuple(logits.shape)}")
    check(bool(logits.isfinite().all()), "logits are not finite")
    if model.size < 10**6:
        logits.sum().backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        check(all(bool(g.isfinite().all()) for g in gradients), "gradients are not finite")


def use_method(line: str) -> None:
    """Build a method and let it control and observe a short run."""
    method = methods.build(line)
    check_line(line, methods.canonical)
    state = method.begin(SETUP)
    for step in range(0, SETUP.steps, 10):
        control = Control.plain(SETUP)
        method.control(step, state, control)
        numbers = [*control.loss_weights.values(), *control.gate.values(), *control.rate.values()]
        check(all(math.isfinite(x) and x >= 0 for x in numbers), f"a control of {numbers}")
        low, high = control.lengths
        check(1 <= low <= high <= SETUP.lengths[1], f"lengths from {low} to {high}")
        losses = {part: [1 / (step + 1)] * 10 for part in SETUP.parts}
        method.observe(step + 10, losses, state)
        check(state == json.loads(json.dumps(state, allow_nan=False)), f"a state of {state}")
    check(parse(str(method.spec)) == method.spec, "its spec is not read as it is written")
