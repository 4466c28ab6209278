"""An asyncio client of Kafka's protocol that waits as long as a broker asks it to (KIP-219).

`Admin` alters quotas, topics and settings of any cluster, Apache Kafka's (2.8 and later) or Tidegate's. `Producer` and
`Consumer` store and read records of assigned partitions. Tidegate's own tools use this client, and it is a reference
for what a well-behaved client does. For applications use confluent-kafka or aiokafka.
"""

from tidegate.client.admin import Admin, run_as_admin
from tidegate.client.admin_messages import ConfigChange, ConfigEntry, NewTopic, ScramChange
from tidegate.client.cluster import Cluster, Node
from tidegate.client.consumer import EARLIEST, LATEST, Consumer
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
from tidegate.client.partitions import TopicPartition
from tidegate.client.producer import Producer
from tidegate.client.settings import Address, ClientSettings, client_settings, load_client_settings
from tidegate.wire.records import Record

__all__ = [
    "EARLIEST",
    "LATEST",
    "Address",
    "Admin",
    "BrokerError",
    "ClientError",
    "ClientSettings",
    "Cluster",
    "ConfigChange",
    "ConfigEntry",
    "ConnectionLostError",
    "Consumer",
    "LoginError",
    "NewTopic",
    "Node",
    "Producer",
    "Record",
    "RequestTimeoutError",
    "ScramChange",
    "ThrottlingQuotaExceededError",
    "TopicPartition",
    "UnreachableError",
    "UnsupportedApiError",
    "client_settings",
    "load_client_settings",
    "run_as_admin",
]
