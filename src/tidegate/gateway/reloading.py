"""New settings and quotas of a running gateway: SIGHUP reads `--config` and `--quotas` again (decision 0144).

Both files are read and checked before anything changes. A file with a mistake changes nothing, and the log names the
mistake. Settings that take effect only at a start, such as `listeners`, keep their values, and the log names them.
"""

import asyncio
import logging
from collections.abc import Callable, Generator, Iterable, Sequence

from tidegate.config.quotas_file import load_quotas_file
from tidegate.errors import ConfigError, TidegateError
from tidegate.gateway.gateway import Gateway, run_work
from tidegate.quota import EXTENSION_SETTINGS, QuotaRecord
from tidegate.server.administration.quota_administration import QuotaAdministration
from tidegate.server.audit import AUDIT_LOGGER, HIDDEN
from tidegate.server.listening.listener_config import limit_settings
from tidegate.server.listening.tls_listeners import store_settings
from tidegate.server.requests.handler import Wait
from tidegate.server.settings.config import ServerConfig
from tidegate.server.settings.setting_texts import is_secret_setting
from tidegate.server.settings.table import CALLBACK_SETTINGS, CONNECTION_SETTINGS

__all__ = ["QuotasOfFile", "Reloading", "with_changes"]

_log = logging.getLogger("tidegate.gateway")
_audit = logging.getLogger(AUDIT_LOGGER)


class QuotasOfFile:
    """The quotas of a file, as a `QuotaStore` that stores nothing. Raises `ConfigFileError` for a mistake in it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._records = self.read()

    def read(self) -> list[QuotaRecord]:
        """Return the quotas that the file has now. Raises `ConfigFileError`."""
        file = load_quotas_file(self._path)
        beyond = file.beyond_kafka() or ("windows" if file.windows else None)
        if beyond is not None:
            _log.warning(
                "ignored %s of %s: a gateway reads only the quotas of this file; hint: use --config or --override",
                beyond,
                self._path,
            )
        return [
            QuotaRecord(entity=entry.entity, key=key, value=value)
            for entry in file.entries
            for key, value in entry.values.items()
        ]

    def load_quotas(self) -> Iterable[QuotaRecord]:
        """Return the quotas that the file had at the start."""
        return self._records

    def apply_quota_records_in_slices(
        self, records: Sequence[QuotaRecord]
    ) -> Generator[Wait | None, None, None]:
        """Raise `TidegateError`: the quotas of a file cannot be altered by a client."""
        raise TidegateError(
            f"the quotas of this gateway are those of {self._path}", hint="change the file, and send SIGHUP"
        )
        yield


class Reloading:
    """Reads the files again after each `request`. read_config: returns the settings that the gateway would start with.

    file: the quotas file, if the quotas come from one.
    """

    def __init__(
        self,
        gateway: Gateway,
        quotas: QuotaAdministration,
        *,
        read_config: Callable[[], ServerConfig],
        file: QuotasOfFile | None,
    ) -> None:
        self._gateway = gateway
        self._quotas = quotas
        self._read_config = read_config
        self._file = file
        self._wanted = asyncio.Event()

    def request(self) -> None:
        """Read the files again soon: the handler of SIGHUP."""
        self._wanted.set()

    async def run(self) -> None:
        """Wait for requests and serve them. Never ends."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                changes = await self._reload()
            except TidegateError as error:
                hint = f"; hint: {error.hint}" if error.hint else ""
                _log.error("kept the current settings and quotas: %s%s", error, hint)
            else:
                _audit.info("files read again: %d settings and %d quotas changed", *changes)

    async def _reload(self) -> tuple[int, int]:
        """Apply what the files have now; return the number of changed settings and quotas. Raises `TidegateError`."""
        given = await asyncio.to_thread(self._read_config)
        records = None if self._file is None else await asyncio.to_thread(self._file.read)
        before = self._gateway.config
        _check_names(before, given)
        config, changed, fixed = with_changes(before, given)
        if changed:
            await run_work(self._gateway.follow_settings_in_slices(config))
        for name in changed:
            _log_change("setting", "gateway", name, before.given.get(name), config.given.get(name))
        if fixed:
            _log.warning("%s: changed in the file, takes effect at the next start", ", ".join(fixed))
        return len(changed), 0 if records is None else await self._follow_quotas(records)

    async def _follow_quotas(self, records: list[QuotaRecord]) -> int:
        """Apply the quotas of the file; return how many changed."""
        wanted = {(record.entity, record.key): record for record in records}
        old = {(record.entity, record.key): record.value for record in self._quotas.definitions.records()}
        changes = [record for place, record in wanted.items() if old.get(place) != record.value]
        changes += [QuotaRecord(entity=e, key=k, value=None) for e, k in old.keys() - wanted.keys()]
        await run_work(self._quotas.follow_in_slices(changes))
        for record in changes:
            name = ", ".join(
                f"{kind}={'<default>' if of is None else repr(of)}" for kind, of in record.entity
            )
            _log_change("quota", name, record.key, old.get((record.entity, record.key)), record.value)
        return len(changes)


def with_changes(before: ServerConfig, given: ServerConfig) -> tuple[ServerConfig, list[str], list[str]]:
    """Return the settings to apply, the names that change now, and the names that change only at the next start.

    Raises `ConfigError` where the settings that change now do not fit those that stay.
    """
    names = sorted(
        name
        for name in before.given.keys() | given.given.keys()
        if before.given.get(name) != given.given.get(name)
    )
    changeable = {
        *CONNECTION_SETTINGS,
        *EXTENSION_SETTINGS,
        *limit_settings(before.listeners),
        *store_settings(before.tls_listeners),
    }
    changed = [name for name in names if name in changeable or name.startswith(CALLBACK_SETTINGS)]
    texts = {**before.given, **{name: given.given[name] for name in changed if name in given.given}}
    for name in changed:
        if name not in given.given:
            del texts[name]
    return ServerConfig.load(texts), changed, [name for name in names if name not in changed]


def _check_names(before: ServerConfig, given: ServerConfig) -> None:
    """Raise `ConfigError` for a new unknown name: it may be a misspelt setting."""
    for name, notice in given.unknown_notices().items():
        if name not in before.unknown:
            raise ConfigError(notice)


def _log_change(resource: str, name: str, key: str, old: str | float | None, new: str | float | None) -> None:
    """Write the line of one change to the audit log."""
    if is_secret_setting(key):
        old, new = (None if value is None else HIDDEN for value in (old, new))
    fields = {"action": "alter", "resource": resource, "name": name, "key": key, "old": old, "new": new}
    _audit.info(
        "file altered %s of %s: %s %r -> %r",
        *(resource, name, key, old, new),
        extra={"audit": {"outcome": "changed", "principal": None, **fields}},
    )
