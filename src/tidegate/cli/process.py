"""The process of a broker or a gateway: settings of the command line, log, signals and port files."""

import argparse
import asyncio
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tidegate.cli.arguments import EXIT_ERROR
from tidegate.cli.log_lines import LogLines
from tidegate.config.properties import load_properties
from tidegate.errors import ConfigError, TidegateError
from tidegate.log_format import JSON, formatter
from tidegate.server.audit import AUDIT_LOGGER
from tidegate.server.connection.turn_loop import TurnLoop
from tidegate.server.node import Node
from tidegate.server.repeated_lines import RepeatedLines
from tidegate.server.settings.config import ServerConfig
from tidegate.server.settings.table import SETTINGS

__all__ = [
    "code_of_error",
    "fresh_port_file",
    "hinting",
    "is_first",
    "lifecycle_log",
    "listen_on",
    "load_config",
    "no_input",
    "ports_of",
    "print_message",
    "run_process",
    "stop_event",
    "write_ports",
    "written_to",
]

_log = logging.getLogger("tidegate.server")
_lifecycle = logging.getLogger("tidegate.serve")  # start and end, also without --verbose
_SUM_UP_EVERY_S = 10.0
_STDIN = 0  # a descriptor
_INPUT_BYTES = 4096  # read and ignored at a time


