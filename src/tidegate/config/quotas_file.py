"""Reading of `quotas.yaml`: the quotas of each entity, their owner and reason.

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

from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
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
    "FORMAT_VERSION",
    "MAX_ENTRIES",
    "MAX_MEMBERS",
    "MAX_TEXT_CHARS",
    "TEXT_KEYS",
    "QuotaEntry",
    "QuotaGroup",
    "QuotasFile",
    "checked_note",
    "load_quotas_file",
    "parse_quotas_file",
]

MAX_ENTRIES = 100_000
"""Entries of a file: as many entities with quotas as a large cluster has."""
MAX_MEMBERS = 10_000
"""Members of all groups of a file."""
MAX_TEXT_CHARS = 1000
"""Characters of an owner or a reason."""
FORMAT_VERSION = "1"
_TOP_KEYS = ("version", "windows", "settings", "groups", "quotas")
TEXT_KEYS = ("owner", "reason")
_PART_KEYS = ("name", "default")
_ENTRY_KEYS = (*ENTITY_TYPES, *QUOTA_KEYS, *TEXT_KEYS)
_GROUP_QUOTA_KEYS = tuple(key for key in QUOTA_KEYS if key in keys_for(MEMBER_TYPES[0]))
_GROUP_KEYS = ("name", "members", *_GROUP_QUOTA_KEYS, *TEXT_KEYS)
_MEMBER_HINT = 'write - user: {name: "..."} or - client-id: {name: "..."}'
_FILE_HINT = "see docs/quotas-file.md for the format and an example"
_GROUP_HINT = "a group has a name, members, and at least one quota"


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

    `groups` and `settings` are not Kafka's; `settings` has those of smooth mode, by the broker's names.
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
        """Return the part of the file that Apache Kafka does not have; None if there is none."""
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


class _Parser:
    """The conversion of a file's tree into a `QuotasFile`, or into the error for the first mistake in it."""

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
        if node is not None and self._fields.scalar(node, label="version").text != FORMAT_VERSION:
            raise self._fields.error(f"version must be {FORMAT_VERSION}, got {shown(node)}", node)

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
        self, items: Mapping[str, Node], entity: EntityParts, keys: Container[str]
    ) -> dict[str, float]:
        return {key: self._value(key, node, entity) for key, node in items.items() if key in keys}

    def _texts(self, items: Mapping[str, Node], values: Iterable[str]) -> dict[str, Any]:
        """Return owner, reason, and how the values were written."""
        notes = {key: self._note(key, items.get(key)) for key in TEXT_KEYS}
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
        return self._fields.checked(node, lambda: checked_note(key, text))


def checked_note(key: str, text: str) -> str:
    """Return an owner or a reason. Raises `ConfigError` where it is too long."""
    if len(text) > MAX_TEXT_CHARS:
        raise ConfigError(f"{key} must be at most {MAX_TEXT_CHARS} characters, got {len(text)}")
    return text
