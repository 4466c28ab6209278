"""Reads and writes `quotas.yaml`: which entity may use how much, who asked for it and why.

>>> quotas = parse_quotas_file('''
... quotas:
...   - user: {name: alice}
...     client-id: {default: true}
...     producer_byte_rate: 4MiB
...     owner: payments
... ''')
>>> quotas.entries[0].entity, quotas.entries[0].values
((('client-id', None), ('user', 'alice')), {'producer_byte_rate': 4194304.0})

The file is specified in `docs/quotas-file.md`. What it does not allow is refused with file, line and, where one is
known, a way to mend it; nothing is guessed.
"""

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

from tidegate.config.fields import Fields, is_disputed_number, is_number, not_finite, shown
from tidegate.config.plain_yaml import (
    MAX_FILE_BYTES,
    ConfigFileError,
    Node,
    TableNode,
    read_plain_yaml,
)
from tidegate.config.values import (
    SIZE_KEYS,
    checked_entity,
    checked_value,
    checked_window_setting,
    entity_text,
    parse_size_bytes,
)
from tidegate.errors import ConfigError
from tidegate.quota.admin.definitions import EntityParts, QuotaRecord
from tidegate.quota.admin.keys import ENTITY_TYPES, QUOTA_KEYS, WINDOW_SETTINGS

__all__ = [
    "MAX_ENTRIES",
    "MAX_TEXT_CHARS",
    "QuotaEntry",
    "QuotasFile",
    "dump_quotas_file",
    "load_quotas_file",
    "parse_quotas_file",
]

MAX_ENTRIES = 10_000
"""Entries of a file. Follows: Kafka, whose controller takes 10 000 records at a time."""

MAX_TEXT_CHARS = 1000
"""Characters of an owner or a reason."""

