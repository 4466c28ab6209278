"""The quota definitions of a cluster: loads and alters them, and sends them to the nodes, which apply them.

An alteration is validated, stored, sent to every subscriber and answered in this order, completely or not at all, in
slices; the next one waits until it is over. For requests that describe quotas, all changes take effect at the same
moment; for clients, record by record, as Kafka's brokers apply a change of the metadata. Host names are looked up
before that, so that no other client waits for a name server.
"""

import asyncio
import logging
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Protocol

from tidegate.error_codes import KAFKA_STORAGE_ERROR
from tidegate.errors import TidegateError
from tidegate.in_slices import run_at_once
from tidegate.quota import Alteration, AlterOutcome, AlterResult, QuotaDefinitions, QuotaRecord
from tidegate.quota.admin.alterations import distinct_in_slices, is_change, is_writable
from tidegate.quota.admin.keys import CONNECTION_CREATION_RATE
from tidegate.server.administration.host_names import (
    Addresses,
    HostNames,
    addresses_of_literal,
    warn_of_unknown,
)
from tidegate.server.audit import MAX_LINES
from tidegate.server.requests.handler import Wait
from tidegate.server.requests.slices import OneAtATime

__all__ = ["QuotaAdministration", "QuotaStore", "QuotaSubscriber"]

_log = logging.getLogger("tidegate.server")

_IN_FORCE_AT_A_TIME = 10  # records sent to subscribers between two yields: half a millisecond
_PREPARED_AT_A_TIME = 100


OnChange = Callable[[QuotaRecord, float | None], None]


class QuotaStore(Protocol):
    """A store of quota definitions; `tidegate.storage` has the store on disk."""

    def load_quotas(self) -> Iterable[QuotaRecord]:
        """Return a record per stored definition."""

    def apply_quota_records_in_slices(self, records: Sequence[QuotaRecord]) -> Generator[Any, None, None]:
        """Store all of `records`, or none, yielding in between: they survive `kill -9` when this returns.

        Yields None, or a `Wait`.

        Raises `TidegateError` or `OSError` if they cannot be stored; nothing has changed then. Call it for one
        alteration at a time.
        """


class QuotaSubscriber(Protocol):
    """A subscriber that applies definitions: a node."""

    def on_quota(self, record: QuotaRecord) -> None:
        """Apply one definition, or remove it."""

    def on_ip_rate(self, address: str | None, rate: float | None) -> None:
        """Limit new connections of an address (None: of each address without its own rate) to `rate` a second.

        rate: None: remove the limit. If an ip entity is a host name, this is called for each of its addresses.
        """


