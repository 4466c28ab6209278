"""Changes of settings on a running broker, and the reasons for which they are refused, in Kafka's words."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tidegate import error_codes
from tidegate.config.java_numbers import read_number
from tidegate.errors import ConfigError
from tidegate.quota.connections.limits import PER_IP_OVERRIDES, parse_per_ip_overrides
from tidegate.quota.measure.throttle import MAX_INT32
from tidegate.server.settings.setting_texts import is_kafkas_or_ours
from tidegate.server.settings.table import SETTINGS
from tidegate.tls.settings import listed

__all__ = [
    "MAX_SETTINGS",
    "OPERATIONS",
    "RefusedError",
    "SettingChange",
    "changed_texts",
    "check_changes",
    "check_number",
    "check_value",
]

MAX_SETTINGS = 1000
"""Settings of a node that can be kept, and of all nodes together."""
OPERATIONS = SET, DELETE, APPEND, SUBTRACT = range(4)  # Kafka `AlterConfigOp.OpType`


class RefusedError(Exception):
    """Raised where a change is refused: Kafka's code and text."""

    def __init__(self, error_code: int, text: str | None) -> None:
        super().__init__(text)
        self.error_code = error_code
        self.text = text


class SettingChange(NamedTuple):
    """One change: `operation` is one of `OPERATIONS`, by Kafka's numbers."""

    name: str
    operation: int
    value: str | None


def check_number(changes: int) -> None:
    """Check the number of changed settings of one resource. Raises `RefusedError`."""
    if changes > MAX_SETTINGS:
        raise RefusedError(
            error_codes.POLICY_VIOLATION, f"At most {MAX_SETTINGS} settings of a node can be changed."
        )


def check_changes(changes: Sequence[SettingChange]) -> None:
    """Check that no change names a setting twice or sets none. Raises `RefusedError`."""
    names = [change.name for change in changes]
    if len(set(names)) < len(names):
        raise RefusedError(error_codes.INVALID_REQUEST, "Error due to duplicate config keys")
    without = [change.name for change in changes if change.operation != DELETE and change.value is None]
    if without:
        text = f"Null value not supported for : {', '.join(without)}"
        raise RefusedError(error_codes.INVALID_REQUEST, text)


def changed_texts(
    changes: Sequence[SettingChange], texts: Mapping[str, str], lists: Mapping[str, str]
) -> dict[str, str | None]:
    """Return the new text of each setting that changes, None if it is deleted. Raises `RefusedError`.

    texts: the changed settings so far. lists: the settings that are lists, with their defaults.
    """
    unknown = [change.operation for change in changes if change.operation not in OPERATIONS]
    if unknown:
        raise RefusedError(error_codes.INVALID_REQUEST, f"Unknown operations type {unknown[0]}")
    wanted: dict[str, str | None] = {}
    for change in changes:
        if change.operation == SET:
            wanted[change.name] = change.value
        elif change.operation == DELETE:
            if change.name in texts:
                wanted[change.name] = None
        elif change.name in lists:
            current = texts.get(change.name, lists[change.name])
            wanted[change.name] = _changed_list(current, change.value or "", change.operation)
        else:
            what = "append" if change.operation == APPEND else "subtract"
            text = f"Config value {what} is not allowed for config key: {change.name}"
            if not is_kafkas_or_ours(change.name):
                text = f"Unknown config name: {change.name}"
            raise RefusedError(error_codes.INVALID_CONFIG, text)
    return wanted


def _changed_list(current: str, value: str, operation: int) -> str:
    """Return a list with the parts of `value` that it has not, or without them, as Kafka writes it."""
    parts, changed = (listed(text) for text in (value, current))
    if operation == APPEND:
        return ",".join([*changed, *(part for part in dict.fromkeys(parts) if part not in changed)])
    return ",".join(part for part in changed if part not in parts)


def check_value(name: str, text: str) -> None:
    """Check a value. Raises `RefusedError` in Kafka's words."""
    setting = SETTINGS.get(name)
    if name == PER_IP_OVERRIDES:
        try:
            parse_per_ip_overrides(text)
        except ConfigError as error:
            raise RefusedError(error_codes.INVALID_REQUEST, str(error)) from error
    if setting is not None and setting.type == "entities":
        try:
            setting.parse(text)
        except ConfigError as error:
            raise RefusedError(error_codes.INVALID_CONFIG, str(error)) from error
    if setting is None or setting.type != "int":
        return
    try:
        number = read_number(text.strip(), MAX_INT32)
    except ValueError:
        why = f"Invalid value {text} for configuration {name}: Not a number of type INT"
        raise RefusedError(error_codes.INVALID_REQUEST, why) from None
    if setting.least is not None and number < setting.least:
        why = f"Invalid value {number} for configuration {name}: Value must be at least {setting.least}"
        raise RefusedError(error_codes.INVALID_REQUEST, why)
