"""TLS at the listeners of a node: made at the start, and anew when its stores change while the node runs.

A store is read again if a setting of it changes, and at any change of the node's settings if its file has changed. So
it is enough to alter `listener.name.<name>.ssl.keystore.location` to the same path. Existing connections stay; later
handshakes use the new store. A new certificate must have the same subject name and hosts.
Follows: Kafka `SslFactory.createNewSslEngineFactory`, `DynamicBrokerConfig.reloadUpdatedFilesWithoutConfigChange`.
"""

import contextlib
import logging
import os
from collections.abc import Generator, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from tidegate.errors import ConfigError
from tidegate.scheduling import Scheduler
from tidegate.server.requests.handler import Wait
from tidegate.server.requests.slices import run_on_thread
from tidegate.server.settings.config import ServerConfig
from tidegate.tls.settings import (
    ALLOW_DN_CHANGES,
    ALLOW_SAN_CHANGES,
    STORE_SETTINGS,
    TlsSettings,
)

if TYPE_CHECKING:
    from tidegate.server.listening.tls_config import TlsConfig

__all__ = ["TlsListeners", "store_settings"]

_log = logging.getLogger("tidegate.server")
_LOCATIONS = tuple(name for name in STORE_SETTINGS if name.endswith(".location"))
_Made = tuple[tuple[str, ...], tuple[tuple[int, int, int] | None, ...]]
"""The identity of stores: their settings, and inode, time and size of their files."""


def store_settings(listeners: Iterable[str]) -> set[str]:
    """Return the names of the settings of listeners' stores, which can change while a node runs."""
    return {f"listener.name.{listener.lower()}.{name}" for listener in listeners for name in STORE_SETTINGS}


class TlsListeners:
    """TLS at each encrypted listener of a node."""

    def __init__(self, config: ServerConfig, loop: Scheduler) -> None:
        """Load the TLS configuration of all listeners. Raises `ConfigError` for unusable settings."""
        self._loop = loop
        self._made_of = {name: _made_of(name, config) for name in config.tls_listeners}
        self._configs = {name: _made(name, config) for name in config.tls_listeners}

    def of(self, listener: str) -> "TlsConfig | None":
        """Return the TLS configuration for a new connection; None for a listener without TLS."""
        return self._configs.get(listener)

    def notices(self) -> list[str]:
        """Return a line for each TLS setting without effect."""
        return [notice for config in self._configs.values() for notice in config.notices]

    def prepare_in_slices(
        self, config: ServerConfig
    ) -> Generator[Wait | None, None, Mapping[str, tuple[_Made, "TlsConfig"]]]:
        """Return changed TLS configurations by listener for new settings, read on a thread. Raises `ConfigError`."""
        prepared: dict[str, tuple[_Made, TlsConfig]] = {}
        for name in self._configs:
            made_of = _made_of(name, config)
            if made_of != self._made_of[name]:
                # On a thread, because opening a store would block the loop for too long.
                made = yield from run_on_thread(
                    self._loop, partial(_made, name, config), name="tidegate-stores"
                )
                self._check_same(name, made, config)
                prepared[name] = (made_of, made)
        return prepared

    def follow(self, config: ServerConfig) -> None:
        """Apply settings that were changed before this node started, if their stores can still be read."""
        for name in self._configs:
            made_of = _made_of(name, config)
            if made_of != self._made_of[name]:
                try:
                    self.activate({name: (made_of, _made(name, config))})
                except ConfigError as error:
                    _log.error("%s; listener %s keeps the configuration of the start", error, name)

    def activate(self, prepared: Mapping[str, tuple[_Made, "TlsConfig"]]) -> None:
        """Set the prepared TLS configurations for the handshakes that begin from now on."""
        for name, (made_of, made) in prepared.items():
            self._made_of[name] = made_of
            self._configs[name] = made

    def _check_same(self, name: str, new: "TlsConfig", config: ServerConfig) -> None:
        """Refuse a store of another name, or without some of the hosts, unless the settings allow it.

        Follows: Kafka `SslFactory.CertificateEntries.ensureCompatible`.
        """
        old = self._configs[name]
        if new.has_trust_store and not old.has_trust_store:
            raise ConfigError(
                "Cannot add SSL truststore to an existing listener for which no truststore was configured."
            )
        if old.subject.lower() != new.subject.lower() and not config[ALLOW_DN_CHANGES]:
            raise ConfigError(
                f"Keystore DistinguishedName does not match: existing={old.subject!r}, new={new.subject!r}"
            )
        if not old.hosts <= new.hosts and not config[ALLOW_SAN_CHANGES]:
            raise ConfigError(
                f"Keystore SubjectAltNames do not match: existing={sorted(old.hosts)}, new={sorted(new.hosts)}"
            )


def _made(listener: str, config: ServerConfig) -> "TlsConfig":
    from tidegate.server.listening.tls_config import tls_config  # 10 MB, where there is TLS alone

    return tls_config(listener, config.values, config.given)


def _made_of(listener: str, config: ServerConfig) -> _Made:
    settings = TlsSettings(listener, config.values, config.given)
    texts = tuple(settings[name] for name in STORE_SETTINGS)
    files = tuple(_file(settings[name]) for name in _LOCATIONS)
    return texts, files


def _file(location: str) -> tuple[int, int, int] | None:
    if location:
        with contextlib.suppress(OSError, ValueError):
            status = os.stat(location)
            return status.st_ino, status.st_mtime_ns, status.st_size
    return None
