"""`tidegate quotas`: quotas of a cluster as a file: check, export, plan, apply, undo."""

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.cli.arguments import confirmed, print_error, printable
from tidegate.cli.client_options import add_client_options, run_admin
from tidegate.cli.job_options import where_options
from tidegate.cli.quota_plan import (
    QuotaCluster,
    print_changes,
    print_forecast,
    print_json,
    print_summary,
)
from tidegate.errors import ConfigError, TidegateError
from tidegate.pipeline.report.text import things_text

if TYPE_CHECKING:
    from tidegate.cli.quota_effects import QuotaEffects
    from tidegate.client import Admin
    from tidegate.config.quota_changes import QuotaChange, Quotas
    from tidegate.quota.admin.definitions import EntityParts

__all__ = ["add_parser", "run"]

_EXIT_DIFFERENT = 1  # of check and plan --check
_EXIT_NOT_APPLIED = 1
_OPS_AT_ONCE = 5000  # Kafka refuses more than 10,000 records in one request
_MOST_REASONS = 20  # lines of values or entities that cannot be changed

_ACTIONS = {
    "check": "check a file; needs no broker",
    "export": "print the quotas of a cluster as a file",
    "plan": "show what `apply` would change",
    "apply": "show the changes, ask, and make them",
    "undo": "revert what `apply` changed",
}

_DESCRIPTION = """\
Keep the quotas of a cluster in a file, quotas.yaml (docs/quotas-file.md), and
apply it to Apache Kafka 2.8 or later, or to Tidegate. The file owns the
entities that it names: their quotas become exactly those of the file. Other
entities stay as they are, unless --prune removes their quotas."""

