"""Kafka's own rules for all quota types: the base of callbacks that change them for some clients only."""

from collections.abc import Mapping
from typing import Any

from tidegate.quota import ClusterMetadata, DefaultQuotaCallback, QuotaEntity, QuotaType

__all__ = ["OwnRules"]


class OwnRules:
    """A `ClientQuotaCallback` that answers as if there were none (B§3.4)."""

    def __init__(self) -> None:
        self._rules = {quota_type: DefaultQuotaCallback() for quota_type in QuotaType}

    def configure(self, config: Mapping[str, Any]) -> None:
        """Need nothing."""

    def quota_metric_tags(self, quota_type: QuotaType, user: str, client_id: str) -> Mapping[str, str]:
        """Return the tags `user` and `client-id`, either of them empty where it does not count."""
        return self._rules[quota_type].quota_metric_tags(quota_type, user, client_id)

    def quota_limit(self, quota_type: QuotaType, tags: Mapping[str, str]) -> float | None:
        """Return the bound of the most specific entity that has a stored quota."""
        return self._rules[quota_type].quota_limit(quota_type, tags)

    def update_quota(self, quota_type: QuotaType, entity: QuotaEntity, value: float) -> None:
        """Set the value of a stored quota."""
        self._rules[quota_type].update_quota(quota_type, entity, value)

    def remove_quota(self, quota_type: QuotaType, entity: QuotaEntity) -> None:
        """Remove a stored quota."""
        self._rules[quota_type].remove_quota(quota_type, entity)

    def quota_reset_required(self, quota_type: QuotaType) -> bool:
        """Return False: limits change with stored quotas only."""
        return False

    def update_cluster_metadata(self, cluster: ClusterMetadata) -> bool:
        """Return False: no limit depends on the cluster."""
        return False