_FORMAT_VERSION = "1"
_TOP_KEYS = ("version", "windows", "quotas")
_TEXT_KEYS = ("owner", "reason")
_PART_KEYS = ("name", "default")
_ENTRY_KEYS = (*ENTITY_TYPES, *QUOTA_KEYS, *_TEXT_KEYS)
_BINARY_UNITS = (("TiB", 1024**4), ("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024))


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaEntry:
    """What one entity may use: values by Kafka's key, and who wanted it so. `texts` has them as they were written."""

    entity: EntityParts
    values: Mapping[str, float]
    owner: str | None = None
    reason: str | None = None
    texts: Mapping[str, str] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotasFile:
    """A whole file. `windows` holds the window settings that it names; the others keep Kafka's defaults."""

    entries: tuple[QuotaEntry, ...] = ()
    windows: Mapping[str, int] = field(default_factory=dict)

    def records(self) -> Iterator[QuotaRecord]:
        """Yield a record per value, as the engine applies them."""
        for entry in self.entries:
            for key, value in entry.values.items():
                yield QuotaRecord(entity=entry.entity, key=key, value=value)


def load_quotas_file(path: str | Path) -> QuotasFile:
    """Read the file at `path`. Raises `ConfigFileError`, which names the file, the line and the mistake."""
    name = str(path)
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigFileError(f"cannot be read: {error.strerror or error}", name=name, line=None) from error
    if len(content) > MAX_FILE_BYTES:
        raise ConfigFileError(f"file must be at most {MAX_FILE_BYTES} bytes", name=name, line=None)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigFileError("not UTF-8", name=name, line=line) from error
    return parse_quotas_file(text, name=name)


def parse_quotas_file(text: str, *, name: str = "quotas.yaml") -> QuotasFile:
    """Return what `text` says; `name` stands for the file in messages. Raises `ConfigFileError`."""
    return _Parser(name).quotas_file(read_plain_yaml(text, name=name))


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
    out.write("quotas:\n" if quotas.entries else "quotas: []\n")
    for entry in quotas.entries:
        first, *others = _entry_lines(entry)
        out.write(f"  - {first}\n")
        out.writelines(f"    {line}\n" for line in others)
    return out.getvalue()


class _Parser:
    """Turns the tree of a file into a `QuotasFile`, or raises the error that says where it cannot."""

    def __init__(self, name: str) -> None:
        self._fields = Fields(name)
        self._entity_lines: dict[EntityParts, int] = {}

    def quotas_file(self, root: Node) -> QuotasFile:
        """Return the whole file."""
        top = self._fields.table(root, _TOP_KEYS, label="the file")
        if "quotas" not in top.items:
            raise self._fields.error("'quotas' is missing", root, hint="write 'quotas: []' for none")
        self._check_version(top)
        entries = self._fields.list(top.items["quotas"], label="quotas")
        if len(entries.items) > MAX_ENTRIES:
            problem = f"quotas must be at most {MAX_ENTRIES}, got {len(entries.items)}"
            raise self._fields.error(problem, entries)
        return QuotasFile(
            entries=tuple(self._entry(node) for node in entries.items),
            windows=self._windows(top.items.get("windows")),
        )

    def _check_version(self, top: TableNode) -> None:
        node = top.items.get("version")
        if node is not None and self._fields.scalar(node, label="version").text != _FORMAT_VERSION:
            raise self._fields.error(f"version must be {_FORMAT_VERSION}, got {shown(node)}", node)

    def _windows(self, node: Node | None) -> dict[str, int]:
        if node is None:
            return {}
        table = self._fields.table(node, WINDOW_SETTINGS, label="windows")
        return {setting: self._window(setting, value) for setting, value in table.items.items()}

    def _window(self, setting: str, node: Node) -> int:
        number = self._fields.number(node, label=setting)
        return self._fields.checked(node, lambda: checked_window_setting(setting, number))

    def _entry(self, node: Node) -> QuotaEntry:
        items = self._fields.table(node, _ENTRY_KEYS, label="a quota").items
        parts = [(kind, self._part(kind, items[kind])) for kind in ENTITY_TYPES if kind in items]
        entity = self._fields.checked(node, lambda: checked_entity(parts))
        self._refuse_repetition(entity, node)
        values = {key: self._value(key, items[key], entity) for key in items if key in QUOTA_KEYS}
        texts = {key: self._fields.scalar(items[key], label=key).text for key in values}
        if not values:
            hint = f"keys are {', '.join(QUOTA_KEYS)}"
            raise self._fields.error(f"no quota is set for {entity_text(entity)}", node, hint=hint)
        owner, reason = (self._note(key, items.get(key)) for key in _TEXT_KEYS)
        return QuotaEntry(entity=entity, values=values, owner=owner, reason=reason, texts=texts)

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
            problem = f"repeated entity {entity_text(entity)}, first on line {self._entity_lines[entity]}"
            raise self._fields.error(problem, node)
        self._entity_lines[entity] = node.line

    def _value(self, key: str, node: Node, entity: EntityParts) -> float:
        number = self._size(key, node) if key in SIZE_KEYS else self._fields.number(node, label=key)
        return self._fields.checked(node, lambda: checked_value(key, number, entity))

    def _size(self, key: str, node: Node) -> int | float:
        scalar = self._fields.scalar(node, label=key)
        if is_number(scalar) or is_disputed_number(scalar) or not_finite(scalar):
            return self._fields.number(node, label=key)
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
            name = entity[kind]
            yield f"{kind}: {{default: true}}" if name is None else f"{kind}: {{name: {_quoted(name)}}}"
    if not entry.values:
        raise ConfigError(f"no quota is set for {entity_text(entry.entity)}")
    for key, value in entry.values.items():
        yield f"{key}: {_value_text(key, checked_value(key, value, entry.entity))}"
    for key, text in zip(_TEXT_KEYS, (entry.owner, entry.reason), strict=True):
        if text is not None:
            yield f"{key}: {_quoted(_checked_note(key, text))}"


def _value_text(key: str, value: float) -> str:
    if value.is_integer():
        return _size_text(int(value)) if key in SIZE_KEYS else str(int(value))
    return format(Decimal(repr(value)), "f")


def _size_text(size_bytes: int) -> str:
    for unit, factor in _BINARY_UNITS:
        if size_bytes % factor == 0 and size_bytes < 2**63:
            return f"{size_bytes // factor}{unit}"
    return str(size_bytes)


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
