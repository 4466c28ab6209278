"""Options of `tidegate configs`: their names, and how they are read.

>>> options = parse_options(["--describe", "-user=alice", "--delete-config", "a,b"])
>>> options.value("user"), options.values("delete-config")
('alice', ['a', 'b'])

Follows: jopt-simple, which reads the options of Kafka's tool: an option begins with one dash or two, takes the next
argument whatever that begins with, and cannot be abbreviated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from tidegate.errors import TidegateError

__all__ = ["ABOUT", "Options", "RefusedError", "parse_options", "refuse_if", "usage"]

ABOUT = (
    "This tool helps to manipulate and describe entity config for a topic, client, user, broker, ip, "
    "client-metrics or group"
)
"""The first line of Kafka's help."""
_SEPARATED = "delete-config"  # the option whose argument is a list

# Each option with the name of its argument (None: no argument), and its help text.
_OPTIONS: dict[str, tuple[str | None, str]] = {
    "bootstrap-server": ("HOST:PORT", "brokers, separated by commas"),
    "command-config": ("FILE", "client.properties: login, TLS, timeouts"),
    "describe": (None, "print quotas, SCRAM users, settings"),
    "alter": (None, "change quotas, SCRAM users, settings"),
    "entity-type": ("TYPE", "users, clients, ips, brokers or topics"),
    "entity-name": ("NAME", "one for each --entity-type, in order"),
    "entity-default": (None, "in place of --entity-name"),
    "user": ("NAME", "a user"),
    "client": ("ID", "a client id"),
    "ip": ("ADDRESS", "an address, or a host with one"),
    "broker": ("ID", "a broker"),
    "topic": ("NAME", "a topic"),
    "user-defaults": (None, "all users without their own value"),
    "client-defaults": (None, "all client ids without their own value"),
    "ip-defaults": (None, "all addresses without their own value"),
    "broker-defaults": (None, "all brokers"),
    "add-config": ("K=V,...", "what to set; V with commas: [v1,v2]"),
    "add-config-file": ("FILE", "properties file with what to set"),
    "delete-config": ("K,...", "what to remove"),
    "all": (None, "also settings that were not changed"),
    "help": (None, "print this on stderr; exit code 1"),
    "version": (None, "version of Kafka whose tool this follows"),
    "bootstrap-controller": ("HOST:PORT", "not supported"),
    "broker-logger": ("ID", "not supported"),
    "client-metrics": ("NAME", "not supported"),
    "group": ("ID", "not supported"),
}

_EXAMPLES = """\
Keys of users and clients: producer_byte_rate, consumer_byte_rate (bytes/s),
request_percentage, controller_mutation_rate; of ips: connection_creation_rate;
of users also SCRAM-SHA-256 and SCRAM-SHA-512=[iterations=8192,password=...].

examples:
  tidegate configs --bootstrap-server localhost:9092 --describe \\
      --entity-type users
  tidegate configs --bootstrap-server localhost:9092 --alter \\
      --add-config producer_byte_rate=1048576 --user alice --client-defaults
  tidegate configs --bootstrap-server localhost:9092 --alter \\
      --delete-config producer_byte_rate --client loader

exit codes:
  0    done
  1    an argument is wrong, or the cluster refused; the reason is on stderr
  130  interrupted with Ctrl-C"""


class RefusedError(TidegateError):
    """Raised for arguments that Kafka's tool refuses with one line. with_usage: print the options after it."""

    def __init__(self, message: str, *, hint: str | None = None, with_usage: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.with_usage = with_usage


def refuse_if(refused: object, message: str, *, hint: str | None = None, with_usage: bool = False) -> None:
    """Raise `RefusedError` if the first argument is true."""
    if refused:
        raise RefusedError(message, hint=hint, with_usage=with_usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options that were given, in order, each with its argument."""

    given: tuple[tuple[str, str | None], ...]

    def has(self, name: str) -> bool:
        """Return whether an option was given."""
        return any(name == each for each, _ in self.given)

    def values(self, name: str) -> list[str]:
        """Return the arguments of an option, in order."""
        return [value for each, value in self.given if each == name and value is not None]

    def value(self, name: str) -> str | None:
        """Return the argument of an option, None where it was not given. Raises `RefusedError` for several."""
        values = self.values(name)
        refuse_if(len(values) > 1, f"Found multiple arguments for option {name}, but you asked for only one")
        return values[0] if values else None


def usage() -> str:
    """Return the options, one a line, and examples."""
    rows = [
        (f"--{name} {argument}" if argument else f"--{name}", text)
        for name, (argument, text) in _OPTIONS.items()
    ]
    width = max(len(left) for left, _ in rows)
    lines = [f"  {left:<{width}}  {text}" for left, text in rows]
    return "\n".join(("Option", *lines, "", _EXAMPLES))


def parse_options(arguments: Sequence[str]) -> Options:
    """Return the options in `arguments`. Raises `RefusedError`."""
    given: list[tuple[str, str | None]] = []
    left = iter(arguments)
    for argument in left:
        if argument == "--":
            break
        if not argument.startswith("-") or argument == "-":
            continue  # Kafka's tool ignores it
        name, _, value = argument.removeprefix("-").removeprefix("-").partition("=")
        if name not in _OPTIONS:
            _refuse_unknown(argument, name)
        if _OPTIONS[name][0] is None:
            given.append((name, None))
            continue
        found = value or next(left, None)
        if found is None:
            raise RefusedError(f"Option {name} requires an argument")
        if name == _SEPARATED:
            given += [(name, part) for part in found.split(",") if part] or [(name, found)]
        else:
            given.append((name, found))
    return Options(given=tuple(given))


def _refuse_unknown(argument: str, name: str) -> NoReturn:
    """Raise `RefusedError` with the option that was probably meant, if there is one."""
    import difflib

    known = name if argument.startswith("--") else name[:1]
    near = difflib.get_close_matches(name[:100], _OPTIONS, n=1)
    hint = f"did you mean '--{near[0]}'?" if near else "see `tidegate configs --help`"
    raise RefusedError(f"{known} is not a recognized option", hint=hint)
