"""A metric: one number under the name, the group and the tags that Kafka gives it.

>>> metric = Metric(group="Produce", name="byte-rate", tags={"user": "alice", "client-id": ""}, value=512.0)
>>> metric.bean
'kafka.server:type=Produce,user=alice'
>>> Metric(group="SocketServer", name="MemoryPoolUsed", tags={}, value=0.0).bean
'kafka.network:type=SocketServer,name=MemoryPoolUsed'

Follows: Kafka `KafkaMetric` and `JmxReporter`, and for names with capitals its Yammer metrics (B§1.7, B§12.1).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tidegate.quota.admin.sanitizer import jmx_sanitize

__all__ = ["Metric"]

_NETWORK_GROUPS = frozenset({"RequestChannel", "RequestMetrics", "SocketServer"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric as a scrape sees it.

    bound: the quota, per second; None where the metric has none.
    attribute: which number of a meter or histogram it is, such as `Count`; None: it is the only one.
    """

    group: str
    name: str
    tags: Mapping[str, str]
    value: float
    bound: float | None = None
    attribute: str | None = None

    @property
    def bean(self) -> str:
        """The JMX bean that has this number in Kafka; tags without a value are left out."""
        domain = "kafka.network" if self.group in _NETWORK_GROUPS else "kafka.server"
        parts = [f"{key}={jmx_sanitize(value)}" for key, value in self.tags.items() if value]
        name = [f"name={self.name}"] if self.is_yammer else []
        return f"{domain}:{','.join([f'type={self.group}', *name, *parts])}"

    @property
    def is_yammer(self) -> bool:
        """Return whether the bean is named after the metric and has its numbers as attributes.

        Otherwise the metric itself is an attribute of the bean.
        """
        return self.group in _NETWORK_GROUPS or self.group == "KafkaRequestHandlerPool"

    @property
    def bean_attribute(self) -> str:
        """The attribute of that bean."""
        return self.attribute or ("Value" if self.is_yammer else self.name)
