"""The command line: one file a verb; a function's signature is its command line."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable, Sequence

from outlast.cli.exit_codes import MISTAKE, STOPPED
from outlast.errors import OutlastError
from outlast.version import __version__

VERBS = (
    "list", "show", "check", "train", "resume", "eval", "report", "reproduce", "bench", "doctor",
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; errors meant for people are printed without a traceback."""
    import tyro

    # threads that wait in a spin make small models many times slower on a machine that is shared;
    # read when torch is first imported, and by the processes of a study
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    if arguments and not arguments[0].startswith("-") and arguments[0] not in VERBS:
        from outlast.registry import suggest

        hint = suggest(arguments[0], VERBS)
        sys.stderr.write(f"error: there is no command {arguments[0]!r}{hint}\n")
        return MISTAKE
    if arguments == ["--version"]:
        sys.stdout.write(f"outlast {__version__}\n")
        return 0
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        if arguments and arguments[0] in VERBS:  # only that one is imported
            verb, *rest = arguments
            if verb in ("train", "resume"):
                rest = _current_flags(rest)
            code = tyro.cli(_function(verb), args=rest, prog=f"outlast {verb}")
        else:
            code = tyro.extras.subcommand_cli_from_dict(
                {verb: _function(verb) for verb in VERBS},
                args=arguments,
                prog="outlast",
                description="Train short, test long: models that outlast their training length.",
            )
    except OutlastError as error:
        sys.stderr.write(f"error: {error}\n")
        return MISTAKE
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        return STOPPED
    return int(code or 0)


def _current_flags(arguments: Sequence[str]) -> list[str]:
    """Flags under today's names: recorded commands may have those before settings were renamed.

    A setting that is given twice is an error: by both names, or by a flag and in a grid.
    """
    from outlast.errors import conflict
    from outlast.runs.spec import RENAMED

    current = {f"--{old}": f"--{new.replace('_', '-')}" for old, new in RENAMED.items()}
    typed: dict[str, str] = {}  # by today's flag, as it was typed
    for argument, following in zip(arguments, [*arguments[1:], "--"], strict=False):
        flag, _, value = argument.partition("=")
        if flag.startswith("--"):
            value = value or ("" if following.startswith("--") else following)
            name, text = current.get(flag, flag.replace("_", "-")), f"{flag} {value}".strip()
            if flag != typed.setdefault(name, text).partition(" ")[0]:
                raise conflict(name[2:].replace("-", "_"), typed[name], text)
    for axis in _grid_axes(arguments):
        name = RENAMED.get(axis, axis)
        if (flag := f"--{name.replace('_', '-')}") in typed:
            raise conflict(name, typed[flag], f"--grid {axis}=...")
    pairs = [argument.partition("=") for argument in arguments]
    return [current.get(flag, flag) + equals + value for flag, equals, value in pairs]


def _grid_axes(arguments: Sequence[str]) -> list[str]:
    """The names of settings behind every --grid."""
    axes, inside = [], False
    for argument in arguments:
        if argument.startswith("--"):
            inside, argument = argument.startswith("--grid"), argument.removeprefix("--grid=")
        if inside and not argument.startswith("--"):
            axes.append(argument.partition("=")[0].strip())
    return axes


def _function(verb: str) -> Callable[..., int | None]:
    main: Callable[..., int | None] = importlib.import_module(f"outlast.cli.{verb}_").main
    return main
