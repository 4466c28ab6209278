"""The quota definitions of a node: loading, altering, and what puts them in force.

An alteration is decided, stored, put in force and answered in this order, all of it or nothing, in slices; the next
one waits until it is over. What was decided holds from one moment on for whoever describes the definitions, and for
clients record by record, as Kafka's brokers take over a change of the metadata record by record. Names of hosts are
looked up before, so that nobody else waits for a name server.
"""

import logging
from collections import deque
from collections.abc import Generator, Iterable, Sequence

from tidegate.clock import Clock
from tidegate.errors import TidegateError
from tidegate.quota import (
    Alteration,
    AlterOutcome,
    AlterResult,
    ConnectionQuotas,
    QuotaDefinitions,
    QuotaManagers,
    QuotaRecord,
)
from tidegate.quota.admin.alterations import is_writable
from tidegate.quota.admin.keys import CONNECTION_CREATION_RATE
from tidegate.quota.connections.limits import parse_per_ip_overrides
from tidegate.server.handler import Wait
from tidegate.server.host_names import Addresses, HostNames, addresses_of_literal
from tidegate.server.stores import QuotaStore
from tidegate.server.usage_log import UsageLog

__all__ = ["KAFKA_STORAGE_ERROR", "QuotaAdministration"]

_log = logging.getLogger("tidegate.server")

KAFKA_STORAGE_ERROR = 56
_IN_FORCE_AT_A_TIME = 10  # records put in force between two yields: half a millisecond
_PREPARED_AT_A_TIME = 100


class _OneAtATime:
    """Lets one piece of work in slices after the other through."""

    def __init__(self) -> None:
        self._busy = False
        self._waiting: deque[Wait] = deque()

    def begin(self) -> Generator[Wait | None, None, None]:
        """Wait until all that came before has ended."""
        if self._busy:
            self._waiting.append(Wait())
            yield self._waiting[-1]
        self._busy = True

    def end(self) -> None:
        """Let the next one through."""
        if self._waiting:
            self._waiting.popleft().end()
        else:
            self._busy = False


