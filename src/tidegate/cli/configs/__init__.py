"""`tidegate configs`: the quota and SCRAM part of Kafka's `kafka-configs.sh`, without a JVM.

Flags, output and exit codes are those of Kafka's tool. The first line on stderr is the same as there; an error and a
hint replace the stack trace. Follows: Kafka `ConfigCommand`, B§9.1–9.3 (decision 0121).
"""

import argparse
import sys
from typing import TYPE_CHECKING

from tidegate import error_codes
from tidegate.cli.arguments import print_error, printable
from tidegate.cli.client_options import run_admin
from tidegate.errors import TidegateError

if TYPE_CHECKING:
    from tidegate.cli.configs.command import Command
    from tidegate.client import Admin

__all__ = ["add_parser", "run"]

_EXIT_REFUSED = 1  # of Kafka's tool, for every error and for --help
_NO_OPTION = "\0"  # cannot be in an argument
_KAFKA = "4.3.1"  # the version of Kafka's tool, which --version prints
_HINT = "run --describe to see what is in force, then run the command again"
_REFUSED_HINT = "nothing was changed; correct the argument, then run the command again"
_HINTS = {  # by error code of the broker
    error_codes.DUPLICATE_RESOURCE: "set the mechanisms of a user one by one",
    error_codes.RESOURCE_NOT_FOUND: "list the users that have credentials with --describe --entity-type users",
    error_codes.UNKNOWN_TOPIC_OR_PARTITION: "list the topics with --describe --entity-type topics",
}


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command. Its arguments are read as Kafka's tool reads them, not by argparse."""
    parser = subparsers.add_parser(
        "configs",
        help="set and show quotas and SCRAM users, as kafka-configs.sh",
        add_help=False,
        prefix_chars=_NO_OPTION,
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER)


def run(args: argparse.Namespace) -> int:
    """Run the command; return 0, or 1 with the reason on stderr. Ends the process with 1 where usage is printed."""
    from tidegate.cli.configs.options import RefusedError, usage

    arguments: list[str] = args.arguments
    try:
        return _run(arguments)
    except RefusedError as error:
        print(printable(str(error)), file=sys.stderr)
        if error.hint is not None:
            print(f"hint: {printable(error.hint)}", file=sys.stderr)
        if error.with_usage:
            print(usage(), file=sys.stderr)
            raise SystemExit(_EXIT_REFUSED) from None  # as argparse ends --help
    except TidegateError as error:
        sys.stdout.flush()
        given = " ".join(arguments)
        print(f"Error while executing config command with args '{printable(given)}'", file=sys.stderr)
        code = getattr(error, "code", None)  # the error code of the broker's answer, if any
        print_error(str(error), error.hint or (_HINTS.get(code, _REFUSED_HINT) if code else _HINT))
    return _EXIT_REFUSED


def _run(arguments: list[str]) -> int:
    from tidegate.cli.configs.command import checked_command
    from tidegate.cli.configs.options import ABOUT, RefusedError, parse_options

    options = parse_options(arguments)
    if not arguments or options.has("help"):
        raise RefusedError(ABOUT, with_usage=True)
    if options.has("version"):
        print(_KAFKA)
        return 0
    _execute(checked_command(options))
    return 0


def _execute(command: "Command") -> None:
    """Alter or describe the entities of the command. Raises `TidegateError`."""
    connection = argparse.Namespace(
        bootstrap_server=command.bootstrap_server, command_config=command.command_config
    )
    if command.alters:
        from tidegate.cli.configs.alter import alter, read_changes

        changes = read_changes(command)

        async def work(admin: "Admin") -> None:
            await alter(admin, command, changes)
            print(_completed(command))
    else:
        from tidegate.cli.configs.describe import describe

        async def work(admin: "Admin") -> None:
            async for line in describe(admin, command):
                print(printable(line))

    run_admin(connection, work)


def _completed(command: "Command") -> str:
    kind, name = command.entity_types[0], command.entity_names[0]
    if name:
        return f"Completed updating config for {kind[:-1]} {printable(name)}."
    return f"Completed updating default config for {kind} in the cluster."
