"""The settings of one node: read from texts, checked against the table of all settings, one by one and together.

`ServerConfig.load` reports names that the table does not have, and refuses values that cannot be.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidegate.config.windows import Windows
from tidegate.errors import ConfigError
from tidegate.quota.admin.definitions import QuotaRecord
from tidegate.quota.admin.keys import WINDOW_SETTINGS
from tidegate.quota.managers.extensions import (
    EXTENSION_SETTINGS,
    extension_records,
)
from tidegate.server.listening.listener_config import (
    ListenerConfig,
    inter_broker_listener,
    limit_settings,
    listener_configs,
)
from tidegate.server.listening.sasl_config import JAAS, sasl_settings
from tidegate.server.process_memory import process_memory_bytes
from tidegate.server.settings.kafka_settings import (
    ALLOW_IF_NO_ACL,
    AUTHORIZER_CLASS,
    CALLBACK_CLASS,
    SHARE_OF_MEMORY,
    SUPER_USERS,
)
from tidegate.server.settings.metrics_settings import (
    METRICS_LISTENER,
    METRICS_NAME,
    MetricsConfig,
    metrics_config,
)
from tidegate.server.settings.setting import in_ms
from tidegate.server.settings.table import (
    BEHIND_OTHERS,
    CALLBACK_SETTINGS,
    KAFKA_EXACT,
    SETTINGS,
    STATIC_QUOTA_SETTINGS,
)
from tidegate.server.settings.unused_settings import check_needed, is_unused
from tidegate.tls.settings import (
    tls_settings,
)

__all__ = [
    "ServerConfig",
    "guess",
    "request_memory_bytes",
]

_MEMORY_SHARE = 8

_LONGEST_GUESSED = 100  # letters: looking for what is similar takes time
_SIMILAR = 0.8
_OWN_NAMES = "tidegate."


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The settings in force. `config["num.partitions"]` is typed as the table says; `given` has those that were set."""

    values: Mapping[str, Any] = field(repr=False)  # it has passwords
    listeners: tuple[ListenerConfig, ...]
    inter_broker_listener: str | None
    data_dir: Path
    usage_dir: Path
    metrics: MetricsConfig | None = None
    given: Mapping[str, str] = field(default_factory=dict, repr=False)  # it has passwords
    unknown: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @classmethod
    def load(cls, texts: Mapping[str, str]) -> "ServerConfig":
        """Return the settings that `texts` stand for.

        Raises `ConfigError` for a value that cannot be, and for an unknown setting of Tidegate's own.
        """
        texts = dict(texts)
        if "log.dir" in texts:
            texts.setdefault("log.dirs", texts.pop("log.dir"))
        if "broker.id" in texts:
            number = texts.pop("broker.id")
            if texts.setdefault("node.id", number) != number:
                raise ConfigError(
                    f"broker.id is {number!r} and node.id is {texts['node.id']!r}, expected the same number"
                )
        given = dict(texts)
        check_needed(texts)
        for name, (behind, unit_ms, least) in BEHIND_OTHERS.items():
            if name in texts:
                texts.setdefault(behind, in_ms(name, texts.pop(name), unit_ms, least))
        values = {name: setting.default for name, setting in SETTINGS.items()}
        values |= {name: SETTINGS[name].parse(text) for name, text in texts.items() if name in SETTINGS}
        _check_together(values)
        if "," in values["log.dirs"] or not values["log.dirs"]:
            raise ConfigError(f"log.dirs is {values['log.dirs']!r}, expected one directory")
        data_dir = Path(values["log.dirs"])
        listeners = listener_configs(values, texts)
        names = [each.name for each in listeners]
        metrics = metrics_config(values, texts)
        of_listeners = limit_settings(listeners).keys() | sasl_settings(names) | tls_settings(names)
        if metrics is not None and metrics.is_https:
            _check_name_is_free(names, values[METRICS_LISTENER])
            of_listeners |= tls_settings([METRICS_NAME])
        rest = sorted(texts.keys() - SETTINGS.keys() - of_listeners)
        _check_own_names(rest)
        return cls(
            values=values,
            listeners=listeners,
            inter_broker_listener=inter_broker_listener(values, listeners),
            data_dir=data_dir,
            usage_dir=Path(values["tidegate.usage.dir"])
            if values["tidegate.usage.dir"]
            else data_dir / "usage",
            metrics=metrics,
            given=given,
            unknown=tuple(
                name for name in rest if not is_unused(name) and not name.startswith(CALLBACK_SETTINGS)
            ),
            ignored=tuple(name for name in rest if is_unused(name)),
        )

    def for_callback(self) -> dict[str, Any]:
        """Return what a quota callback is configured with: all settings in force, and the texts of all others given."""
        return {**self.given, **self.values}

    @property
    def tls_listeners(self) -> tuple[str, ...]:
        """The names of the listeners that use TLS, that of the metrics listener among them."""
        names = [each.name for each in self.listeners if each.is_encrypted]
        if self.metrics is not None and self.metrics.is_https:
            names.append(METRICS_NAME)
        return tuple(names)

    @property
    def is_by_scram_alone(self) -> bool:
        """Return whether every listener requires a login by SCRAM."""
        return all(each.sasl is not None and not each.sasl.plain_users for each in self.listeners)

    @property
    def is_exact(self) -> bool:
        """Return whether Kafka is followed exactly: no behavior beyond Kafka's is in force."""
        return bool(self[KAFKA_EXACT])

    def extension_records(self) -> Iterator[QuotaRecord]:
        """Yield the records of what goes beyond Kafka's quotas; none where Kafka is followed exactly."""
        return iter(()) if self.is_exact else extension_records(self.values)

    def window_records(self) -> Iterator[QuotaRecord]:
        """Yield the window settings as the usage record contains them."""
        return (QuotaRecord(entity=(), key=key, value=float(self[key])) for key in WINDOW_SETTINGS)

    @property
    def quota_windows(self) -> Windows:
        """The windows that quotas are measured in."""
        return Windows.of({name: self[name] for name in WINDOW_SETTINGS})

    def unknown_notices(self) -> dict[str, str]:
        """Return the line about each unknown setting, by its name: it names the known setting that is most like it."""
        names = [each.name for each in self.listeners]
        of_listeners = sasl_settings(names) | tls_settings([*names, *self.tls_listeners])
        known = (*SETTINGS, *limit_settings(self.listeners), *sorted(of_listeners))
        return {name: f"unknown setting {name!r} has no effect{guess(name, known)}" for name in self.unknown}

    def notices(self) -> list[str]:
        """Return a line for every setting that was given and has no effect."""
        lines = list(self.unknown_notices().values())
        if JAAS in self.unknown:
            lines.append(f"{JAAS} is a setting of clients; hint: use listener.name.<name>.<mechanism>.{JAAS}")
        if not self[CALLBACK_CLASS]:
            lines += [
                f"{name!r} has no effect without {CALLBACK_CLASS}{guess(name, (CALLBACK_CLASS,))}"
                for name in sorted(self.given)
                if name.startswith(CALLBACK_SETTINGS) and name != CALLBACK_CLASS
            ]
        if not self[AUTHORIZER_CLASS]:
            lines += [
                f"{name!r} has no effect without {AUTHORIZER_CLASS}"
                for name in (SUPER_USERS, ALLOW_IF_NO_ACL)
                if name in self.given
            ]
        if ",User:" in self[SUPER_USERS]:
            lines.append(
                f"{SUPER_USERS} contains ',User:', which is read as part of a name; hint: separate users by ;"
            )
        static = [name for name in self.given if name in STATIC_QUOTA_SETTINGS]
        if static and self.is_exact:
            lines.append(f"{KAFKA_EXACT}: {', '.join(static)} has no effect, as in Kafka since 3.0")
        beyond = sorted(self.given.keys() & EXTENSION_SETTINGS)
        if beyond and self.is_exact:
            lines.append(f"{KAFKA_EXACT}: {', '.join(beyond)} has no effect: Kafka has no such setting")
        if self.ignored:
            lines.append(f"ignored Kafka settings without effect in Tidegate: {', '.join(self.ignored)}")
        return lines


