"""Reading and writing of `quotas.yaml`: the quotas of each entity, their owner and reason.

>>> quotas = parse_quotas_file('''
... quotas:
...   - user: {name: alice}
...     client-id: {default: true}
...     producer_byte_rate: 4MiB
...     owner: payments
... ''')
>>> quotas.entries[0].entity, quotas.entries[0].values
((('client-id', None), ('user', 'alice')), {'producer_byte_rate': 4194304.0})

The file is specified in `docs/quotas-file.md`. Mistakes are refused with file, line and, if one is known, a
fix; nothing is guessed.
"""

import io
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from tidegate.config.fields import Fields, is_disputed_number, is_number, not_finite, shown
from tidegate.config.plain_yaml import (
    ConfigFileError,
    ListNode,
    Node,
    TableNode,
    read_config_text,
    read_plain_yaml,
)
from tidegate.config.values import (
    SIZE_KEYS,
    SMOOTH_SETTINGS,
    checked_entity,
    checked_smooth_setting,
    checked_value,
    checked_window_setting,
    entity_text,
    parse_size_bytes,
)
from tidegate.errors import ConfigError
from tidegate.quota.admin.definitions import EntityParts, QuotaRecord
from tidegate.quota.admin.groups import GROUP_TAG, MEMBER_TYPES, Groups, checked_group_name
from tidegate.quota.admin.keys import ENTITY_TYPES, QUOTA_KEYS, WINDOW_SETTINGS, keys_for
from tidegate.quota.managers.extensions import SMOOTH, SMOOTH_BURST_S, extension_records

__all__ = [
    "MAX_ENTRIES",
    "MAX_MEMBERS",
    "MAX_TEXT_CHARS",
    "QuotaEntry",
    "QuotaGroup",
    "QuotasFile",
    "dump_quotas_file",
    "load_quotas_file",
    "parse_quotas_file",
    "size_text",
    "value_text",
]

MAX_ENTRIES = 10_000
"""Entries of a file. Follows: Kafka, whose controller takes 10 000 records at a time."""

MAX_MEMBERS = 10_000
"""Members of all groups of a file."""

MAX_TEXT_CHARS = 1000
"""Characters of an owner or a reason."""

