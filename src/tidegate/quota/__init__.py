"""The quota engine: the clients that share a quota, their usage, and their throttle time.

Standard library only. Time comes in as `now_ms`; being over quota is a returned value. The rules are Kafka's;
`docs/kafka-differences.md` has every departure.

>>> managers = QuotaManagers(window=QuotaWindow(samples=11, window_ms=1000))
>>> managers.produce.update_quota(QuotaEntity(user="alice"), 1000.0)
>>> managers.produce.record("alice", "c1", 14_000.0, 1_700_000_000_000)
4000
>>> print(managers.produce.explain("alice", "c1"))
Produce quota of user 'alice', client id 'c1': 1000.0 of (user='alice'); shared by all clients with user='alice'
"""

from tidegate.quota.admin.definitions import (
    Alteration,
    AlterOutcome,
    AlterResult,
    Description,
    EntityParts,
    FilterComponent,
    QuotaDefinitions,
    QuotaRecord,
    entity_parts,
)
from tidegate.quota.admin.entity import DEFAULT, EntityType, Level, QuotaEntity
from tidegate.quota.admin.keys import QUOTA_KEYS, WINDOW_SETTINGS, QuotaKey, ValueType
from tidegate.quota.admin.sanitizer import SanitizeError, desanitize, jmx_sanitize, name_of_tag, sanitize
from tidegate.quota.connections.connection_quotas import Admission, AdmissionOutcome, ConnectionQuotas
from tidegate.quota.connections.delay_queue import DelayQueue, ThrottledChannel
from tidegate.quota.managers.callback import (
    ClientQuotaCallback,
    ClusterMetadata,
    ClusterNode,
    DefaultQuotaCallback,
)
from tidegate.quota.managers.client_quota import ClientQuotaManager
from tidegate.quota.managers.explain import Explanation
from tidegate.quota.managers.extensions import (
    EXTENSION_SETTINGS,
    Extensions,
    changed_records_in_slices,
    extension_records,
)
from tidegate.quota.managers.mutation import STRICT_SINCE, MutationKind, MutationQuota, MutationQuotaManager
from tidegate.quota.managers.quota_managers import QuotaManagers
from tidegate.quota.managers.quota_type import QuotaType
from tidegate.quota.managers.request import PERCENT_PER_NS, RequestQuotaManager
from tidegate.quota.managers.sensor_manager import CallbackError
from tidegate.quota.measure.rate import SampledRate
from tidegate.quota.measure.throttle import UNLIMITED
from tidegate.quota.measure.token_bucket import TokenBucket
from tidegate.quota.measure.window import REGISTRY_WINDOW, QuotaWindow
from tidegate.quota.metric import Metric

__all__ = [
    "DEFAULT",
    "EXTENSION_SETTINGS",
    "PERCENT_PER_NS",
    "QUOTA_KEYS",
    "REGISTRY_WINDOW",
    "STRICT_SINCE",
    "UNLIMITED",
    "WINDOW_SETTINGS",
    "Admission",
    "AdmissionOutcome",
    "AlterOutcome",
    "AlterResult",
    "Alteration",
    "CallbackError",
    "ClientQuotaCallback",
    "ClientQuotaManager",
    "ClusterMetadata",
    "ClusterNode",
    "ConnectionQuotas",
    "DefaultQuotaCallback",
    "DelayQueue",
    "Description",
    "EntityParts",
    "EntityType",
    "Explanation",
    "Extensions",
    "FilterComponent",
    "Level",
    "Metric",
    "MutationKind",
    "MutationQuota",
    "MutationQuotaManager",
    "QuotaDefinitions",
    "QuotaEntity",
    "QuotaKey",
    "QuotaManagers",
    "QuotaRecord",
    "QuotaType",
    "QuotaWindow",
    "RequestQuotaManager",
    "SampledRate",
    "SanitizeError",
    "ThrottledChannel",
    "TokenBucket",
    "ValueType",
    "changed_records_in_slices",
    "desanitize",
    "entity_parts",
    "extension_records",
    "jmx_sanitize",
    "name_of_tag",
    "sanitize",
]
