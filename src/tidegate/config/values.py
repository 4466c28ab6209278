"""Quota values in Tidegate's own files and commands: stricter than Kafka's checks on the wire.

Kafka stores NaN as a byte rate and 1235.0000001 as a LONG (B§6.8). In a file or on a command line such a
value is a mistake: the error names the entity, the key and what was expected.

>>> checked_value("request_percentage", 50, (("user", "alice"),))
50.0
>>> checked_value("request_percentage", float("nan"), (("client-id", None), ("user", "alice")))
Traceback (most recent call last):
tidegate.config.values.QuotaValueError: request_percentage must be finite, got nan for user='alice', \
client-id=<default>
>>> parse_size_bytes("1.5 GiB")
1610612736

A size is a decimal number and a unit, with blanks between them or none:

    size   = digits [ "." digits ] [ blanks ] [ unit ]
    unit   = "B" | "K" | "M" | "G" | "T"               bytes, or powers of 1024
           | "KiB" | "MiB" | "GiB" | "TiB"             the same powers of 1024
           | "kB" | "KB" | "MB" | "GB" | "TB"          powers of 1000

Units mean what they mean to GNU `dd` and `head`; a size has to come out as a whole number of bytes.
"""

import difflib
import math
import re
from collections.abc import Iterable

from tidegate.errors import ConfigError
from tidegate.quota.admin.definitions import EntityParts, entity_parts, is_ip_address
from tidegate.quota.admin.entity_selection import parse_entities
from tidegate.quota.admin.groups import GROUP_TAG
from tidegate.quota.admin.keys import ENTITY_TYPES, QUOTA_KEYS, WINDOW_SETTINGS, QuotaKey, ValueType, keys_for
from tidegate.quota.managers.extensions import DEBT_MAX_S, SMOOTH, SMOOTH_BURST_S
from tidegate.quota.measure.throttle import MAX_INT32, MAX_INT64
from tidegate.quota.measure.window import MAX_SAMPLES

__all__ = [
    "MAX_NAME_BYTES",
    "MAX_NUMBER_CHARS",
    "MAX_SIZE_BYTES",
    "SIZE_KEYS",
    "SMOOTH_SETTINGS",
    "QuotaValueError",
    "checked_entity",
    "checked_smooth_setting",
    "checked_value",
    "checked_window_setting",
    "cut",
    "did_you_mean",
    "entity_text",
    "groups_text",
    "parse_size_bytes",
    "parse_value",
]

MAX_NAME_BYTES = 2**15 - 1
"""UTF-8 bytes of a user, client id or address. Follows: Kafka's STRING, whose length is an INT16."""

MAX_SIZE_BYTES = MAX_INT64
"""The largest size. Follows: Kafka's LONG."""

SIZE_KEYS = frozenset({"producer_byte_rate", "consumer_byte_rate"})
"""Keys whose value may be written as a size."""

SMOOTH_SETTINGS = (SMOOTH, SMOOTH_BURST_S, DEBT_MAX_S)
"""The broker's settings beyond Kafka that a plan may have, too."""

_LEAST = {SMOOTH_BURST_S: 1, DEBT_MAX_S: 0}
_MAX_SIZE_CHARS = 64
MAX_NUMBER_CHARS = 400  # the longest double has 326 and a few more
_MAX_SHOWN_CHARS = 80
_NAMED_GROUPS = 3
_UNSET_HINT = "omit the key for no limit"
_NUMBER = re.compile(
    r"[-+]?(?:[0-9]+(?P<inexact>\.[0-9]*(?:e[-+]?[0-9]+)?|e[-+]?[0-9]+)?|(?P<other>inf|infinity|nan))",
    re.IGNORECASE | re.ASCII,
)
_SIZE = re.compile(r"([0-9]+)(?:\.([0-9]+))?[ \t]*([A-Za-z]*)")
_UNITS: dict[str, int] = {
    "": 1,
    "B": 1,
    **{letter: 1024**power for power, letter in enumerate("KMGT", start=1)},
    **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", start=1)},
    **{f"{letter}B": 1000**power for power, letter in enumerate("KMGT", start=1)},
    "kB": 1000,
}


