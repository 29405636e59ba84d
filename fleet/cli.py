"""`duckctl`: the command line. Here: its options, the list of its command modules, and its exit codes.

A command module has a function `register(app)` that adds its commands; it imports what takes time inside them, so that
`--help` answers at once. Exit codes: 0 all is well; 1 a machine or a step failed; 2 wrong usage, site file or state;
3 some ducks are not well (the output says which); 11 to 14 the worst finding of `report`; 130 interrupted; 70 a bug
of ours, with its traceback.
"""

from __future__ import annotations

import errno
import importlib
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Annotated, cast

import typer

from duckfleet.fleet import console
from duckfleet.fleet.context import FleetContext
from duckfleet.inventory.errors import InternalError, MachineError, OperatorError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_SOME_DUCKS = 3
EXIT_BUG = 70
EXIT_INTERRUPTED = 130

COMMAND_MODULES = (
    "duckfleet.fleet.cli_demo",
    "duckfleet.fleet.cli_setup",
    "duckfleet.fleet.cli_lab",
    "duckfleet.fleet.cli_power",
    "duckfleet.fleet.cli_ducks",
    "duckfleet.fleet.cli_diagnosis",
    "duckfleet.fleet.cli_report",
    "duckfleet.fleet.cli_playbook",
    "duckfleet.fleet.cli_model",
    "duckfleet.fleet.cli_plan",
    "duckfleet.fleet.cli_serve",
    "duckfleet.fleet.cli_bench",
)
OPTIONAL_COMMAND_MODULES = ("duckfleet.fleet.cli_pxe", "duckfleet.fleet.cli_vm")
"""Modules of parts that a build may lack."""

# Click's base of usage errors, wherever this typer has its click from (newer ones bring their own).
_ClickException = cast(type[typer.BadParameter], typer.BadParameter.__mro__[2])

app = typer.Typer(
    name="duckctl",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 all is well · 1 a machine or a step failed · 2 wrong usage, site file or state · "
    "3 some ducks are not well · 11 to 14 the worst finding of `report` · "
    "70 a bug of ours · 130 interrupted. Shell completion: duckctl --install-completion",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"duckctl {version('duckfleet')}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="State directory (keys, store, models, chunks, lab). Default: $DUCKFLEET_STATE, else "
            "~/.local/state/duckfleet, or /var/lib/duckfleet as root.",
        ),
    ] = None,
    site: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Site file. Default: $DUCKFLEET_SITE, else ./duckfleet.toml, else the running lab's.",
        ),
    ] = None,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Speak to ducks that were started without keys. For experiments only.")
    ] = False,
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """From a shelf of powered-off mini-PCs to a served language model far too large for any one of them.

    To try it without any hardware: duckctl demo. A fleet's day: duckctl wake --wait, probe, place MODEL, serve.
    """
    context.obj = FleetContext.of(state, site, no_auth=no_auth)
    from duckfleet.fleet.cli_vm import enter_lab

    stay = enter_lab(context.obj, context.invoked_subcommand)
    if stay is not None:
        context.call_on_close(stay.leave)
        context.obj = replace(context.obj, at_home=stay.interrupted)
    if no_auth:
        console.err.print(
            "--no-auth: nothing on the wire is authenticated or encrypted; anyone on the network can stop ducks, "
            "change weights and forge tokens",
            style="bold red",
        )


def _register() -> None:
    for name in COMMAND_MODULES:
        importlib.import_module(name).register(app)
    for name in OPTIONAL_COMMAND_MODULES:
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name).register(app)


_register()


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit with its code; errors of operator and machines are one clear message each."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: list[str]) -> int:
    """Run one command; returns its exit code."""
    command = typer.main.get_command(app)
    try:
        result = command.main(arguments, prog_name="duckctl", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except typer.Exit as error:
        return error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        console.err.print("interrupted", style="yellow")
        return EXIT_INTERRUPTED
    except _ClickException as error:
        error.show()
        return error.exit_code
    except OperatorError as error:
        console.fail(str(error))
        return EXIT_USAGE
    except MachineError as error:
        console.fail(str(error))
        return EXIT_FAILED
    except BrokenPipeError:
        sys.stderr.close()  # the reader went away, as with `| head`; nothing more can be said
        return EXIT_FAILED
    except InternalError as error:
        return _bug(str(error))
    except OSError as error:
        advice = _DISK_ADVICE.get(error.errno or 0)
        if advice is None:
            return _bug(f"{type(error).__name__}: {error}")
        if error.filename is None and error.errno in (errno.EPERM, errno.EACCES):
            advice = "this takes root"
        where = f"{error.filename}: " if error.filename is not None else ""
        console.fail(f"{where}{error.strerror}; {advice}")
        return EXIT_USAGE
    except Exception as error:
        return _bug(f"{type(error).__name__}: {error}")


_DISK_ADVICE = {
    errno.ENOSPC: "make room there, or choose another state directory (--state)",
    errno.EDQUOT: "make room there, or choose another state directory (--state)",
    errno.EROFS: "choose a state directory you may write to (--state)",
    errno.EACCES: "choose a state directory you may write to (--state), or give yourself access",
    errno.EPERM: "choose a state directory you may write to (--state), or give yourself access",
    errno.EISDIR: "a folder is in the way of a file: move it aside",
    errno.ENOTDIR: "a file is in the way of a folder: move it aside",
    errno.EIO: "the disk fails: look at `dmesg`",
    errno.EMFILE: "too many files are open: raise `ulimit -n`",
    errno.ENFILE: "too many files are open on this machine",
}
"""What a disk can refuse anywhere, and what to do: none of these is a bug of ours."""


def _bug(text: str) -> int:
    traceback.print_exc()
    console.fail(f"this is a bug of duckfleet, please report it with the lines above: {text}")
    return EXIT_BUG


if __name__ == "__main__":
    main()
