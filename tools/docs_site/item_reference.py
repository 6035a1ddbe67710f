"""A page for each kind of item: what `outlast show` says of every registered one."""

from __future__ import annotations

import inspect

import torch

from docs_site.markdown import code, from_docstring, table
from outlast.arguments import to_value
from outlast.cli.explaining import accepted, meanings
from outlast.errors import OutlastError
from outlast.registry import OURS, REQUIRED, Entry, Registry
from outlast.reporting.claims import OPEN, Verdict
from outlast.specs import write_value
from outlast.studies import Study
from outlast.tasks import Task, draw

#: what each kind is, and how one is written
ABOUT = {
    "task": "What a model learns. Written as `--task 'parity(length=40)'`.",
    "mixer": "How tokens exchange information: what stands between `>` and `|` in a model line.",
    "scheme": "How position enters attention. Written as `attention(rope)`.",
    "weights": "How scores of attention become weights. Written as `attention(weights=scalable)`.",
    "method": "What changes while a model trains. Written as `--method 'dat(switch=0.3)'`.",
    "preset": "Names for model lines that come up often. Written as `--model 'serial @ 64'`.",
    "study": "A question with its arms, seeds and claims. Run by `outlast reproduce NAME`.",
    "tracker": "Where curves of a run are shown too. Written as `--track 'wandb(mode=offline)'`.",
}


def item_page(registry: Registry) -> str:
    """All items of a kind that are part of Outlast: an overview, then one by one."""
    entries = [registry.entry(name) for name in registry.names()]
    entries = [entry for entry in entries if entry.source == OURS]
    overview = [(f"[{code(e.name)}](#{e.name})", e.summary) for e in entries]
    pieces = [
        f"# {registry.plural.capitalize()}\n",
        f"{ABOUT[registry.kind]} This page is generated from the code; `outlast show NAME` prints "
        "the same in the terminal.\n",
        table(["name", "what it is"], overview),
        *(_item(registry, entry) for entry in entries),
    ]
    return "\n".join(pieces)


def _item(registry: Registry, entry: Entry) -> str:
    pieces = [f"## {entry.name}\n", from_docstring(_documentation(registry, entry))]
    if paper := getattr(entry.factory, "paper", ""):
        pieces.append(f"Paper: {paper}\n")
    pieces.append(_arguments(registry, entry))
    if registry.kind == "task":
        pieces.append(_example(registry, entry))
    elif registry.kind == "study":
        pieces += [_study(entry.factory(scale=scale)) for scale in ("demo", "paper")]
    elif registry.kind == "preset":
        pieces.append(f"Stands for `{entry.factory()}`.\n")
    return "\n".join(pieces)


def _documentation(registry: Registry, entry: Entry) -> str:
    """The docstring of the item's file; of the item itself where a file has several."""
    home = inspect.getmodule(entry.factory)
    shared = [n for n in registry.names() if inspect.getmodule(registry.entry(n).factory) is home]
    own = inspect.getdoc(entry.factory) or ""
    if registry.kind in ("preset", "tracker") or home is None:
        return own
    text = inspect.getdoc(home) or own
    return f"{own.partition(chr(10) + 'Args:')[0].strip()}\n\n{text}" if len(shared) > 1 else text


def _arguments(registry: Registry, entry: Entry) -> str:
    meaning, rows = meanings(entry.factory), []
    for parameter in entry.parameters(registry.caller_arguments):
        default = "(needed)"
        if parameter.default is not REQUIRED:
            default = code(write_value(to_value(parameter.default)))
        words = accepted(registry, entry, parameter)
        rows.append((code(parameter.name), default, words, meaning.get(parameter.name, "")))
    if not rows:
        return "It has no arguments.\n"
    return table(["argument", "default", "accepts", "what it means"], rows)


def _example(registry: Registry, entry: Entry) -> str:
    """What a row of the task looks like, and its sizes."""
    try:
        task: Task = registry.build(entry.name)
    except OutlastError:
        return ""  # it needs a file of the user's
    low, high = task.lengths
    short = max(task.shortest, min(4 * task.multiple, high))
    batch = task.sample(short, 1, torch.Generator().manual_seed(0))
    return (
        f"Asks: {', '.join(task.asked)}. Trained on lengths {low} to {high}. {task.vocabulary} "
        f"tokens, {task.classes} answers. A row of length {short}:\n\n"
        f"```text\n{draw(task, batch)}\n```\n"
    )


def _study(study: Study) -> str:
    default = {arm.name for arm in study.choose()}
    arms = [
        (code(arm.name), arm.label, code(" + ".join(arm.run.methods)),
         "yes" if arm.name in default else "no")
        for arm in study.arms
    ]  # fmt: skip
    claims = [
        (claim.text, Verdict(claim, OPEN, None, 0, "").expected, code(claim.arm),
         f"{claim.multiple:g} x")
        for claim in study.claims
    ]  # fmt: skip
    return "\n".join(
        [
            f"### {study.name}: {study.scale}\n",
            f"{study.title}: {study.question}\n",
            f"```text\noutlast reproduce {study.name} --scale {study.scale}\n```\n",
            table(["arm", "label", "method", "by default"], arms),
            table(["claim", "expected", "arm", "length"], claims) if claims else "",
        ]
    )