class QuotaValueError(ConfigError):
    """Raise when a quota cannot be used; `key`, `value`, `entity`, `expected` say which one and why."""

    def __init__(
        self, *, key: str, value: object, entity: EntityParts, expected: str, hint: str | None = None
    ) -> None:
        super().__init__(f"{key} {expected}, got {value!r} for {entity_text(entity)}", hint=hint)
        self.key = key
        self.value = value
        self.entity = entity
        self.expected = expected


def cut(text: str) -> str:
    """Return `text`, shortened to what a message has room for."""
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}..."


def entity_text(entity: EntityParts) -> str:
    """Return an entity as messages show it.

    >>> entity_text((("client-id", None), ("user", "alice")))
    "user='alice', client-id=<default>"
    """
    parts = dict(entity)
    order = [*(kind for kind in ENTITY_TYPES if kind in parts), *sorted(parts.keys() - set(ENTITY_TYPES))]
    return ", ".join(f"{kind}={_name_text(parts[kind])}" for kind in order)


def groups_text(group_ids: Iterable[str]) -> str:
    """Return the names of groups, the first of them where there are many.

    >>> groups_text(["b", "a", "a"]), groups_text("abcde")
    ("groups 'b' and 'a'", "groups 'a', 'b', 'c' and 2 more")
    """
    names = [repr(cut(name)) for name in dict.fromkeys(group_ids)]
    if len(names) == 1:
        return f"group {names[0]}"
    more = len(names) - _NAMED_GROUPS
    if more > 0:
        return f"groups {', '.join(names[:_NAMED_GROUPS])} and {more} more"
    return f"groups {', '.join(names[:-1])} and {names[-1]}"


def checked_entity(parts: Iterable[tuple[str, str | None]]) -> EntityParts:
    """Return `parts` as an entity. Raises `ConfigError` for a combination or a name that cannot be meant.

    Unlike Kafka, which resolves host names, an ip has to be an address: a name means another one elsewhere.
    """
    entity = entity_parts(parts)
    kinds = {kind for kind, _ in entity}
    if not entity:
        raise ConfigError("an entity needs a user, a client-id or an ip")
    for kind in kinds - set(ENTITY_TYPES):
        raise ConfigError(f"unknown entity type {kind!r}", hint=did_you_mean(kind, ENTITY_TYPES))
    if "ip" in kinds and len(kinds) > 1:
        raise ConfigError(f"an ip cannot be combined with other parts, got {entity_text(entity)}")
    for kind, name in entity:
        _check_name(kind, name)
    return entity


def checked_value(key: str, value: object, entity: EntityParts) -> float:
    """Return `value` as the double that is stored. Raises `QuotaValueError` where it cannot be meant.

    It has to be a finite number above 0; for a LONG or an INT also whole and in range.
    """
    definition = _definition(key, value, entity)
    number = _number(key, value, entity)

    def refuse(expected: str, hint: str | None = None) -> QuotaValueError:
        return QuotaValueError(key=key, value=value, entity=entity, expected=expected, hint=hint)

    if not math.isfinite(number):
        raise refuse("must be finite", _UNSET_HINT)
    if number <= 0:
        raise refuse("must be greater than 0", _UNSET_HINT)
    if number > definition.value_type.maximum:
        most = min(int(definition.value_type.maximum), MAX_SIZE_BYTES)
        raise refuse(f"must be at most {most}", _UNSET_HINT)
    if definition.value_type is not ValueType.DOUBLE and not number.is_integer():
        raise refuse("must be a whole number")
    return number


def parse_value(key: str, text: str, entity: EntityParts) -> float:
    """Return the value that `key=text` on a command line sets: a number or, for byte rates, a size.

    Raises `ConfigError` where it cannot be meant.
    """
    number = _NUMBER.fullmatch(text) if len(text) <= MAX_NUMBER_CHARS else None
    if number is not None:
        return checked_value(key, float(text) if number["inexact"] or number["other"] else int(text), entity)
    if key not in SIZE_KEYS:
        return checked_value(key, text[:_MAX_SIZE_CHARS], entity)
    return checked_value(key, parse_size_bytes(text), entity)


def checked_window_setting(name: str, value: object) -> int:
    """Return a window setting as an int. Raises `ConfigError` unless it is a whole number in range."""
    if name not in WINDOW_SETTINGS:
        raise ConfigError(f"unknown window setting {name!r}", hint=did_you_mean(name, WINDOW_SETTINGS))
    return _whole(name, value, 1, MAX_SAMPLES if name.endswith(".num") else MAX_INT32)