_FORMAT_VERSION = "1"
_TOP_KEYS = ("version", "windows", "settings", "groups", "quotas")
_TEXT_KEYS = ("owner", "reason")
_PART_KEYS = ("name", "default")
_ENTRY_KEYS = (*ENTITY_TYPES, *QUOTA_KEYS, *_TEXT_KEYS)
_GROUP_QUOTA_KEYS = tuple(key for key in QUOTA_KEYS if key in keys_for(MEMBER_TYPES[0]))
_GROUP_KEYS = ("name", "members", *_GROUP_QUOTA_KEYS, *_TEXT_KEYS)
_MEMBER_HINT = 'write - user: {name: "..."} or - client-id: {name: "..."}'
_FILE_HINT = "see docs/quotas-file.md for the format and an example"
_GROUP_HINT = "a group has a name, members, and at least one quota"
_BINARY_UNITS = (("TiB", 1024**4), ("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024))
_DECIMAL_UNITS = (("TB", 1000**4), ("GB", 1000**3), ("MB", 1000**2), ("kB", 1000))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Quota:
    """Fields of all quotas of a file: values by Kafka's key, their owner and reason. `texts`: the values as written."""

    values: Mapping[str, float]
    owner: str | None = None
    reason: str | None = None
    texts: Mapping[str, str] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaEntry(_Quota):
    """The quotas of one entity."""

    entity: EntityParts


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaGroup(_Quota):
    """The quotas that all members share: users and client ids by their raw names."""

    name: str
    members: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotasFile:
    """A whole file. `windows` holds the window settings that it names; the others keep Kafka's defaults.

    Not Kafka's: `groups`, and `settings`, those of smooth mode by the broker's names.
    """

    entries: tuple[QuotaEntry, ...] = ()
    windows: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, str | int] = field(default_factory=dict)
    groups: tuple[QuotaGroup, ...] = ()

    def records(self) -> Iterator[QuotaRecord]:
        """Yield a record per value of an entry, then those of the settings, as the engine applies them."""
        for entry in self.entries:
            for key, value in entry.values.items():
                yield QuotaRecord(entity=entry.entity, key=key, value=value)
        yield from extension_records(self.settings)

    def members_and_limits(self) -> Groups:
        """Return the groups as the engine asks them."""
        return Groups(
            members={member: group.name for group in self.groups for member in group.members},
            limits={(group.name, key): value for group in self.groups for key, value in group.values.items()},
        )

    def beyond_kafka(self) -> str | None:
        """Return which part of the file no Kafka has, None where there is none."""
        return "groups" if self.groups else "settings" if self.settings else None


def load_quotas_file(path: str | Path) -> QuotasFile:
    """Read the file at `path`. Raises `ConfigFileError`, which names the file, the line and the mistake."""
    name = str(path)
    with _hinted():
        text = read_config_text(path)
        return parse_quotas_file(text, name=name)


def parse_quotas_file(text: str, *, name: str = "quotas.yaml") -> QuotasFile:
    """Return the quotas in `text`; `name` stands for the file in messages. Raises `ConfigFileError`."""
    with _hinted():
        return _Parser(name).quotas_file(read_plain_yaml(text, name=name))


@contextmanager
def _hinted() -> Iterator[None]:
    """Add a hint to each `ConfigFileError` that has none."""
    try:
        yield
    except ConfigFileError as error:
        error.hint = error.hint or _FILE_HINT
        raise


def dump_quotas_file(quotas: QuotasFile) -> str:
    """Return the text of a file that reads back as `quotas`. Raises `ConfigError` where none would.

    Names are always quoted; byte rates are written as sizes where they come out even.
    """
    out = io.StringIO()
    out.write(f"version: {_FORMAT_VERSION}\n")
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


class _Parser:
    """Turns the tree of a file into a `QuotasFile`, or raises the error that says where it cannot."""

    def __init__(self, name: str) -> None:
        self._fields = Fields(name)
        self._entity_lines: dict[EntityParts, int] = {}
        self._group_lines: dict[str, int] = {}
        self._members: dict[tuple[str, str], str] = {}

    def quotas_file(self, root: Node) -> QuotasFile:
        """Return the whole file."""
        top = self._fields.table(root, _TOP_KEYS, label="the file")
        if "quotas" not in top.items:
            raise self._fields.error("'quotas' is missing", root, hint="write 'quotas: []' for an empty list")
        self._check_version(top)
        entries = self._fields.list(top.items["quotas"], label="quotas")
        if len(entries.items) > MAX_ENTRIES:
            raise self._fields.error(
                f"quotas must be at most {MAX_ENTRIES}, got {len(entries.items)}", entries
            )
        return QuotasFile(
            # First: an entry must not be of a member.
            groups=self._groups(top.items.get("groups", ListNode(line=top.line))),
            entries=tuple(self._entry(node) for node in entries.items),
            windows=self._windows(top.items.get("windows", TableNode(line=top.line))),
            settings=self._settings(top.items.get("settings", TableNode(line=top.line))),
        )

    def _check_version(self, top: TableNode) -> None:
        node = top.items.get("version")
        if node is not None and self._fields.scalar(node, label="version").text != _FORMAT_VERSION:
            raise self._fields.error(f"version must be {_FORMAT_VERSION}, got {shown(node)}", node)

    def _windows(self, node: Node) -> dict[str, int]:
        table = self._fields.table(node, WINDOW_SETTINGS, label="windows")
        return {setting: self._window(setting, value) for setting, value in table.items.items()}

    def _window(self, setting: str, node: Node) -> int:
        number = self._fields.decimal(node, label=setting)
        return self._fields.checked(node, lambda: checked_window_setting(setting, number))

    def _settings(self, node: Node) -> dict[str, str | int]:
        items = self._fields.table(node, SMOOTH_SETTINGS, label="settings").items
        settings = {setting: self._setting(setting, value) for setting, value in items.items()}
        if SMOOTH_BURST_S in settings and SMOOTH not in settings:
            raise self._fields.error(
                f"{SMOOTH_BURST_S} has no effect without {SMOOTH}",
                node,
                hint=f"add {SMOOTH}: all, or a list of entities",
            )
        return settings

    def _setting(self, setting: str, node: Node) -> str | int:
        read = self._fields.text if setting == SMOOTH else self._fields.decimal
        given = read(node, label=setting)
        return self._fields.checked(node, lambda: checked_smooth_setting(setting, given))

    def _groups(self, node: Node) -> tuple[QuotaGroup, ...]:
        items = self._fields.list(node, label="groups").items
        if len(items) > MAX_ENTRIES:
            raise self._fields.error(f"groups must be at most {MAX_ENTRIES}, got {len(items)}", node)
        return tuple(self._group(item) for item in items)

    def _group(self, node: Node) -> QuotaGroup:
        items = self._fields.table(node, _GROUP_KEYS, label="a group").items
        for key in ("name", "members"):
            if key not in items:
                raise self._fields.error(f"a group needs {key}", node, hint=_GROUP_HINT)
        name = self._group_name(items["name"])
        members = self._fields.list(items["members"], label="members")
        if not members.items:
            raise self._fields.error(f"group {name!r} has no members", members, hint=_MEMBER_HINT)
        found = tuple(self._member(member, name) for member in members.items)
        values = self._values(items, ((GROUP_TAG, name),), _GROUP_QUOTA_KEYS)
        if not values:
            raise self._fields.error(
                f"no quota is set for group {name!r}", node, hint=f"keys are {', '.join(_GROUP_QUOTA_KEYS)}"
            )
        return QuotaGroup(name=name, members=found, values=values, **self._texts(items, values))

    def _group_name(self, node: Node) -> str:
        text = self._fields.text(node, label="name")
        name = self._fields.checked(node, lambda: checked_group_name(text))
        if name in self._group_lines:
            raise self._fields.error(
                f"repeated group {name!r}, first on line {self._group_lines[name]}", node
            )
        self._group_lines[name] = node.line
        return name

    def _member(self, node: Node, group: str) -> tuple[str, str]:
        """Return entity type and name of a member; no group has it yet."""
        items = self._fields.table(node, MEMBER_TYPES, label="a member").items
        if len(items) != 1:
            raise self._fields.error("a member must be one user or one client-id", node, hint=_MEMBER_HINT)
        (kind,) = items
        name = self._part(kind, items[kind])
        if name is None:
            raise self._fields.error(
                "a member must have a name, got default: true",
                node,
                hint="for clients in no group, set a default in 'quotas'",
            )
        self._fields.checked(node, lambda: checked_entity([(kind, name)]))
        other = self._members.get((kind, name))
        if other is not None:
            where = f"twice in group {group!r}" if other == group else f"already in group {other!r}"
            raise self._fields.error(f"{entity_text(((kind, name),))} is {where}", node)
        if len(self._members) == MAX_MEMBERS:
            raise self._fields.error(f"members of all groups must be at most {MAX_MEMBERS}", node)
        self._members[kind, name] = group
        return kind, name

    def _entry(self, node: Node) -> QuotaEntry:
        items = self._fields.table(node, _ENTRY_KEYS, label="a quota").items
        parts = [(kind, self._part(kind, items[kind])) for kind in ENTITY_TYPES if kind in items]
        entity = self._fields.checked(node, lambda: checked_entity(parts))
        self._refuse_repetition(entity, node)
        self._refuse_member(entity, node)
        values = self._values(items, entity, QUOTA_KEYS)
        if not values:
            raise self._fields.error(
                f"no quota is set for {entity_text(entity)}", node, hint=f"keys are {', '.join(QUOTA_KEYS)}"
            )
        return QuotaEntry(entity=entity, values=values, **self._texts(items, values))

    def _values(
        self, items: Mapping[str, Node], entity: EntityParts, keys: Iterable[str]
    ) -> dict[str, float]:
        known = set(keys)
        return {key: self._value(key, node, entity) for key, node in items.items() if key in known}

    def _texts(self, items: Mapping[str, Node], values: Iterable[str]) -> dict[str, Any]:
        """Return owner, reason, and how the values were written."""
        notes = {key: self._note(key, items.get(key)) for key in _TEXT_KEYS}
        return notes | {"texts": {key: self._fields.scalar(items[key], label=key).text for key in values}}

    def _part(self, kind: str, node: Node) -> str | None:
        """Return the name of one part of an entity, None for the default entity."""
        hint = f'write {kind}: {{name: "..."}} or {kind}: {{default: true}}'
        if not isinstance(node, TableNode):
            raise self._fields.error(f"{kind} must be a mapping, got {shown(node)}", node, hint=hint)
        items = self._fields.table(node, _PART_KEYS, label=kind).items
        if len(items) != 1:
            raise self._fields.error(f"{kind} must have either a name or default: true", node, hint=hint)
        if "name" in items:
            return self._fields.text(items["name"], label="name")
        default = self._fields.scalar(items["default"], label="default")
        if default.quoted or default.text != "true":
            raise self._fields.error(f"default must be true, got {shown(default)}", default, hint=hint)
        return None

    def _refuse_repetition(self, entity: EntityParts, node: Node) -> None:
        if entity in self._entity_lines:
            raise self._fields.error(
                f"repeated entity {entity_text(entity)}, first on line {self._entity_lines[entity]}", node
            )
        self._entity_lines[entity] = node.line

    def _refuse_member(self, entity: EntityParts, node: Node) -> None:
        """Refuse a quota without effect: a member of a group has only the group's quotas."""
        for kind, name in entity:
            group = None if name is None else self._members.get((kind, name))
            if group is not None:
                raise self._fields.error(
                    f"{entity_text(((kind, name),))} is in group {group!r}, which replaces its own quota",
                    node,
                    hint="remove the quota, or remove the member from the group",
                )

    def _value(self, key: str, node: Node, entity: EntityParts) -> float:
        number = self._size(key, node) if key in SIZE_KEYS else self._fields.decimal(node, label=key)
        return self._fields.checked(node, lambda: checked_value(key, number, entity))

    def _size(self, key: str, node: Node) -> int | float:
        scalar = self._fields.scalar(node, label=key)
        if is_number(scalar) or is_disputed_number(scalar) or not_finite(scalar):
            return self._fields.decimal(node, label=key)
        return self._fields.checked(node, lambda: parse_size_bytes(scalar.text), label=key)

    def _note(self, key: str, node: Node | None) -> str | None:
        if node is None:
            return None
        text = self._fields.text(node, label=key)
        return self._fields.checked(node, lambda: _checked_note(key, text))


def _checked_note(key: str, text: str) -> str:
    if len(text) > MAX_TEXT_CHARS:
        raise ConfigError(f"{key} must be at most {MAX_TEXT_CHARS} characters, got {len(text)}")
    return text


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


def _value_lines(quota: _Quota, entity: EntityParts) -> Iterator[str]:
    for key, value in quota.values.items():
        yield f"{key}: {value_text(key, checked_value(key, value, entity))}"
    for key, text in zip(_TEXT_KEYS, (quota.owner, quota.reason), strict=True):
        if text is not None:
            yield f"{key}: {_quoted(_checked_note(key, text))}"


def value_text(key: str, value: float) -> str:
    """Return a value as a file has it: a byte rate as a size where it comes out even."""
    if not math.isfinite(value):
        return str(value)  # Kafka stores such values; no file has them
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
