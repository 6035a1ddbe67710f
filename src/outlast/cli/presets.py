"""What other flags stand for, as far as these are not given: `--preset`, `--start-from`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outlast.runs.spec import RunSpec


def with_preset(arguments: Sequence[str], in_grid: Collection[str]) -> list[str]:
    """The words of a command with the flags of its preset, if it names one.

    `in_grid` are the names of what a grid has several values of.
    """
    name = _value_of("--preset", arguments)
    if name is None or _wants_help(arguments):
        return list(arguments)
    from outlast.errors import conflict, incompatible
    from outlast.models.presets import find_preset, find_training
    from outlast.runs.spec import RunSpec
    from outlast.specs import parse
    from outlast.workflow.presets import on_task

    preset = find_preset(parse(name))
    if (folder := _value_of("--start-from", arguments)) is not None:
        reason = "both give task and model; give the settings of the preset one by one"
        raise incompatible(f"--preset {name}", f"--start-from {folder}", reason)
    typed = _typed(arguments, in_grid)
    task = _value_of("--task", arguments)
    if isinstance(preset, RunSpec):
        flags = as_flags(preset if task is None else on_task(preset, task))
    else:
        if "task" not in typed:
            find_training(parse(name))  # raises: it is a model line alone
        if "model" in typed:
            model = _value_of("--model", arguments)
            second = "--grid model=..." if model is None else f"--model {model}"
            raise conflict("model", f"--preset {name}", second)
        flags = [["--model", name]]
    return _with_flags(arguments, flags, typed)


def with_start(arguments: Sequence[str], in_grid: Collection[str]) -> list[str]:
    """The words of a command with what it takes from the run it starts from, if it names one."""
    folder = _value_of("--start-from", arguments)
    if folder is None or _wants_help(arguments):
        return list(arguments)
    from outlast.arguments import as_path
    from outlast.reporting.run_facts import flag_words
    from outlast.runs.spec import seed_words
    from outlast.workflow.start import read_origin

    record = read_origin(as_path("start_from", folder))
    flags = [
        flag_words("task", record.short.task),
        flag_words("model", record.short.model),
        flag_words("seeds", seed_words(record.seeds).replace(" ", "")),
        flag_words("precision", record.settings.precision),
    ]
    return _with_flags(arguments, flags, _typed(arguments, in_grid))


def _with_flags(
    arguments: Sequence[str], flags: Sequence[Sequence[str]], typed: Collection[str]
) -> list[str]:
    """Words with those flags behind them that were not typed."""
    return [*arguments, *(word for flag in flags if _plain(flag[0]) not in typed for word in flag)]


def _typed(arguments: Sequence[str], in_grid: Collection[str]) -> set[str]:
    """The names of all flags, and of what a grid has values of."""
    names = {_plain(argument) for argument in arguments if argument.startswith("--")}
    return names | {axis.replace("_", "-") for axis in in_grid}


def _wants_help(arguments: Sequence[str]) -> bool:
    return not {"--help", "-h"}.isdisjoint(arguments)


def _plain(flag: str) -> str:
    """The name of a flag: ``--no-by-length`` and ``--by_length=...`` are ``by-length``."""
    name = flag.partition("=")[0].replace("_", "-")
    return name.removeprefix("--no-").removeprefix("--")


def _value_of(flag: str, arguments: Sequence[str]) -> str | None:
    """What stands behind a flag, if it is given."""
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        name, equals, value = argument.partition("=")
        if name.replace("_", "-") == flag:
            return value if equals else following
    return None


def as_flags(run: RunSpec) -> list[list[str]]:
    """A training as flags of `outlast train`; settings that are the default are left out."""
    from outlast.reporting.run_facts import changed_settings, flag_words

    flags = [flag_words("task", run.task), flag_words("model", run.model)]
    flags += [flag_words("method", method) for method in run.methods]
    changed = changed_settings(run.settings)
    return [*flags, *(flag_words(name.replace("_", "-"), value) for name, value in changed)]
