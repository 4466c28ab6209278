"""Quotas as the file that says them, or as the commands of Apache Kafka that set them."""

import shlex
import textwrap
from collections.abc import Iterator, Sequence
from decimal import Decimal

from tidegate.config.quotas_file import QuotaEntry, QuotasFile, dump_quotas_file
from tidegate.errors import ConfigError
from tidegate.pipeline.report.text import name_text
from tidegate.quota.admin.definitions import EntityParts

__all__ = ["kafka_configs_text", "quotas_text"]

_WIDTH = 80  # columns
_LONGEST_REASON = 1000  # characters
_ENTITY_TYPES = {"user": "users", "client-id": "clients"}


def quotas_text(quotas: QuotasFile, notes: Sequence[str]) -> str:
    """Return the text of a `quotas.yaml` with notes on top."""
    return "\n".join(_comments(notes)) + "\n" + dump_quotas_file(quotas)


def kafka_configs_text(quotas: QuotasFile, notes: Sequence[str]) -> str:
    r"""Return a script for a POSIX shell that sets the quotas; BOOTSTRAP names a broker.

    Raises `ConfigError` for a name that no command line can hold.

    >>> entry = QuotaEntry(entity=(("user", "a'b"),), values={"producer_byte_rate": 1024.0})
    >>> print(kafka_configs_text(QuotasFile(entries=(entry,)), []).splitlines()[-1])
      --add-config producer_byte_rate=1024 --entity-type users --entity-name 'a'"'"'b'
    """
    lines = ["#!/bin/sh", *_comments(notes), 'set -e\n: "${BOOTSTRAP:?names a broker: HOST:PORT}"']
    for entry in quotas.entries:
        lines += ["", *_comments([] if entry.reason is None else [entry.reason])]
        lines += ['kafka-configs.sh --bootstrap-server "$BOOTSTRAP" --alter \\', f"  {_setting(entry)}"]
    return "\n".join(lines) + "\n"


def _setting(entry: QuotaEntry) -> str:
    values = ",".join(f"{key}={_number(value)}" for key, value in entry.values.items())
    return " ".join(("--add-config", values, *_entity(entry.entity)))


def _entity(entity: EntityParts) -> Iterator[str]:
    """Yield the options of an entity. A name that looks like an option is joined to its own."""
    for kind, name in sorted(entity, reverse=True):  # users before clients
        yield f"--entity-type {_ENTITY_TYPES[kind]}"
        if name is None:
            yield "--entity-default"
        elif "\0" in name:
            raise ConfigError(
                f"no command line can hold {kind}={name!r}", hint="leave out --as kafka-configs"
            )
        elif name.startswith("-"):
            yield shlex.quote(f"--entity-name={name}")
        else:
            yield f"--entity-name {shlex.quote(name)}"


def _number(value: float) -> str:
    return format(Decimal(repr(value)), "f").removesuffix(".0")


def _comments(notes: Sequence[str]) -> Iterator[str]:
    """Yield the notes as comments, folded; whatever does not print is escaped."""
    for note in notes:
        indent = " " * (len(note) - len(note.lstrip()))
        shown = name_text(note.strip(), longest=_LONGEST_REASON)
        yield from textwrap.wrap(
            shown,
            _WIDTH,
            initial_indent=f"# {indent}",
            subsequent_indent=f"#   {indent}",
            break_on_hyphens=False,
        )
