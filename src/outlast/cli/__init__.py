"""The command line: one file a verb; a function's signature is its command line."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Sequence

from outlast.errors import OutlastError

VERBS = ("list", "show", "train", "resume", "eval", "report", "reproduce", "doctor")
#: exit codes: 2 for an error a user can mend, 130 for a run that was asked to stop and saved
MISTAKE, STOPPED = 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; errors meant for people are printed without a traceback."""
    import tyro

    # threads that wait in a spin make small models many times slower on a machine that is shared;
    # read when torch is first imported, and by the processes of a study
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and not arguments[0].startswith("-") and arguments[0] not in VERBS:
        from outlast.registry import suggest

        hint = suggest(arguments[0], VERBS)
        sys.stderr.write(f"error: there is no command {arguments[0]!r}{hint}\n")
        return MISTAKE
    # only the verb that is asked for is imported, so that --help answers at once
    wanted = [v for v in VERBS if arguments and v == arguments[0]] or list(VERBS)
    functions = {v: importlib.import_module(f"outlast.cli.{v}_").main for v in wanted}
    app = tyro.extras.SubcommandApp()
    for verb, function in functions.items():
        app.command(name=verb)(function)
    if len(functions) == 1:  # tyro drops the verb where there is only one
        app.command(name="version")(_version)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        code = app.cli(
            args=arguments,
            prog="outlast",
            description="Train short, test long: models that outlast their training length.",
            config=(tyro.conf.OmitSubcommandPrefixes,),
        )
    except OutlastError as error:
        sys.stderr.write(f"error: {error}\n")
        return MISTAKE
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        return STOPPED
    return int(code or 0)


def _version() -> int:
    """Print the version."""
    from outlast import __version__

    sys.stdout.write(f"outlast {__version__}\n")
    return 0
