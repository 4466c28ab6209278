"""Warnings about settings that are changed on a running broker, or were changed before: ignored ones, and lock-outs."""

import logging
from collections.abc import Iterable

from tidegate.config.java_numbers import read_number
from tidegate.errors import ConfigError
from tidegate.quota import EXTENSION_SETTINGS
from tidegate.quota.connections.limits import PER_IP_OVERRIDES, parse_per_ip_overrides
from tidegate.quota.measure.throttle import MAX_INT32
from tidegate.server.config import CALLBACK_SETTINGS, KAFKA_EXACT

__all__ = ["is_beyond_kafka", "warn_of_ignored", "warn_of_refusing"]

_log = logging.getLogger("tidegate.server")

_LIMITS = ("max.connections", "max.connections.per.ip")


def is_beyond_kafka(name: str) -> bool:
    """Return whether Kafka has no such setting, or does not change it on a running broker.

    >>> is_beyond_kafka("tidegate.quota.observe"), is_beyond_kafka("max.connections")
    (True, False)
    """
    return name in EXTENSION_SETTINGS or name.startswith(CALLBACK_SETTINGS)


def warn_of_ignored(names: Iterable[str]) -> None:
    """Log which of these settings have no effect where Kafka is followed exactly."""
    ignored = sorted(filter(is_beyond_kafka, names))
    if ignored:
        _log.warning("ignored %s: no effect with %s=true", ", ".join(ignored), KAFKA_EXACT)


def warn_of_refusing(settings: Iterable[tuple[str, str]], data_dir: str) -> None:
    """Log which of these settings, names and texts, refuse clients that could change them back, and the way back."""
    for name, text in settings:
        if _refuses(name, text):
            _log.warning(
                "%s=%s rejects connections, which includes those of admin clients; hint: to undo the change, stop the "
                "broker and run `tidegate settings %s --reset %s`",
                name,
                text,
                data_dir,
                name,
            )


def _refuses(name: str, text: str) -> bool:
    """Return whether a setting refuses every connection of an address, or all."""
    try:
        if name == PER_IP_OVERRIDES:
            return 0 in parse_per_ip_overrides(text).values()
        return name in _LIMITS and read_number(text.strip(), MAX_INT32) == 0
    except (ConfigError, ValueError):
        return False  # it is not in force