def run_process(
    args: argparse.Namespace,
    start: Callable[[ServerConfig, RepeatedLines], Coroutine[Any, Any, None]],
    defaults: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """Load the settings, set up the log, and run the coroutine of `start` to its end; return the exit code.

    defaults: values of settings that were not given.
    """
    handler = _log_lines()
    handler.setFormatter(formatter(args.log_format, process=args.process))
    _set_levels(args.verbose)
    repeated = RepeatedLines(time.monotonic)
    # The filter is on the handler, because a logger's filter does not see the records of the loggers below it.
    handler.addFilter(repeated)
    logging.getLogger().addHandler(handler)
    try:
        config = load_config(args, defaults)
        for notice in config.notices() if is_first(args) else ():
            print_message(args, notice, logging.WARNING)
        with asyncio.Runner(loop_factory=TurnLoop) as runner:
            runner.run(start(config, repeated))
    except TidegateError as error:
        return code_of_error(args, error)
    finally:
        handler.flush()  # write the log before anything is printed
        logging.getLogger().removeHandler(handler)
    return 0


def code_of_error(args: argparse.Namespace, error: TidegateError) -> int:
    """Log an error as JSON and return the exit code; raise the error where the log is text."""
    if args.log_format != JSON:
        raise error
    _lifecycle.error("%s%s", error, f"; hint: {error.hint}" if error.hint else "")
    return EXIT_ERROR


@contextmanager
def lifecycle_log(args: argparse.Namespace) -> Iterator[logging.Logger]:
    """Yield the log of start and end, for a process that does not serve, and write it to stderr during the block."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(args.log_format))
    _set_levels(args.verbose)
    logging.getLogger().addHandler(handler)
    try:
        yield _lifecycle
    finally:
        logging.getLogger().removeHandler(handler)


def _set_levels(verbose: int) -> None:
    """Set the log levels: by default warnings, and rare events such as audited changes and deletions."""
    logging.getLogger().setLevel(logging.DEBUG if verbose > 1 else logging.WARNING)
    if verbose:
        logging.getLogger("tidegate").setLevel(logging.DEBUG)
    else:
        for name in (AUDIT_LOGGER, "tidegate.broker", "tidegate.storage", _lifecycle.name):
            logging.getLogger(name).setLevel(logging.INFO)


def print_message(args: argparse.Namespace, text: str, level: int = logging.INFO) -> None:
    """Print a message on stderr beside the log; with JSON, write it as a line of the log."""
    if args.log_format == JSON:
        _lifecycle.log(level, "%s", text)
    else:
        line = f"warning: {text}" if level == logging.WARNING else text
        print(
            f"{line}\n", end="", file=sys.stderr, flush=True
        )  # in one piece, also where Python does not buffer


def is_first(args: argparse.Namespace) -> bool:
    """Return whether this process prints the messages that are the same for all processes of a gateway."""
    return args.process in (None, 1)


def _log_lines() -> logging.Handler:
    """Return the handler that logs to stderr without waiting for its reader; a plain one without a descriptor."""
    try:
        return LogLines(sys.stderr.fileno())
    except (OSError, ValueError):
        return logging.StreamHandler(sys.stderr)


def load_config(args: argparse.Namespace, defaults: Mapping[str, str]) -> ServerConfig:
    """Return the settings of the command line: those of --config, --override and the other options."""
    texts = {**defaults, **(load_properties(Path(args.config)) if args.config else {})}
    for override in args.override:
        name, separator, value = override.partition("=")
        if not separator or not name:
            shown = re.split(r"[\s:=]", override.strip())[0]  # the rest may be a password
            raise ConfigError(
                f"--override begins with {shown!r}, expected KEY=VALUE",
                hint="for example --override tidegate.quota.observe=all",
            )
        texts[name.strip()] = value
    if args.data is not None:
        texts["log.dirs"] = args.data
        # Kafka's other name for the same setting.
        texts.pop("log.dir", None)
    if args.port is not None:
        listen_on(texts, args.port)
    with hinting("`tidegate serve --list-settings` lists the settings with their types and defaults"):
        return ServerConfig.load(texts)


@contextmanager
def hinting(hint: str) -> Iterator[None]:
    """Add a hint to a `ConfigError` that has none."""
    try:
        yield
    except ConfigError as error:
        error.hint = error.hint or hint
        raise


def listen_on(texts: dict[str, str], port: int) -> None:
    """Set the port of a broker's only listener, and its advertised port if that was the same.

    Listeners of controllers are not counted: a properties file of Kafka has one, and Tidegate does not serve it.
    Raises `ConfigError`.
    """
    if not 0 <= port <= 65_535:
        raise ConfigError(f"--port is {port}, expected 0 to 65535")
    listeners = texts.get("listeners", SETTINGS["listeners"].default)
    controllers = {name.strip().upper() for name in texts.get("controller.listener.names", "").split(",")}
    own = [part for part in listeners.split(",") if _name_of(part) not in controllers]
    if len(own) > 1:
        raise ConfigError(
            f"--port is {port}, expected no --port with several listeners: {listeners}",
            hint="set the port of each in listeners",
        )
    for part in own:
        place, _, old_port = part.strip().rpartition(":")
        texts["listeners"] = f"{place}:{port}"
        if "advertised.listeners" in texts:
            told = texts["advertised.listeners"].split(",")
            texts["advertised.listeners"] = ",".join(
                _moved(each, _name_of(part), old_port, port) for each in told
            )


def _moved(told: str, name: str, old_port: str, port: int) -> str:
    """Return an advertised listener, with the new port if it is this listener and had the old port."""
    place, _, told_port = told.strip().rpartition(":")
    return f"{place}:{port}" if (_name_of(told), told_port) == (name, old_port) else told


def _name_of(listener: str) -> str:
    return listener.partition(":")[0].strip().upper()


def stop_event(args: argparse.Namespace, repeated: RepeatedLines) -> asyncio.Event:
    """Return the event that a signal or the end of standard input sets, and start to summarize repeated log lines."""
    loop = asyncio.get_running_loop()
    _sum_up(repeated, loop)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            loop.add_signal_handler(number, _stop, stop, f"received {number.name}")
    if args.stop_on_eof:
        _watch_input(loop, stop)
    return stop


def fresh_port_file(args: argparse.Namespace) -> Path | None:
    """Return the path of the port file, if one is wanted; delete the file of an earlier broker."""
    if args.port_file is None:
        return None
    port_file = Path(args.port_file)
    with _port_file_written(port_file):
        port_file.unlink(missing_ok=True)
    return port_file


def _stop(stop: asyncio.Event, reason: str) -> None:
    """Stop the broker, and log the reason."""
    if not stop.is_set():
        _lifecycle.info("stopping: %s", reason)
        stop.set()


def _watch_input(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Stop the broker when standard input ends. Raises `ConfigError` if it is a file or is closed."""

    def read() -> None:
        if not os.read(_STDIN, _INPUT_BYTES):
            loop.remove_reader(_STDIN)
            _stop(stop, "standard input was closed")

    try:
        loop.add_reader(_STDIN, read)
    except OSError as error:
        raise no_input(error) from error


def no_input(error: OSError) -> ConfigError:
    """Return the error for a standard input that does not end with the parent process."""
    return ConfigError(
        f"cannot wait for the end of standard input: {error.strerror}",
        hint="--stop-on-eof needs a pipe as standard input, open for as long as the broker runs",
    )


def _sum_up(repeated: RepeatedLines, loop: asyncio.AbstractEventLoop) -> None:
    """Log the number of repeated lines that were not written, every `_SUM_UP_EVERY_S` seconds."""
    for line in repeated.sums(time.monotonic()):
        _log.warning("%s", line)
    loop.call_later(_SUM_UP_EVERY_S, _sum_up, repeated, loop)


@contextmanager
def _written(what: str, hint: str) -> Iterator[None]:
    """Raise `ConfigError` that `what` cannot be written if the block raises an `OSError`."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"cannot write {what}: {error.strerror or error}", hint=hint) from error


def written_to(directory: Path) -> AbstractContextManager[None]:
    hint = "use a directory that the broker can write to, with free disk space (--data, tidegate.usage.dir)"
    return _written(f"to directory {str(directory)!r}", hint)


def _port_file_written(path: Path) -> AbstractContextManager[None]:
    return _written(
        f"--port-file {str(path)!r}", "use a file in an existing directory that the broker can write to"
    )


def ports_of(nodes: Iterable[Node]) -> list[int]:
    """Return the ports of the listeners of all nodes."""
    return [port for node in nodes for _, port in node.bound.values()]


def write_ports(path: Path, ports: Iterable[int]) -> None:
    """Write ports, one per line. The file appears complete."""
    unfinished = path.with_name(path.name + ".tmp")
    with _port_file_written(path):
        unfinished.write_text("".join(f"{port}\n" for port in ports))
        unfinished.rename(path)