_EPILOG = """\
examples:
  tidegate quotas check quotas.yaml
  tidegate quotas export --bootstrap-server kafka1:9092 > quotas.yaml
  tidegate quotas plan quotas.yaml --bootstrap-server kafka1:9092
  tidegate quotas plan quotas.yaml --bootstrap-server kafka1:9092 \\
      --usage ./usage --last 7d         and the effect on recorded traffic
  tidegate quotas plan quotas.yaml --bootstrap-server kafka1:9092 \\
      --check                           exit code 1 if something differs
  tidegate quotas apply quotas.yaml --bootstrap-server kafka1:9092
  tidegate quotas undo quotas-undo-20261126T174501Z.json \\
      --bootstrap-server kafka1:9092

exit codes:
  0    done
  1    check: the file has a mistake; plan --check: the cluster differs;
       apply, undo: not confirmed, refused by the cluster, or changed meanwhile;
       export: some quotas cannot be written to a file
  2    an option, a file or the cluster cannot be used; the reason is on stderr
  130  interrupted with Ctrl-C"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command, its actions and their options."""
    parser = subparsers.add_parser(
        "quotas",
        help="quotas of a cluster as a file: check, export, plan, apply, undo",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title="actions", required=True)
    check, export, plan, apply, undo = (
        actions.add_parser(action, help=text, description=f"{text[0].upper()}{text[1:]}.")
        for action, text in _ACTIONS.items()
    )
    for action in (check, plan, apply):
        action.add_argument("file", metavar="FILE", type=Path, help="quotas.yaml")
    undo.add_argument("file", metavar="FILE", type=Path, help="file that `apply` wrote")
    for action in (export, plan, apply, undo):
        add_client_options(action)
    for action in (plan, apply):
        action.add_argument(
            "--prune", action="store_true", help="remove the quotas of entities that are not in the file"
        )
    for action in (apply, undo):
        action.add_argument("--yes", action="store_true", help="do not ask for confirmation")
        action.add_argument(
            "--undo-file",
            metavar="FILE",
            type=Path,
            help="where to write the file for `undo` (default: quotas-undo-TIME.json in the current directory)",
        )
    plan.add_argument(
        "--check", action="store_true", help="exit with code 1 if the cluster differs from the file"
    )
    plan.add_argument(
        "--usage",
        metavar="DIR",
        help="also show what the quotas after the change would have done to the traffic recorded in DIR",
    )
    where_options(plan)
    for action in (check, plan):
        action.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Run the action. Raises `TidegateError`."""
    actions = {"check": _check, "export": _export, "plan": _plan, "apply": _apply, "undo": _undo}
    return actions[args.action](args)


# --- check and export -----------------------------------------------------------------------------------------------


def _check(args: argparse.Namespace) -> int:
    from tidegate.config.quotas_file import load_quotas_file

    document: dict[str, Any] = {"format": 1, "command": "quotas check", "file": str(args.file)}
    try:
        file = load_quotas_file(args.file)
    except ConfigError as error:
        if args.json:
            print(json.dumps({**document, "valid": False, "error": str(error), "hint": error.hint}, indent=2))
        else:
            print_error(str(error), error.hint)
        return _EXIT_DIFFERENT
    counts = {"quotas": len(file.entries), "groups": len(file.groups)}
    if args.json:
        print(json.dumps({**document, "valid": True, **counts}, indent=2))
    else:
        print(
            f"{printable(str(args.file))}: valid, {things_text(len(file.entries), 'entity', 'entities')} with quotas"
        )
    return 0


def _export(args: argparse.Namespace) -> int:
    from tidegate.config.quota_changes import exported
    from tidegate.config.quotas_text import dump_quotas_file

    file, refused = exported(run_admin(args, _look).quotas)
    print(dump_quotas_file(file), end="")
    for line in refused:
        print_error(line, None)
    return _EXIT_DIFFERENT if refused else 0


# --- plan -----------------------------------------------------------------------------------------------------------


def _plan(args: argparse.Namespace) -> int:
    if args.json and args.usage is not None:
        raise ConfigError(
            "--json and --usage cannot be combined", hint="use `tidegate replay --json` for a forecast"
        )
    if args.usage is None:
        _refuse_without_usage(args)
    from tidegate.config.quota_changes import applied, quota_changes

    wanted = _wanted(args.file)
    cluster, changes, effects = _planned(
        args, lambda quotas: quota_changes(quotas, wanted, prunes=args.prune)
    )
    if args.json:
        print_json(args, cluster, wanted, changes, effects)
    else:
        print_changes(changes, effects)
        print_summary(args, cluster, wanted, changes)
    if args.usage is not None:
        print_forecast(args, applied(cluster.quotas, changes))
    return _EXIT_DIFFERENT if args.check and changes else 0


def _refuse_without_usage(args: argparse.Namespace) -> None:
    """Raise `ConfigError` if an option for `--usage` is given without it."""
    options = {"--from": "from_ms", "--to": "to_ms", "--last": "last_ms", "--master": "master"}
    for option, name in options.items():
        if getattr(args, name) is not None:
            raise ConfigError(f"{option} needs --usage", hint="add --usage DIR for a forecast")


def _wanted(path: Path) -> "Quotas":
    """Return the quotas of a file, and print which of its contents cannot be applied to a cluster."""
    from tidegate.config.quota_changes import wanted_quotas
    from tidegate.config.quotas_file import load_quotas_file

    file = load_quotas_file(path)
    for name, part in (("groups", file.groups), ("settings", file.settings), ("windows", file.windows)):
        if part:
            print(
                f"note: {name} of the file are not applied: set them in the configuration of the brokers "
                "(docs/quotas-file.md)",
                file=sys.stderr,
            )
    return wanted_quotas(file)


async def _look(admin: "Admin") -> QuotaCluster:
    quotas = dict(await admin.describe_client_quotas())
    return QuotaCluster(admin.cluster.cluster_id, quotas)


def _planned(
    args: argparse.Namespace, changes_of: "Callable[[Quotas], list[QuotaChange]]"
) -> "tuple[QuotaCluster, list[QuotaChange], QuotaEffects]":
    """Return the cluster, what `changes_of` returns for its quotas, and the effects of these changes on groups."""
    from tidegate.cli.quota_effects import find_effects

    async def look(admin: "Admin") -> "tuple[QuotaCluster, list[QuotaChange], QuotaEffects]":
        cluster = await _look(admin)
        changes = changes_of(cluster.quotas)
        return cluster, changes, await find_effects(admin, cluster.quotas, changes)

    return run_admin(args, look)


# --- apply and undo -------------------------------------------------------------------------------------------------


def _apply(args: argparse.Namespace) -> int:
    from tidegate.config.quota_changes import quota_changes

    wanted = _wanted(args.file)
    cluster, changes, effects = _planned(
        args, lambda quotas: quota_changes(quotas, wanted, prunes=args.prune)
    )
    print_changes(changes, effects)
    print_summary(args, cluster, wanted, changes)
    return _make(args, cluster, changes) if changes else 0


def _undo(args: argparse.Namespace) -> int:
    from tidegate.config.quota_changes import conflicts, load_undo, pending

    cluster_id, recorded = load_undo(args.file)
    cluster, changes, effects = _planned(args, lambda quotas: pending(quotas, recorded))
    if cluster_id is not None and cluster.id is not None and cluster_id != cluster.id:
        raise ConfigError(
            f"{str(args.file)!r} is of cluster {cluster_id}, this is cluster {cluster.id}",
            hint="give the address of the cluster that the quotas were applied to",
        )
    changed = conflicts(cluster.quotas, changes)
    if changed:
        return _refuse_conflicts(changed)
    if not changes:
        print("nothing to undo")
        return 0
    print_changes(changes, effects)
    return _make(args, cluster, changes)


def _make(args: argparse.Namespace, cluster: QuotaCluster, changes: Sequence["QuotaChange"]) -> int:
    """Validate the changes, ask for confirmation, read the quotas again, write the undo file, and apply the changes."""
    from tidegate.config.quota_changes import conflicts, undo_text

    undo = undo_text(changes, cluster_id=cluster.id)
    refused = run_admin(args, lambda admin: _alter(admin, changes, validate_only=True))
    if refused:
        return _refuse(refused, "nothing was changed")
    if not args.yes and not confirmed(f"change {things_text(len(changes), 'value')} of the cluster?"):
        print("not confirmed: nothing was changed", file=sys.stderr)
        return _EXIT_NOT_APPLIED
    changed = conflicts(run_admin(args, _look).quotas, changes)
    if changed:
        return _refuse_conflicts(changed)
    path = args.undo_file or Path(f"quotas-undo-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(undo)
    except FileExistsError as error:
        raise ConfigError(
            f"{str(path)!r} exists already", hint="name another file with --undo-file"
        ) from error
    try:
        refused = run_admin(args, lambda admin: _alter(admin, changes, validate_only=False))
    except (TidegateError, KeyboardInterrupt):
        print(f"some quotas may have changed; {_undo_command(args, path)}", file=sys.stderr)
        raise
    made = [change for change in changes if change.entity not in refused]
    path.write_text(undo_text(made, cluster_id=cluster.id), encoding="utf-8")
    print(
        f"changed: {things_text(len(made), 'value')} of "
        f"{things_text(len({change.entity for change in made}), 'entity', 'entities')}"
    )
    print(_undo_command(args, path))
    return _refuse(refused, "the other quotas were changed") if refused else 0


async def _alter(
    admin: "Admin", changes: Sequence["QuotaChange"], *, validate_only: bool
) -> "dict[EntityParts, str]":
    """Return the cluster's reason for each entity that it refuses."""
    from tidegate.config.quota_changes import alterations

    refused: dict[EntityParts, str] = {}
    for at in range(0, len(changes), _OPS_AT_ONCE):
        wanted = alterations(changes[at : at + _OPS_AT_ONCE])
        results = await admin.alter_client_quotas(wanted, validate_only=validate_only)
        refused |= {entity: str(error) for entity, error in results.items() if error is not None}
    return refused


def _refuse(refused: "dict[EntityParts, str]", ending: str) -> int:
    from tidegate.config.values import entity_text

    _print_reasons([f"{entity_text(entity)}: {reason}" for entity, reason in refused.items()])
    print(f"the cluster refused {things_text(len(refused), 'entity', 'entities')}: {ending}", file=sys.stderr)
    return _EXIT_NOT_APPLIED


def _refuse_conflicts(changed: Sequence[str]) -> int:
    _print_reasons(changed)
    print(
        "another client changed these quotas in the meantime: this command changed nothing", file=sys.stderr
    )
    return _EXIT_NOT_APPLIED


def _print_reasons(lines: Sequence[str]) -> None:
    for line in lines[:_MOST_REASONS]:
        print_error(line, None)
    if len(lines) > _MOST_REASONS:
        print(f"and {len(lines) - _MOST_REASONS:,} more", file=sys.stderr)


def _undo_command(args: argparse.Namespace, path: Path) -> str:
    command = ["tidegate", "quotas", "undo", str(path)]
    if args.bootstrap_server is not None:
        command += ["--bootstrap-server", args.bootstrap_server]
    if args.command_config is not None:
        command += ["--command-config", str(args.command_config)]
    return f"to undo: {shlex.join(command)}"
