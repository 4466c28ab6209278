"""Output of `tidegate quotas plan` and `apply`: changes, their effects on consumer groups, and a forecast."""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tidegate.cli.arguments import ArgumentParser, printable
from tidegate.pipeline.report.text import things_text

if TYPE_CHECKING:
    from tidegate.cli.quota_effects import QuotaEffects
    from tidegate.config.quota_changes import QuotaChange, Quotas

__all__ = [
    "WHERE",
    "QuotaCluster",
    "print_changes",
    "print_forecast",
    "print_json",
    "print_summary",
]

WHERE = ("from_ms", "to_ms", "last_ms", "master", "explain")
"""Options of `--usage`: what `where_options` adds."""
_MOST_WARNINGS = 20  # lines
_MOST_WIDTH = 40  # of a column; what is longer is printed in full
_SIGNS = {
    (False, True): "+",
    (True, True): "~",
    (True, False): "-",
}  # by whether there was, and will be, a value


class QuotaCluster(NamedTuple):
    """A cluster's id and its quotas."""

    id: str | None
    quotas: "Quotas"


def print_changes(changes: Sequence["QuotaChange"], effects: "QuotaEffects") -> None:
    """Print a line for each change, aligned: its sign, the entity, the key, the old and the new value.

    Then print a warning for each group that the changes concern, and a note for what was not examined.
    """
    from rich.cells import cell_len

    from tidegate.config.quotas_text import value_text
    from tidegate.config.values import entity_text
    from tidegate.pipeline.report.names import padded

    rows = [
        (
            _SIGNS[change.before is not None, change.after is not None],
            printable(entity_text(change.entity)),
            printable(change.key),
            " → ".join(value_text(change.key, value) for value in change[2:] if value is not None),
        )
        for change in changes
    ]
    widths = (
        [min(max(cell_len(row[column]) for row in rows), _MOST_WIDTH) for column in (1, 2)] if rows else []
    )
    for sign, entity, key, values in rows:
        print(f"{sign} {padded(entity, widths[0])}  {padded(key, widths[1])}  {values}")
    if rows:
        print()
    for effect in effects.warnings[:_MOST_WARNINGS]:
        print(f"warning: {printable(effect.message)}\n  hint: {printable(effect.hint)}")
    if len(effects.warnings) > _MOST_WARNINGS:
        print(f"and {len(effects.warnings) - _MOST_WARNINGS:,} more warnings")
    if effects.warnings:
        print()
    for note in effects.notes:
        print(f"note: {printable(note)}", file=sys.stderr)


def print_summary(
    args: argparse.Namespace, cluster: QuotaCluster, wanted: "Quotas", changes: Sequence["QuotaChange"]
) -> None:
    entities = {change.entity for change in changes}
    if changes:
        print(
            f"to change: {things_text(len(changes), 'value')} of {things_text(len(entities), 'entity', 'entities')}"
        )
    same = len(wanted.keys() - entities)
    print(
        f"as in the file: {things_text(same, 'entity', 'entities')}"
        + ("" if changes else "; nothing to change")
    )
    others = len(cluster.quotas.keys() - wanted.keys())
    if others and not args.prune:
        print(
            f"not in the file, left as they are: {things_text(others, 'entity', 'entities')} "
            "(--prune removes their quotas)"
        )


def print_json(
    args: argparse.Namespace,
    cluster: QuotaCluster,
    wanted: "Quotas",
    changes: Sequence["QuotaChange"],
    effects: "QuotaEffects",
) -> None:
    """Print the plan as a JSON document."""
    document = {
        "format": 1,
        "command": "quotas plan",
        "file": str(args.file),
        "cluster_id": cluster.id,
        "differs": bool(changes),
        "changes": [
            {"entity": dict(each.entity), "key": each.key, "before": each.before, "after": each.after}
            for each in changes
        ],
        "effects": {
            "groups": effects.groups,
            "warnings": [{**asdict(effect), "entity": dict(effect.entity)} for effect in effects.warnings],
            "notes": list(effects.notes),
        },
        "not_in_file": [dict(entity) for entity in sorted(cluster.quotas.keys() - wanted.keys(), key=str)],
    }
    print(json.dumps(document, indent=2))


def print_forecast(args: argparse.Namespace, quotas: "Quotas") -> None:
    """Print the effect of quotas on recorded traffic, as `tidegate replay` does."""
    from tidegate.cli import replay
    from tidegate.config.quota_changes import exported
    from tidegate.config.quotas_text import dump_quotas_file

    parser = ArgumentParser(prog="tidegate")
    replay.add_parser(parser.add_subparsers(dest="command"))
    file, refused = exported(quotas)
    for line in refused:
        print(f"note: not in the forecast: {printable(line)}", file=sys.stderr)
    print()
    with tempfile.TemporaryDirectory(prefix="tidegate-") as place:
        path = Path(place) / "after.yaml"
        path.write_text(dump_quotas_file(file), encoding="utf-8")
        forecast = parser.parse_args(["replay", args.usage, "--quotas", str(path)])
        for name in WHERE:
            setattr(forecast, name, getattr(args, name))
        replay.run(forecast)
