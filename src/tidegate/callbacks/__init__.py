"""Quota callbacks that come with Tidegate, to be named in `client.quota.callback.class` (docs/callbacks.md)."""

from tidegate.callbacks.groups import QuotaGroups
from tidegate.callbacks.led_partitions import LimitsByLedPartitions

__all__ = ["LimitsByLedPartitions", "QuotaGroups"]