def _check_own_names(unknown: Iterable[str]) -> None:
    """Raise `ConfigError` for a misspelt setting of Tidegate's own: without `tidegate.quota.observe`, quotas apply.

    Other unknown names have no effect, as in Kafka, whose files have settings of other programs.
    """
    for name in unknown:
        if name.startswith(_OWN_NAMES):
            close = guess(name, SETTINGS).removeprefix("; ")
            raise ConfigError(
                f"unknown setting {name!r}",
                hint=close or "`tidegate serve --list-settings` lists the settings",
            )


def guess(name: str, known: Iterable[str]) -> str:
    """Return the end of a sentence that asks whether another setting was meant; nothing where none is similar."""
    if len(name) > _LONGEST_GUESSED:
        return ""
    close = difflib.get_close_matches(name, known, n=1, cutoff=_SIMILAR)
    return f"; did you mean {close[0]!r}?" if close else ""


def request_memory_bytes(config: ServerConfig) -> int:
    """Return how much memory the requests that are coming in may take together, -1 for no bound."""
    most_bytes: int = config["queued.max.request.bytes"]
    return most_bytes if most_bytes != SHARE_OF_MEMORY else process_memory_bytes() // _MEMORY_SHARE


def _check_name_is_free(names: Iterable[str], address: str) -> None:
    """Refuse a listener with the name that the metrics listener's settings of TLS have."""
    if METRICS_NAME in names:
        raise ConfigError(
            f"listeners has {METRICS_NAME!r}, which is the name of {METRICS_LISTENER}={address} in the settings of "
            "TLS, expected another name",
            hint="rename the listener, also in listener.security.protocol.map",
        )


def _check_together(values: Mapping[str, Any]) -> None:
    """Refuse values that Kafka refuses together, or after their type. Follows: Kafka `KafkaConfig.validateValues`."""
    if values["log.retention.ms"] == 0:
        raise ConfigError("log.retention.ms is 0, expected at least 1, or -1 for no limit")
    queued, largest = values["queued.max.request.bytes"], values["socket.request.max.bytes"]
    if 0 < queued < largest:
        raise ConfigError(
            f"queued.max.request.bytes is {queued}, expected at least socket.request.max.bytes, which is {largest}"
        )
    if values["max.connections.per.ip"] == 0 and not values["max.connections.per.ip.overrides"]:
        raise ConfigError(
            "max.connections.per.ip is 0, which rejects every client: expected at least 1, or "
            "max.connections.per.ip.overrides"
        )