class QuotaAdministration:
    """What DescribeClientQuotas and AlterClientQuotas ask, and what `Node` loads at the start."""

    def __init__(
        self,
        managers: QuotaManagers,
        connections: ConnectionQuotas,
        *,
        usage: UsageLog,
        clock: Clock,
        host_names: HostNames,
    ) -> None:
        self.definitions = QuotaDefinitions()
        self._managers = managers
        self._connections = connections
        self._usage = usage
        self._clock = clock
        self._host_names = host_names
        self._host_addresses: dict[str, Addresses] = {}  # of the hosts whose rate is in force
        self._alterations = _OneAtATime()
        self._store: QuotaStore | None = None

    def load(self, store: QuotaStore, overrides: str) -> None:
        """Put in force what is stored; hosts in it, and in `max.connections.per.ip.overrides`, when they are known.

        A stored name that no answer could hold is removed: it would fail every description of the definitions.
        """
        self._store = store
        stored = list(store.load_quotas())
        kept = [record for record in stored if _is_writable(record)]
        if len(kept) < len(stored):
            self._remove_unwritable([record for record in stored if not _is_writable(record)])
        self.definitions.apply(kept)
        hosts = set()
        for record in kept:
            host = _host(record)
            addresses = () if host is None else addresses_of_literal(host)
            if host is not None and not addresses:
                hosts.add(host)
            self._put_in_force(record, addresses)
        self._host_names.look_up_later(sorted(hosts), self._on_host)
        counts = parse_per_ip_overrides(overrides)
        late = [host for host in counts if not addresses_of_literal(host)]
        self._host_names.look_up_later(
            late, lambda host, addresses: self._override(host, addresses, counts[host])
        )

    def alter_in_slices(
        self, alterations: Sequence[Alteration], *, validate_only: bool
    ) -> Generator[Wait | None, None, Iterable[AlterResult]]:
        """Do what the alterations say, and return a result for each entity."""
        addresses = yield from self._look_up_hosts(alterations)
        yield from self._alterations.begin()
        try:
            outcome = yield from self.definitions.alter_in_slices(
                alterations, validate_only=validate_only, is_known_host=lambda name: bool(addresses.get(name))
            )
            if outcome.records:
                return (yield from self._publish_in_slices(outcome, addresses))
            return outcome.results
        finally:
            self._alterations.end()

    def _look_up_hosts(
        self, alterations: Sequence[Alteration]
    ) -> Generator[Wait | None, None, dict[str, Addresses]]:
        names: dict[str, None] = {}
        for number, alteration in enumerate(alterations):
            parts = dict(alteration.entity)
            name = parts.get("ip")
            if name is not None and len(parts) == 1:
                names[name] = None
            if number % _PREPARED_AT_A_TIME == 0:
                yield None
        return (yield from self._host_names.look_up(names))

    def _publish_in_slices(
        self, outcome: AlterOutcome, addresses: dict[str, Addresses]
    ) -> Generator[None, None, Iterable[AlterResult]]:
        """Store, then put in force; where storing fails nothing is changed, and all entities get the error."""
        assert self._store is not None
        changes = yield from self.definitions.prepare_in_slices(outcome.records)
        try:
            yield from self._store.apply_quota_records_in_slices(outcome.records)
        except (TidegateError, OSError) as error:
            _log.error("cannot store quota definitions: %s", error)
            message = "The quota definitions could not be stored; nothing was changed."
            return (
                AlterResult(entity=result.entity, error_code=KAFKA_STORAGE_ERROR, error_message=message)
                for result in outcome.results
            )
        self.definitions.put_in_force(changes)
        for number, record in enumerate(outcome.records):
            host = _host(record)
            self._put_in_force(record, () if host is None else addresses[host])
            if number % _IN_FORCE_AT_A_TIME == 0:
                yield
        return outcome.results

    def _put_in_force(self, record: QuotaRecord, addresses: Addresses) -> None:
        """Put one definition in force; addresses: those of the host that it is for, if it is for one."""
        self._managers.apply(record)
        if record.key == CONNECTION_CREATION_RATE:
            for kind, name in record.entity:
                if kind == "ip" and name is None:
                    self._connections.set_ip_rate(None, record.value)
                elif kind == "ip" and name is not None:
                    self._limit_host(name, addresses, record.value)
        self._usage.quota(record, self._clock.now_ms())

    def _limit_host(self, name: str, addresses: Addresses, rate: float | None) -> None:
        """Limit all addresses of a host, and those no longer that it had when it was limited before."""
        for address in self._host_addresses.pop(name, ()):
            self._connections.set_ip_rate(address, None)
        for address in addresses:
            self._connections.set_ip_rate(address, rate)
        if rate is not None:
            self._host_addresses[name] = addresses

    def _on_host(self, name: str, addresses: Addresses) -> None:
        """Limit a stored host whose addresses have become known, unless it was altered meanwhile."""
        _warn_of_unknown(name, addresses)
        rate = self.definitions.values((("ip", name),)).get(CONNECTION_CREATION_RATE)
        if rate is not None and not self._host_addresses.get(name):
            self._limit_host(name, addresses, rate)

    def _override(self, host: str, addresses: Addresses, maximum: int) -> None:
        _warn_of_unknown(host, addresses)
        for address in addresses:
            self._connections.set_ip_override(address, maximum)

    def _remove_unwritable(self, records: Sequence[QuotaRecord]) -> None:
        assert self._store is not None
        _log.error("removing %d stored quotas with names that are too long for any answer", len(records))
        removals = [QuotaRecord(entity=record.entity, key=record.key, value=None) for record in records]
        for _ in self._store.apply_quota_records_in_slices(removals):
            pass


def _warn_of_unknown(host: str, addresses: Addresses) -> None:
    if not addresses:
        _log.warning("%r does not resolve; the limit of its connections has no effect", host)


def _host(record: QuotaRecord) -> str | None:
    """Return the name of an ip entity, None for others and for the default one."""
    return record.entity[0][1] if record.entity[0][0] == "ip" else None


def _is_writable(record: QuotaRecord) -> bool:
    return all(name is None or is_writable(name) for _, name in record.entity)
