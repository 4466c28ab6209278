"""Quota callbacks of the simulation, and what each of them should come to: an onlooker's `Scheme`."""

from collections.abc import Mapping
from random import Random
from typing import Any

from tests.oracles.quota_manager import Quotas, ported_bits, ported_limit, ported_tags

from tidegate.callbacks.own_rules import OwnRules
from tidegate.quota import ClusterMetadata, QuotaEntity, QuotaType, sanitize

__all__ = [
    "CALLBACK_CLASS",
    "CALLBACK_SETTINGS",
    "LOADABLE",
    "NOT_LOADABLE",
    "Refusing",
    "Scheme",
    "Unreliable",
]

CALLBACK_CLASS, CALLBACK_SETTINGS = "client.quota.callback.class", "client.quota.callback."
_HERE = "tests.simulation.callbacks"
_GROUP = f"{CALLBACK_SETTINGS}group"
_GROUPS, _LED, _UNRELIABLE = (
    "tidegate.callbacks:QuotaGroups", "tidegate.callbacks:LimitsByLedPartitions", f"{_HERE}:Unreliable",
)  # fmt: skip
LOADABLE: tuple[dict[str, str], ...] = (
    {
        CALLBACK_CLASS: _GROUPS,
        f"{_GROUP}.a.members": "user:alice, user:bob b, client-id:c*3",
        f"{_GROUP}.a.producer_byte_rate": "2000",
        f"{_GROUP}.a.request_percentage": "0.05",
    },
    {
        CALLBACK_CLASS: _GROUPS,
        f"{_GROUP}.a.members": "client-id:c1",
        f"{_GROUP}.a.consumer_byte_rate": "1000",
        f"{_GROUP}.b.members": "user:carol",
        f"{_GROUP}.b.controller_mutation_rate": "0.5",
    },
    {CALLBACK_CLASS: _LED},
    {CALLBACK_CLASS: _UNRELIABLE},
)
NOT_LOADABLE = (f"{_HERE}:Missing", f"{_HERE}:Refusing", "json:JSONDecoder", "no module")

_NEVER_ANSWERED = "carol"
_UNLIMITED_CLIENT = "c*3"
_FAILS = 0.2
_NONSENSE = (None, "yes", -1.0, float("nan"), 3)


class Refusing(OwnRules):
    """Refuses its settings."""

    def configure(self, config: Mapping[str, Any]) -> None:
        """Refuse them."""
        raise ValueError("as asked")


class Unreliable(OwnRules):
    """Kafka's own rules, but it fails now and then where it answered before, and always about some."""

    def __init__(self) -> None:
        super().__init__()
        self._rng = Random(1)
        self._answered: set[Any] = set()

    def quota_metric_tags(self, quota_type: QuotaType, user: str, client_id: str) -> Mapping[str, str]:
        """Answer, or fail."""
        if user == _NEVER_ANSWERED:
            self._fail()
            return 5  # type: ignore[return-value]
        self._fail_again(("tags", quota_type, user, client_id))
        return super().quota_metric_tags(quota_type, user, client_id)

    def quota_limit(self, quota_type: QuotaType, tags: Mapping[str, str]) -> float | None:
        """Answer, or fail."""
        if quota_type is QuotaType.REQUEST and tags["client-id"] == _UNLIMITED_CLIENT:
            return self._rng.choice(_NONSENSE[1:4])  # type: ignore[return-value]
        self._fail_again(("limit", quota_type, *tags.values()))
        return super().quota_limit(quota_type, tags)

    def update_quota(self, quota_type: QuotaType, entity: QuotaEntity, value: float) -> None:
        """Take note, and fail."""
        super().update_quota(quota_type, entity, value)
        self._answered.clear()
        self._fail()

    def remove_quota(self, quota_type: QuotaType, entity: QuotaEntity) -> None:
        """Take note, and fail."""
        super().remove_quota(quota_type, entity)
        self._answered.clear()
        self._fail()

    def quota_reset_required(self, quota_type: QuotaType) -> bool:
        """Answer anything."""
        self._fail()
        return self._rng.choice((False, False, False, True, *_NONSENSE))  # type: ignore[return-value]

    def update_cluster_metadata(self, cluster: ClusterMetadata) -> bool:
        """Answer anything."""
        self._fail()
        return self._rng.choice((False, True, *_NONSENSE))  # type: ignore[return-value]

    def close(self) -> None:
        """Fail."""
        raise RuntimeError("as it closes")

    def _fail(self) -> None:
        if self._rng.random() < _FAILS:
            raise RuntimeError("now and then")

    def _fail_again(self, question: Any) -> None:
        """Fail, unless it is the first time that this is asked since quotas changed."""
        if question in self._answered:
            self._fail()
        self._answered.add(question)


class Scheme:
    """What clients share a quota, and how high it is, by the class that settings name. share: see `_LED`."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.name = texts.get(CALLBACK_CLASS, "")
        self.share = 1.0
        self._members: dict[tuple[str, str], str] = {}
        self._limits: dict[tuple[str, str], float] = {}
        for name, text in texts.items() if self.name == _GROUPS else ():
            if name.startswith(f"{_GROUP}."):
                group, what = name.removeprefix(f"{_GROUP}.").split(".")
                if what == "members":
                    for member in text.split(","):
                        kind, _, who = member.strip().partition(":")
                        self._members[kind, who] = group
                else:
                    self._limits[group, what] = float(text)

    @property
    def is_custom(self) -> bool:
        """Whether there is a callback: then it is asked though nobody has a quota."""
        return bool(self.name)

    @property
    def follows_leaders(self) -> bool:
        """Whether limits depend on who leads what."""
        return self.name == _LED

    def tags(self, quotas: Quotas, user: str, client_id: str) -> tuple[str, ...]:
        """Return what a client's usage is counted under."""
        group = self._members.get(("user", user)) or self._members.get(("client-id", client_id))
        if group is not None:
            return (group,)
        if self.name == _UNRELIABLE and user == _NEVER_ANSWERED:
            return ("(failed)",)
        return ported_tags(quotas, ported_bits(quotas), sanitize(user), client_id)

    def limit(self, key: str, quotas: Quotas, tags: tuple[str, ...]) -> float | None:
        """Return the bound of these tags."""
        if len(tags) == 1:
            return self._limits.get((tags[0], key))
        if self.name == _UNRELIABLE and key == "request_percentage" and tags[1] == _UNLIMITED_CLIENT:
            return None
        user, client_id = tags
        limit = ported_limit(quotas, (user, client_id)) if user or client_id else quotas.get((None, ""))
        is_shared = self.name == _LED and key in ("producer_byte_rate", "consumer_byte_rate")
        return limit * self.share if limit is not None and is_shared else limit
