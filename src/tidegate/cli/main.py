"""The `tidegate` command: finds the subcommand, runs it, and turns errors into one line and an exit code.

Each command is a module of this package with `add_parser(subparsers)` and `run(args) -> int`. Such a module
imports nothing heavy at its top: what `run` needs is imported inside `run`.
"""

import argparse
import importlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from types import ModuleType

from tidegate import __version__
from tidegate.cli.arguments import EXIT_ERROR, ArgumentParser, print_error
from tidegate.errors import TidegateError, install_hint

__all__ = [
    "COMMANDS",
    "EXIT_ERROR",
    "EXIT_INTERRUPTED",
    "EXIT_PIPE",
    "main",
]

COMMANDS = (
    "serve",
    "gateway",
    "settings",
    "quotas",
    "configs",
    "import",
    "compact",
    "usage",
    "obedience",
    "replay",
    "limits",
    "recommend",
    "watch",
    "top",
    "explain",
    "report",
    "warm-up",
    "demo",
)

EXIT_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
EXIT_PIPE = 141  # 128 + SIGPIPE

_EXTRA_BY_MODULE = {
    "confluent_kafka": "clients",
    "kafka": "clients",
    "msgspec": "pipeline",
    "numba": "pipeline",
    "numpy": "pipeline",
    "pandas": "pipeline",
    "pyarrow": "pipeline",
    "pyspark": "pipeline",
}

_READS_A_RECORD = ("usage", "obedience", "replay", "limits", "recommend", "watch", "report")

_MODULES = {"import": "import_", "warm-up": "warm_up"}  # names that no module can have

# Arrow's own allocator keeps free memory between small pieces that are in use: half as much again for a million clients
# that arrive a few at a time. Arrow reads this variable once, when it is loaded.
_ARROW_MEMORY = ("ARROW_DEFAULT_MEMORY_POOL", "system")

_DESCRIPTION = """\
Apache Kafka's client quotas in Python: a broker that throttles clients as Kafka
does, and jobs that show the effect of other quotas on recorded traffic."""

_EPILOG = """\
examples:
  tidegate demo                                 all features in two minutes
  tidegate serve --port 9092                    a broker for any Kafka client
  tidegate gateway --upstream kafka1:9092       quotas in front of a cluster
  tidegate settings tidegate-data               settings changed at run time
  tidegate quotas plan quotas.yaml --bootstrap-server localhost:9092
                                                difference to a cluster
  tidegate configs --bootstrap-server localhost:9092 --describe \\
      --entity-type users                       as kafka-configs.sh
  tidegate import request.log --out ./usage     a request log of Apache Kafka
  tidegate usage ./usage                        usage of each client
  tidegate obedience ./usage                    clients that ignore throttles
  tidegate replay ./usage --quotas quotas.yaml  effect of other quotas
  tidegate limits ./usage                       smallest sufficient quotas
  tidegate recommend ./usage > quotas.yaml      quotas to set, and why
  tidegate watch ./usage --quotas quotas.yaml   usage and throttles right now
  tidegate top --metrics 127.0.0.1:9404         live quotas of a broker
  tidegate explain --client-id billing          why a client is throttled
  tidegate report ./usage --out usage.html      all results on one page
  tidegate warm-up                              compile ahead, for images

`tidegate COMMAND --help` describes a command.

exit codes:
  0    done
  1    the command ran, and its check failed
  2    an option, a file or the environment cannot be used; the reason is on
       stderr
  130  interrupted with Ctrl-C"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in `argv` (default: the process's own arguments) and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if argv is None:
        os.environ.setdefault(*_ARROW_MEMORY)
        _make_streams_usable()
    try:
        exit_code = _dispatch(arguments, is_own_process=argv is None)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _discard_stdout()
        return EXIT_PIPE
    except TidegateError as error:
        _let_go(error)
        return _report(str(error), error.hint)
    except ModuleNotFoundError as error:
        return _report_missing_module(error)
    except OSError as error:
        _let_go(error)
        return _report_environment(error)
    return exit_code


def _dispatch(arguments: Sequence[str], *, is_own_process: bool) -> int:
    parser = _parser(arguments)
    try:
        args = parser.parse_args(arguments)
    except SystemExit:  # of --help and --version, too
        sys.stdout.flush()
        raise
    if args.command is None:
        parser.print_help()
        return 0
    if is_own_process and args.command in _READS_A_RECORD and args.directory is not None:
        from tidegate.cli.record_reading import prepare_reading

        prepare_reading()
    elif is_own_process and args.command == "compact":
        from tidegate.cli.record_reading import print_warnings

        print_warnings()
    exit_code: int = _load(args.command).run(args)
    return exit_code


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser. If `arguments` begin with a command, it has only this command."""
    parser = ArgumentParser(
        prog="tidegate",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-V", "--version", action="version", version=f"tidegate {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    named = arguments[:1] if arguments[:1] and arguments[0] in COMMANDS else COMMANDS
    for command in named:
        _load(command).add_parser(subparsers)
    return parser


def _load(command: str) -> ModuleType:
    return importlib.import_module(f"tidegate.cli.{_MODULES.get(command, command)}")


def _let_go(error: BaseException) -> None:
    """Close the frames of an error before it is printed: a progress bar in one of them would overwrite the message."""
    part: BaseException | None = error
    while part is not None:
        traceback.clear_frames(part.__traceback__)
        part = part.__cause__ or part.__context__


def _report(message: str, hint: str | None) -> int:
    print_error(message, hint)
    return EXIT_ERROR


def _report_environment(error: OSError) -> int:
    """Report an error of the operating system that no command has explained."""
    reason = error.strerror or str(error)
    try:
        sys.stdout.flush()
    except OSError:
        _discard_stdout()
    if error.filename is not None:
        return _report(
            f"cannot use {str(error.filename)!r}: {reason}", "correct the cause, then run the command again"
        )
    return _report(
        f"cannot write: {reason}",
        "free disk space for the output and in TMPDIR; the output is incomplete",
    )


def _report_missing_module(error: ModuleNotFoundError) -> int:
    """Report an extra that is not installed. Raise any other error again, because it is a bug."""
    module = (error.name or "").partition(".")[0]
    extra = _EXTRA_BY_MODULE.get(module)
    if extra is None:
        raise error
    return _report(
        f"this command needs the Python module {module!r}, which is not installed",
        install_hint(extra),
    )


def _make_streams_usable() -> None:
    """Redirect a closed stdout or stderr to the null device; escape characters that a stream's encoding lacks."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  # until the process ends
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _discard_stdout() -> None:
    """Redirect stdout to the null device, so that the interpreter's last flush does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