def checked_smooth_setting(name: str, value: object) -> str | int:
    """Return a setting of `SMOOTH_SETTINGS`: entities as the broker takes them, or an int. Raises `ConfigError`."""
    if name in _LEAST:
        return _whole(name, value, _LEAST[name], MAX_INT32)
    assert isinstance(value, str), "texts are read as such"
    parse_entities(value, setting=name)
    return value


def parse_size_bytes(text: str) -> int:
    """Return the bytes that a size such as `4MiB`, `10M` or `1.5 GiB` stands for. Raises `ConfigError`."""
    found = _SIZE.fullmatch(text) if len(text) <= _MAX_SIZE_CHARS else None
    if found is None:
        shown = text if len(text) <= _MAX_SIZE_CHARS else text[:_MAX_SIZE_CHARS] + "..."
        hint = "remove the '/s'" if text.endswith("/s") else "write a number and a unit, such as 4MiB or 10M"
        raise ConfigError(f"{shown!r} is not a size", hint=hint)
    whole, fraction, unit = found.group(1), found.group(2) or "", found.group(3)
    if unit not in _UNITS:
        raise ConfigError(f"{text!r} has unknown unit {unit!r}", hint=_unit_hint(unit))
    scale: int = 10 ** len(fraction)
    size_bytes, rest = divmod(int(whole + fraction) * _UNITS[unit], scale)
    if rest:
        raise ConfigError(f"{text!r} is not a whole number of bytes")
    if size_bytes > MAX_SIZE_BYTES:
        raise ConfigError(f"{text!r} must be at most {MAX_SIZE_BYTES} bytes")
    return size_bytes


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Return a hint that names the known word nearest to `given`, or all of them when none is near."""
    words = list(known)
    folded = {word.lower().replace("-", "_"): word for word in words}
    near = difflib.get_close_matches(given[:100].lower().replace("-", "_"), folded, n=1)
    return f"did you mean {folded[near[0]]!r}?" if near else f"expected one of {', '.join(words)}"


def _definition(key: str, value: object, entity: EntityParts) -> QuotaKey:
    allowed = sorted({name for kind, _ in entity for name in keys_for("user" if kind == GROUP_TAG else kind)})
    if key not in QUOTA_KEYS:
        raise ConfigError(f"unknown quota key {key!r}", hint=did_you_mean(key, allowed or QUOTA_KEYS))
    if key not in allowed:
        kinds = " or ".join(sorted(QUOTA_KEYS[key].entity_types, reverse=True))
        raise QuotaValueError(key=key, value=value, entity=entity, expected=f"is a quota of {kinds}")
    return QUOTA_KEYS[key]


def _number(key: str, value: object, entity: EntityParts) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise QuotaValueError(key=key, value=value, entity=entity, expected="must be a number")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _whole(name: str, value: object, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ConfigError(f"{name} must be a whole number from {least} to {most}, got {value!r}")
    return value


def _check_name(kind: str, name: str | None) -> None:
    if name is None:
        return
    if name == "":
        raise ConfigError(f"the name of a {kind} must not be empty")
    try:
        length_bytes = len(name.encode())
    except UnicodeEncodeError as error:
        raise ConfigError(f"{kind}={name!r} is not valid Unicode") from error
    if length_bytes > MAX_NAME_BYTES:
        raise ConfigError(f"the name of a {kind} must be at most {MAX_NAME_BYTES} bytes, got {length_bytes}")
    if kind == "ip" and not is_ip_address(name):
        raise ConfigError(f"ip={name!r} is not an IPv4 or IPv6 address")


def _name_text(name: str | None) -> str:
    return "<default>" if name is None else repr(cut(name))


def _unit_hint(unit: str) -> str:
    matches = [known for known in _UNITS if known.lower() == unit.lower()]
    expected = matches or ["B", "K", "M", "G", "T", "KiB", "MiB", "GiB", "TiB", "KB", "MB", "GB", "TB"]
    return (
        f"expected one of {', '.join(expected)}" if not matches else f"did you mean {' or '.join(matches)}?"
    )
