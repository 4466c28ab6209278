"""The four managers of a node, with one callback and the windows they share.

>>> from tidegate.quota.admin.definitions import QuotaRecord
>>> managers = QuotaManagers()
>>> managers.apply(QuotaRecord(entity=(("user", "alice"),), key="producer_byte_rate", value=1000.0))
True
>>> managers.produce.bound("alice", "c1")
1000.0

Follows: Kafka `QuotaFactory`, `ClientQuotaMetadataManager` (B§3.9, 8, 10.1).
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any

from tidegate.quota.admin.definitions import QuotaRecord
from tidegate.quota.admin.entity import QuotaEntity
from tidegate.quota.managers.callback import ClientQuotaCallback, ClusterMetadata, DefaultQuotaCallback
from tidegate.quota.managers.client_quota import ClientQuotaManager
from tidegate.quota.managers.extensions import Extensions, entity_of
from tidegate.quota.managers.mutation import MutationQuotaManager
from tidegate.quota.managers.quota_type import QUOTA_TYPE_BY_KEY, QuotaType
from tidegate.quota.managers.request import RequestQuotaManager
from tidegate.quota.managers.sensor_manager import NoteTags
from tidegate.quota.measure.window import QuotaWindow
from tidegate.quota.metric import Metric

__all__ = ["QuotaManagers"]

_TOLD_AT_A_TIME = 100  # quotas registered with a callback between two yields

Manager = ClientQuotaManager | MutationQuotaManager


class QuotaManagers:
    """The managers for produce, fetch, request and controller mutations, and what goes beyond Kafka's rules.

    A callback that is given is configured once, here, and asked on every request. note_tags: told of its answers.
    late_limits: as of `SensorManager`.
    """

    def __init__(
        self,
        *,
        window: QuotaWindow | None = None,
        controller_window: QuotaWindow | None = None,
        callback: ClientQuotaCallback | None = None,
        callback_config: Mapping[str, Any] | None = None,
        note_tags: NoteTags | None = None,
        late_limits: bool = False,
    ) -> None:
        if callback is not None:
            callback.configure(callback_config or {})
        self.callback = callback
        self.extensions = Extensions()
        self.fetch, self.produce = (
            ClientQuotaManager(quota_type, window, callback, extensions=self.extensions)
            for quota_type in (QuotaType.FETCH, QuotaType.PRODUCE)
        )
        self.request = RequestQuotaManager(window, callback, extensions=self.extensions)
        self.controller_mutation = MutationQuotaManager(
            controller_window, callback, extensions=self.extensions
        )
        for manager in self:
            manager.note_tags = note_tags
            manager.late_limits = late_limits

    def __iter__(self) -> Iterator[Manager]:
        """Yield the managers in the order in which Kafka refreshes them."""
        yield from (self.fetch, self.produce, self.request, self.controller_mutation)

    def manager(self, quota_type: QuotaType) -> Manager:
        """Return the manager of one quota type."""
        return next(manager for manager in self if manager.quota_type is quota_type)

    def apply(self, record: QuotaRecord) -> bool:
        """Apply one record of a quota definition or an extension. Return False if it is for none of these managers."""
        if self.extensions.apply(record):
            for manager in (self.fetch, self.produce, self.request):
                manager.look_up_anew()
            return True
        found = _quota_of(record)
        if found is not None:
            quota_type, entity = found
            self.manager(quota_type).update_quota(entity, record.value)
        return found is not None

    def exchange_in_slices(
        self,
        callback: ClientQuotaCallback | None,
        records: Iterable[QuotaRecord],
        cluster: Callable[[], ClusterMetadata] | None = None,
        at_exchange: Callable[[], None] = lambda: None,
    ) -> Generator[None, None, None]:
        """Register all of `records` with a configured callback, or with Kafka's own rules (None); then use it.

        Yields in between. All managers change over at once, with fresh sensors. Before that, the callback receives the
        cluster metadata; after it, `at_exchange` is called. No quota may change meanwhile.
        """
        own_rules = {manager.quota_type: DefaultQuotaCallback() for manager in self}
        for number, record in enumerate(records):
            found = _quota_of(record)
            if found is not None and record.value is not None:
                quota_type, entity = found
                told = own_rules[quota_type] if callback is None else callback
                told.update_quota(quota_type, entity, record.value)
            if number % _TOLD_AT_A_TIME == 0:
                yield
        if callback is not None and cluster is not None:
            callback.update_cluster_metadata(cluster())
        self.callback = callback
        tables = [manager.exchange(callback, own_rules[manager.quota_type]) for manager in self]
        at_exchange()
        for table in tables:
            yield from table.clear_in_slices()

    def update_cluster_metadata(self, cluster: ClusterMetadata) -> bool:
        """Send changed topics or brokers to a custom callback; if limits have changed, ask it for all of them again."""
        if self.callback is None or not self.callback.update_cluster_metadata(cluster):
            return False
        for manager in self:
            manager.refresh()
        return True

    def expire_in_slices(self, now_ms: int) -> Generator[None, None, None]:
        """Forget sensors that were idle for more than an hour, yielding in between; call it every 30 s.

        From the first slice on, no lookup finds them.
        """
        sweeps = [manager.expire_in_slices(now_ms) for manager in self]
        for sweep in sweeps:
            next(sweep, None)
        for sweep in sweeps:
            yield from sweep

    def snapshots(self, now_ms: Callable[[], int]) -> Iterator[tuple[Mapping[str, str], int, dict[str, Any]]]:
        """Yield the state of every sensor, as `SensorManager.snapshots` does.

        Fetches come last: request time can take back the charge of a fetch (B§6.3), which must have happened by then.
        """
        for manager in reversed([*self]):
            yield from manager.snapshots(now_ms)

    def metrics(self, now_ms: int) -> Iterator[Metric]:
        """Yield all metrics without any effect, as `SensorManager.metrics` does."""
        for manager in self:
            yield from manager.metrics(now_ms)

    def shared_metrics(self, now_ms: int) -> Iterator[Metric]:
        """Yield the metrics that belong to no client, without any effect."""
        for manager in self:
            yield from manager.shared_metrics(now_ms)


def _quota_of(record: QuotaRecord) -> tuple[QuotaType, QuotaEntity] | None:
    """Return what a definition is for, None where no manager has its kind."""
    kinds = {entity_type for entity_type, _ in record.entity}
    quota_type = QUOTA_TYPE_BY_KEY.get(record.key)
    if quota_type is None or not kinds or not kinds <= {"user", "client-id"}:
        return None
    return quota_type, entity_of(record)