class QuotaAdministration:
    """The quota definitions that DescribeClientQuotas reads, AlterClientQuotas changes, and nodes receive.

    changes: no quota changes between its `begin` and `end`.
    """

    def __init__(self, store: QuotaStore, loop: asyncio.AbstractEventLoop) -> None:
        self.definitions = QuotaDefinitions()
        self.host_names = HostNames(loop)
        self._store = store
        self._subscribers: list[QuotaSubscriber] = []
        self._host_addresses: dict[str, Addresses] = {}  # of the hosts whose rate is in force
        self.changes = OneAtATime()

    def load(self) -> None:
        """Load the stored definitions; host names in them are resolved later.

        Remove a definition whose name is too long for any answer: it would make every description fail.
        """
        stored = list(self._store.load_quotas())
        kept = [record for record in stored if _is_writable(record)]
        if len(kept) < len(stored):
            self._remove_unwritable([record for record in stored if not _is_writable(record)])
        self.definitions.apply(kept)
        hosts = set()
        for record in kept:
            host = _host(record)
            if host is not None:
                addresses = addresses_of_literal(host)
                if addresses:
                    self._host_addresses[host] = addresses
                else:
                    hosts.add(host)
        self.host_names.look_up_later(sorted(hosts), self._on_host)

    def subscribe(self, subscriber: QuotaSubscriber) -> None:
        """Send all definitions to a node now, and each changed one from then on."""
        for record in self.definitions.records():
            subscriber.on_quota(record)
            if record.key == CONNECTION_CREATION_RATE:
                for address in self._limited_addresses(record):
                    subscriber.on_ip_rate(address, record.value)
        self._subscribers.append(subscriber)

    def unsubscribe(self, subscriber: QuotaSubscriber) -> None:
        """Stop sending definitions to a node."""
        self._subscribers.remove(subscriber)

    def close(self) -> None:
        """Stop looking up names."""
        self.host_names.close()

    def alter_in_slices(
        self, alterations: Sequence[Alteration], on_change: OnChange, *, validate_only: bool
    ) -> Generator[Wait | None, None, Iterable[AlterResult]]:
        """Apply the alterations, or only validate them, and return a result for each entity.

        on_change: called for each stored change with its record and old value; past `MAX_LINES` changes with None.
        """
        addresses = yield from self._look_up_hosts(alterations)
        yield from self.changes.acquire()
        try:
            outcome = yield from self.definitions.alter_in_slices(
                alterations, validate_only=validate_only, is_known_host=lambda name: bool(addresses.get(name))
            )
            if outcome.records:
                return (yield from self._publish_in_slices(outcome, addresses, on_change))
            return outcome.results
        finally:
            self.changes.release()

    def follow_in_slices(self, records: Iterable[QuotaRecord]) -> Generator[Wait | None, None, None]:
        """Apply definitions that this or another process has stored, in the order in which they were stored.

        They are iterated over when no other change is under way. Of several for the same quota, only the last counts.
        """
        yield from self.changes.acquire()
        try:
            last = {(record.entity, record.key): record for record in records}.values()
            values = self.definitions.values
            changed = [each for each in last if is_change(values(each.entity).get(each.key), each.value)]
            changes = yield from self.definitions.prepare_in_slices(changed)
            self.definitions.activate(changes)
            for number, record in enumerate(changed):
                host = _host(record)
                addresses: Addresses = () if host is None else addresses_of_literal(host)
                self._notify(record, addresses)
                if host is not None and not addresses and record.value is not None:
                    self.host_names.look_up_later([host], self._on_host)
                if number % _IN_FORCE_AT_A_TIME == 0:
                    yield None
        finally:
            self.changes.release()

    def _look_up_hosts(
        self, alterations: Sequence[Alteration]
    ) -> Generator[Wait | None, None, dict[str, Addresses]]:
        names: dict[str, None] = {}
        for number, alteration in enumerate(alterations):
            parts = yield from distinct_in_slices(alteration.entity)
            name = parts.get("ip")
            if name is not None and len(parts) == 1:
                names[name] = None
            if number % _PREPARED_AT_A_TIME == 0:
                yield None
        return (yield from self.host_names.look_up(names))

    def _publish_in_slices(
        self, outcome: AlterOutcome, addresses: dict[str, Addresses], on_change: OnChange
    ) -> Generator[None, None, Iterable[AlterResult]]:
        """Store the changes, then send them. If storing fails, nothing changes, and all entities get the error."""
        changes = yield from self.definitions.prepare_in_slices(outcome.records)
        try:
            yield from self._store.apply_quota_records_in_slices(outcome.records)
        except (TidegateError, OSError) as error:
            _log.error("cannot store quota definitions: %s", error, extra={"repeats": "quotas"})
            message = "The quota definitions could not be stored; nothing was changed."
            return (
                AlterResult(entity=result.entity, error_code=KAFKA_STORAGE_ERROR, error_message=message)
                for result in outcome.results
            )
        old = [
            self.definitions.values(record.entity).get(record.key) for record in outcome.records[:MAX_LINES]
        ]
        self.definitions.activate(changes)
        yield
        for number, record in enumerate(outcome.records):
            host = _host(record)
            self._notify(record, () if host is None else addresses[host])
            on_change(record, old[number] if number < len(old) else None)
            if number % _IN_FORCE_AT_A_TIME == 0:
                yield
        return outcome.results

    def _notify(self, record: QuotaRecord, addresses: Addresses) -> None:
        """Send one definition to the subscribers. addresses: those of its host, if it is for a host."""
        for subscriber in self._subscribers:
            subscriber.on_quota(record)
        if record.key == CONNECTION_CREATION_RATE:
            host = _host(record)
            if host is None:
                self._notify_rate(None, record.value)
            else:
                self._limit_host(host, addresses, record.value)

    def _limit_host(self, name: str, addresses: Addresses, rate: float | None) -> None:
        """Limit all addresses of a host, and remove the limits of its former addresses."""
        for address in self._host_addresses.pop(name, ()):
            self._notify_rate(address, None)
        for address in addresses:
            self._notify_rate(address, rate)
        if rate is not None:
            self._host_addresses[name] = addresses

    def _notify_rate(self, address: str | None, rate: float | None) -> None:
        for subscriber in self._subscribers:
            subscriber.on_ip_rate(address, rate)

    def _limited_addresses(self, record: QuotaRecord) -> Sequence[str | None]:
        """Return the addresses that a rate of connections is for; None stands for the default."""
        host = _host(record)
        return (None,) if host is None else self._host_addresses.get(host, ())

    def _on_host(self, name: str, addresses: Addresses) -> None:
        """Limit a stored host whose addresses have become known, unless its quota was altered in the meantime."""
        warn_of_unknown(name, addresses)
        rate = self.definitions.values((("ip", name),)).get(CONNECTION_CREATION_RATE)
        if rate is not None and not self._host_addresses.get(name):
            self._limit_host(name, addresses, rate)

    def _remove_unwritable(self, records: Sequence[QuotaRecord]) -> None:
        _log.error("deleting %d stored quotas: their entity names are too long for a response", len(records))
        removals = [QuotaRecord(entity=record.entity, key=record.key, value=None) for record in records]
        run_at_once(self._store.apply_quota_records_in_slices(removals))


def _host(record: QuotaRecord) -> str | None:
    """Return the name of an ip entity, None for others and for the default one."""
    return record.entity[0][1] if record.entity[0][0] == "ip" else None


def _is_writable(record: QuotaRecord) -> bool:
    return all(name is None or is_writable(name) for _, name in record.entity)
