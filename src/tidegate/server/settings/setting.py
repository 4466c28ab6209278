"""One setting of a node, and constructors for each type of value."""

from dataclasses import dataclass
from typing import Any

from tidegate.acl import parse_super_users
from tidegate.config.java_numbers import read_number
from tidegate.errors import ConfigError
from tidegate.quota.admin.entity_selection import parse_entities
from tidegate.quota.measure.throttle import MAX_INT32, MAX_INT64

__all__ = ["Setting", "boolean", "entities", "in_ms", "integer", "long", "string"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting. `type` is int, long, bool, string, entities or principals (both kept as text), or the texts that
    are allowed.
    """

    name: str
    type: str | tuple[str, ...]
    default: Any
    least: int | None = None
    most: int | None = None
    doc: str

    def parse(self, text: str) -> Any:
        """Return the value that `text` stands for. Raises `ConfigError` naming the setting."""
        text = text.strip()
        if isinstance(self.type, tuple):
            if text not in self.type:
                expected = ", ".join(each or "nothing" for each in self.type)
                raise ConfigError(f"{self.name} is {text!r}, expected one of {expected}")
            return text
        if self.type == "string":
            return text
        if self.type == "entities":
            parse_entities(text, setting=self.name)
            return text
        if self.type == "principals":
            parse_super_users(text)
            return text
        if self.type == "bool":
            if text.lower() not in ("true", "false"):
                raise ConfigError(f"{self.name} is {text!r}, expected true or false")
            return text.lower() == "true"
        return self._parse_number(text)

    def _parse_number(self, text: str) -> int:
        limit = MAX_INT32 if self.type == "int" else MAX_INT64
        most = limit if self.most is None else self.most
        least = -limit - 1 if self.least is None else self.least
        try:
            number = read_number(text, limit)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise ConfigError(f"{self.name} is {text!r}, expected a whole number from {least} to {most}")
        return number


def integer(name: str, default: int, least: int | None, doc: str, most: int | None = None) -> Setting:
    """Return a setting that is an INT."""
    return Setting(name=name, type="int", default=default, least=least, most=most, doc=doc)


def long(name: str, default: int, least: int | None, doc: str) -> Setting:
    """Return a setting that is a LONG."""
    return Setting(name=name, type="long", default=default, least=least, doc=doc)


def boolean(name: str, default: bool, doc: str) -> Setting:
    """Return a setting that is true or false."""
    return Setting(name=name, type="bool", default=default, doc=doc)


def string(name: str, default: str, doc: str) -> Setting:
    """Return a setting that is any text."""
    return Setting(name=name, type="string", default=default, doc=doc)


def entities(name: str, doc: str) -> Setting:
    """Return a setting that selects clients; by default none."""
    return Setting(name=name, type="entities", default="none", doc=doc)


def in_ms(name: str, text: str, unit_ms: int, least: int) -> str:
    """Return a value in another unit as text in ms; negative ones stay. Raises `ConfigError`."""
    number = (integer if unit_ms > 1 else long)(name, least, least, "").parse(text)
    return str(number if number < 0 else number * unit_ms)
