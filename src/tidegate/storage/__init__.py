"""The embedded log of a node: partitions in Kafka's file format, topics, quotas, and a handler per API."""

from tidegate.storage.config import StorageConfig
from tidegate.storage.errors import StorageError
from tidegate.storage.log.file_slice import FileSlice
from tidegate.storage.storage import Storage

__all__ = ["FileSlice", "Storage", "StorageConfig", "StorageError"]
