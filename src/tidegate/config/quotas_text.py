"""Writing of `quotas.yaml`, which `quotas_file` reads."""

import io
import math
from collections.abc import Iterable, Iterator
from decimal import Decimal

from tidegate.config.quotas_file import (
    FORMAT_VERSION,
    TEXT_KEYS,
    QuotaEntry,
    QuotaGroup,
    QuotasFile,
    checked_note,
)
from tidegate.config.values import (
    SIZE_KEYS,
    checked_entity,
    checked_smooth_setting,
    checked_value,
    checked_window_setting,
    entity_text,
)
from tidegate.errors import ConfigError
from tidegate.quota.admin.definitions import EntityParts
from tidegate.quota.admin.groups import GROUP_TAG, checked_group_name
from tidegate.quota.admin.keys import ENTITY_TYPES

__all__ = ["dump_quotas_file", "size_text", "value_text"]

_BINARY_UNITS = (("TiB", 1024**4), ("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024))
_DECIMAL_UNITS = (("TB", 1000**4), ("GB", 1000**3), ("MB", 1000**2), ("kB", 1000))


def dump_quotas_file(quotas: QuotasFile) -> str:
    """Return the text of a file that reads back as `quotas`. Raises `ConfigError` where none would.

    Names are always quoted; byte rates are written as sizes where they come out even.
    """
    out = io.StringIO()
    out.write(f"version: {FORMAT_VERSION}\n")
    if quotas.windows:
        out.write("windows:\n")
    for setting, value in quotas.windows.items():
        out.write(f"  {setting}: {checked_window_setting(setting, value)}\n")
    if quotas.settings:
        out.write("settings:\n")
    for setting, given in quotas.settings.items():
        checked = checked_smooth_setting(setting, given)
        out.write(f"  {setting}: {_quoted(checked) if isinstance(checked, str) else checked}\n")
    if quotas.groups:
        out.write("groups:\n")
    _write_items(out, map(_group_lines, quotas.groups))
    out.write("quotas:\n" if quotas.entries else "quotas: []\n")
    _write_items(out, map(_entry_lines, quotas.entries))
    return out.getvalue()


def _write_items(out: io.StringIO, items: Iterable[Iterable[str]]) -> None:
    for first, *others in items:
        out.write(f"  - {first}\n")
        out.writelines(f"    {line}\n" for line in others)


def _entry_lines(entry: QuotaEntry) -> Iterator[str]:
    entity = dict(checked_entity(entry.entity))
    for kind in ENTITY_TYPES:
        if kind in entity:
            yield _part_line(kind, entity[kind])
    if not entry.values:
        raise ConfigError(f"no quota is set for {entity_text(entry.entity)}")
    yield from _value_lines(entry, entry.entity)


def _group_lines(group: QuotaGroup) -> Iterator[str]:
    yield f"name: {_quoted(checked_group_name(group.name))}"
    yield "members:"
    for member in group.members:
        ((kind, name),) = checked_entity([member])
        yield f"  - {_part_line(kind, name)}"
    if not group.members or not group.values:
        raise ConfigError(f"group {group.name!r} needs members and a quota")
    yield from _value_lines(group, ((GROUP_TAG, group.name),))


def _part_line(kind: str, name: str | None) -> str:
    return f"{kind}: {{default: true}}" if name is None else f"{kind}: {{name: {_quoted(name)}}}"


def _value_lines(quota: QuotaEntry | QuotaGroup, entity: EntityParts) -> Iterator[str]:
    for key, value in quota.values.items():
        yield f"{key}: {value_text(key, checked_value(key, value, entity))}"
    for key, text in zip(TEXT_KEYS, (quota.owner, quota.reason), strict=True):
        if text is not None:
            yield f"{key}: {_quoted(checked_note(key, text))}"


def value_text(key: str, value: float) -> str:
    """Return a value as a file has it: a byte rate as a size where it comes out even."""
    if not math.isfinite(value):
        return str(value)  # Kafka stores such values, but a file cannot contain them
    if value.is_integer():
        return size_text(int(value)) if key in SIZE_KEYS else str(int(value))
    return format(Decimal(repr(value)), "f")


def size_text(size_bytes: int) -> str:
    """Return a size exactly, in the unit that makes the shortest text; a power of 1024 where two are equally short.

    >>> [size_text(size) for size in (65536, 12_000_000, 1_200_000, 1_572_864, 1_234_567)]
    ['64KiB', '12MB', '1.2MB', '1536KiB', '1234567']
    """
    if not 0 < size_bytes < 2**63:
        return str(size_bytes)
    found = [f"{size_bytes // factor}{unit}" for unit, factor in _BINARY_UNITS if size_bytes % factor == 0]
    for unit, factor in _DECIMAL_UNITS:
        hundredths, rest = divmod(100 * size_bytes, factor)
        if hundredths >= 100 and rest == 0:
            found.append(f"{Decimal(hundredths) / 100:f}{unit}")
    return min([*found, str(size_bytes)], key=len)


def _quoted(text: str) -> str:
    """Return a double-quoted scalar; whatever does not print is escaped."""
    return f'"{"".join(_escaped(char) for char in text)}"'


def _escaped(char: str) -> str:
    if char in '"\\':
        return f"\\{char}"
    if char.isprintable():
        return char
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
