"""An asyncio client of Kafka's protocol that waits as long as a broker asks it to (KIP-219).

`Admin` alters quotas, topics and settings of any cluster, Apache Kafka's (2.8 and later) or Tidegate's. Tidegate's own
tools use this client, and it is a reference for what a well-behaved client does. For applications use confluent-kafka
or aiokafka.
"""

from tidegate.client.admin import Admin, ConfigChange, ConfigEntry, NewTopic, ScramChange
from tidegate.client.cluster import Cluster, Node
from tidegate.client.errors import (
    BrokerError,
    ClientError,
    ConnectionLostError,
    LoginError,
    RequestTimeoutError,
    ThrottlingQuotaExceededError,
    UnreachableError,
    UnsupportedApiError,
)
from tidegate.client.settings import Address, ClientSettings, client_settings, load_client_settings

__all__ = [
    "Address",
    "Admin",
    "BrokerError",
    "ClientError",
    "ClientSettings",
    "Cluster",
    "ConfigChange",
    "ConfigEntry",
    "ConnectionLostError",
    "LoginError",
    "NewTopic",
    "Node",
    "RequestTimeoutError",
    "ScramChange",
    "ThrottlingQuotaExceededError",
    "UnreachableError",
    "UnsupportedApiError",
    "client_settings",
    "load_client_settings",
]
