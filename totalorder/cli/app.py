"""`totalorder`: puts the commands together and turns errors into messages.

A command is a module of this package, named in `COMMANDS` (with _ for -), with one function::

    def register(app: typer.Typer) -> None:
        @app.command("name", help="…")   # or app.command("name")(run)
        def run(bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS) -> None: ...

Its top level imports only typer, `totalorder.errors` and light modules of this package (`options`, `extras`): pyspark,
kafka, pyarrow, rich and the rest of the package are imported inside the functions, so that `totalorder --help` is quick
and a base install needs no Spark. A command raises `totalorder.Error` (shown as one message, exit code 1;
SettingsError: 2) or `typer.Exit(code)`.
"""

import errno
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, NoReturn

import typer

from totalorder.cli.extras import problem_of
from totalorder.defects import defect_in
from totalorder.entry import INTERRUPTED, end_at_once
from totalorder.errors import Defect, Error, SettingsError

COMMANDS = (
    *(
        "demo",
        "broker",
        "sequence",
        "recover",
        "lineage",
        "publish",
        "subscribe",
        "parked",
        "read",
        "topics",
        "inspect",
        "audit",
        "sql",
    ),
    *("control-key", "bench"),
)

UNREAD = 128 + 13
"""What a shell reports for a program that SIGPIPE ended, as `head` ends others: not 0, since what was left unread may
be what the code would tell of, as an audit's verdict."""


def _version(wanted: bool) -> None:
    if wanted:
        from totalorder import __version__

        print(f"totalorder {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[  # noqa: ARG001
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """One order for all subscribers of a Kafka domain."""
    if "--help" not in sys.argv and any(name.upper().startswith("TOTALORDER_") for name in os.environ):
        from totalorder.config import refuse_misspelt_environment
        from totalorder.sinks.settings import LineageSettings

        refuse_misspelt_environment(LineageSettings)


def build_app() -> typer.Typer:
    """The application with every command registered."""
    # Plain help: tables cut the names of options and variables on a terminal of 80 columns.
    app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.callback()(_root)
    for name in COMMANDS:
        import_module(f"totalorder.cli.{name.replace('-', '_')}").register(app)
    return app


def _end_unwritten(error: OSError) -> NoReturn:
    """The output cannot be written: its disk is full, or whoever read it has had enough and needs no word about it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python tries again at its end
    if error.errno == errno.EPIPE:
        sys.exit(UNREAD)
    print(f"totalorder: {error.strerror}. Make room where files or the output go.", file=sys.stderr)
    sys.exit(1)


def _end_failed(error: Error) -> NoReturn:
    if isinstance(error, Defect) and error.__cause__ is not None:  # it asks for that to be reported
        traceback.print_exception(error.__cause__)
    print(f"totalorder: {error}", file=sys.stderr)
    sys.exit(2 if isinstance(error, SettingsError) else 1)


def _hear_sigint() -> None:
    """From here on Ctrl-C is an exception, for commands to end in good order.

    A shell starts what it puts in the background with SIGINT ignored, and Python leaves it so: none could end it.
    """
    if signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, end_at_once):
        signal.signal(signal.SIGINT, signal.default_int_handler)


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line `args` (default: the process's own) and exit with its code.

    0: done; 1: it failed; 2: wrong usage or settings; 130: Ctrl-C; 141: whoever read the output has closed it.
    """
    try:
        try:
            command = typer.main.get_command(build_app())
            _hear_sigint()
            command.main(args=args, prog_name="totalorder")
        finally:
            if sys.stdout is not None:  # it was closed by whoever started this
                sys.stdout.flush()
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # click and rich, who print for us, end so too
            _end_unwritten(end.__context__)
        raise
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except ModuleNotFoundError as error:
        problem = problem_of(error)
        if problem is None:
            raise
        print(f"totalorder: {problem}", file=sys.stderr)
        sys.exit(1)
    except Error as error:
        _end_failed(error)
    except AssertionError as error:
        defect = defect_in(error, stopped="The command has stopped there; what it had saved is kept")
        if defect is None:
            raise
        defect.__cause__ = error
        _end_failed(defect)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EPIPE):
            raise
        _end_unwritten(error)
