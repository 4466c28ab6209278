"""`tidegate settings`: list and reset the settings that were changed while a broker ran, without a connection to it."""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from tidegate.cli.arguments import confirmed, printable
from tidegate.cli.job_options import path_type
from tidegate.errors import ConfigError

__all__ = ["add_parser", "run"]

_ALL_NODES = "all"
_NOT_CONFIRMED = 1

_DESCRIPTION = """\
List or reset the settings that were changed on a running broker with
kafka-configs or an admin client. The broker keeps such changes when it
restarts. A reset setting has the value of the configuration again. Stop the
broker first.

Use this command when a changed setting rejects every client, for example
max.connections.per.ip.overrides=127.0.0.1:0."""

_EPILOG = """\
examples:
  tidegate settings tidegate-data             list the changed settings
  tidegate settings tidegate-data --reset max.connections
                                              reset one, on all nodes
  tidegate settings tidegate-data --reset max.connections@1
                                              only the value of node 1
  tidegate settings tidegate-data --reset-all --yes
                                              reset all, without confirmation

DIR is the data directory: --data or log.dirs of `tidegate serve`. The command
prints each value and asks for confirmation before it resets a setting. It
shows passwords and the settings of a quota callback as [hidden].

exit codes:
  0    done
  1    not confirmed: nothing was changed
  2    DIR is not a data directory, a broker uses it, or a setting was not
       changed; the reason is on stderr"""


@dataclass(frozen=True, slots=True, order=True)
class _Changed:
    """A changed setting; `node` is the number of a node, or `_ALL_NODES`."""

    name: str
    node: str
    value: str


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its options."""
    parser = subparsers.add_parser(
        "settings",
        help="list and reset changed settings of a stopped broker",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("directory", metavar="DIR", type=path_type, help="data directory of a stopped broker")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--reset",
        metavar="NAME[@NODE]",
        action="append",
        default=[],
        help="delete the changed values of this setting, or only the value of one node; repeatable",
    )
    which.add_argument("--reset-all", action="store_true", help="delete all changed values")
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """List or reset. Raises `TidegateError`."""
    from tidegate.storage.data_directory import opened_store

    with opened_store(args.directory) as store:
        found = sorted(
            _Changed(name, node or _ALL_NODES, value) for node, name, value in store.load_settings()
        )
        wanted = found if args.reset_all else _selected(found, args.reset, args.directory)
        if not (args.reset or args.reset_all):
            _print(found, is_json=args.json, key="settings")
            return 0
        if not args.json or not args.yes:
            _print(wanted, to=sys.stderr if args.json else sys.stdout)
        values = "this value" if len(wanted) == 1 else f"these {len(wanted)} values"
        if wanted and not args.yes and not confirmed(f"reset {values}?"):
            print("not confirmed: nothing was changed", file=sys.stderr)
            return _NOT_CONFIRMED
        for node in {changed.node for changed in wanted}:
            names = [changed.name for changed in wanted if changed.node == node]
            store.change_settings("" if node == _ALL_NODES else node, dict.fromkeys(names))
    if args.json:
        _print(wanted, is_json=True, key="reset")
    elif wanted:
        print(f"settings reset: {len(wanted)}; the broker uses its configuration at the next start")
    return 0


def _selected(found: Sequence[_Changed], names: Iterable[str], directory: Path) -> list[_Changed]:
    """Return the changed settings that `--reset` names. Raises `ConfigError` for one that is not changed."""
    from tidegate.config.values import did_you_mean

    wanted: set[_Changed] = set()
    for text in names:
        name, at, node = text.partition("@")
        named = {changed for changed in found if changed.name == name and (not at or changed.node == node)}
        if not named:
            changed_names = sorted({changed.name for changed in found})
            raise ConfigError(
                f"setting {text!r} was not changed in {str(directory)!r}",
                hint=did_you_mean(name, changed_names)
                if changed_names
                else "this broker has no changed settings",
            )
        wanted |= named
    return sorted(wanted)


def _print(
    found: Sequence[_Changed], *, is_json: bool = False, key: str = "", to: TextIO | None = None
) -> None:
    rows = [(changed.name, changed.node, _shown(changed)) for changed in found]
    if is_json:
        settings = [dict(zip(("name", "node", "value"), row, strict=True)) for row in rows]
        print(json.dumps({"format": 1, "command": "settings", key: settings}, indent=2))
    elif not rows:
        print("no changed settings", file=to)
    else:
        name_cells, node_cells = (
            max(len(row[place]) for row in [*rows, ("setting", "node")]) for place in (0, 1)
        )
        for name, node, value in [("setting", "node", "value"), *rows]:
            print(f"{name:{name_cells}}  {node:{node_cells}}  {printable(value)}", file=to)


def _shown(changed: _Changed) -> str:
    """Return a value for display. Hide passwords and the settings of a quota callback, which may be secret."""
    from tidegate.server.audit import HIDDEN
    from tidegate.server.settings.setting_texts import is_secret_setting

    return HIDDEN if is_secret_setting(changed.name) else changed.value
