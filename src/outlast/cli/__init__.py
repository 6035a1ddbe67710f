"""The command line: one file a verb; a function's signature is its command line."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable, Sequence

from outlast.cli.exit_codes import MISTAKE, NO_READER, STOPPED
from outlast.errors import OutlastError, shortened
from outlast.version import __version__

DESCRIPTION = """Train short, test long.

- outlast VERB --help: about a verb
- outlast --version: the version
- outlast completion bash: Tab completion"""
VERBS = (
    "list", "show", "check", "train", "sweep", "resume", "eval", "analyse", "report", "view",
    "export", "reproduce", "bench", "doctor", "completion",
)  # fmt: skip

#: flags of `train`, `sweep`, `resume` and `reproduce` that may be given several times
REPEATED = ("--method", "--grid", "--track")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; errors meant for people are printed without a traceback."""
    import tyro

    # threads that wait in a spin make small models many times slower on a machine that is shared;
    # read when torch is first imported, and by the processes of a study
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    arguments = _usual_words(list(sys.argv[1:] if argv is None else argv))
    if arguments and not arguments[0].startswith("-") and arguments[0] not in VERBS:
        from outlast.registry import suggest

        hint = suggest(arguments[0], VERBS)
        return _refuse(f"there is no command {shortened(repr(arguments[0]))}{hint}")
    if arguments == ["--version"]:
        sys.stdout.write(f"outlast {__version__}\n")
        return 0
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        if arguments and arguments[0] in VERBS:  # only that one is imported
            verb, *rest = arguments
            if verb in ("train", "sweep", "resume"):
                rest = _current_flags(rest)
            if verb in ("train", "sweep") and any(word.startswith("--preset") for word in rest):
                from outlast.cli.presets import with_preset

                rest = with_preset(rest, _grid_axes(rest))
            if verb == "train" and any(word.startswith("--start") for word in rest):
                from outlast.cli.presets import with_start

                rest = with_start(rest, _grid_axes(rest))
            code = tyro.cli(_function(verb), args=rest, prog=f"outlast {verb}")
        else:
            code = run_all(arguments)
        sys.stdout.flush()
    except OutlastError as error:
        return _refuse(str(error))
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        return STOPPED
    except BrokenPipeError:  # whoever read the output has left, as in: outlast list | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NO_READER
    return int(code or 0)


def _usual_words(arguments: list[str]) -> list[str]:
    """``outlast``, ``outlast help train`` and ``outlast version`` as the flags they stand for."""
    match arguments:
        case [] | ["help"]:
            return ["--help"]
        case ["help", verb]:
            return [verb, "--help"]
        case ["version" | "-V"]:
            return ["--version"]
    return arguments


def _refuse(message: str) -> int:
    """Say what is wrong, on a terminal with lines that break between words."""
    text = f"error: {message}"
    if sys.stderr.isatty():
        from outlast.cli.common import wrapped

        text = wrapped(text)
    sys.stderr.write(f"{text}\n")
    return MISTAKE


def run_all(arguments: Sequence[str]) -> int | None:
    """Run a command line of which any verb may be a part: the help, or what the shell completes."""
    import tyro

    code: int | None = tyro.extras.subcommand_cli_from_dict(
        {verb: _function(verb) for verb in VERBS},
        args=arguments,
        prog="outlast",
        description=DESCRIPTION,
    )
    return code


def _current_flags(arguments: Sequence[str]) -> list[str]:
    """Flags under today's names: recorded commands may have those before settings were renamed.

    A setting that is given twice is an error: with two values, by both names, or in a grid too.
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
            if text != typed.setdefault(name, text) and name not in REPEATED:
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
