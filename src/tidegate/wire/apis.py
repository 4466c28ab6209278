"""The APIs that a broker speaks: `API_BY_KEY`, api key to `Api`.

Follows: Kafka 4.3.1 `ApiKeys` and `ApiMessageType`, B§11. Versions that Kafka keeps behind
`unstable.api.versions.enable` are in the definitions table but not spoken.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tidegate.wire.definitions import table

__all__ = ["API_BY_KEY", "Api", "spoken_pairs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One API: which versions are spoken and how its messages are framed.

    throttle_time_ms_since: first version whose response carries `throttle_time_ms`; None: no version does.
    java_client_backs_off_since: first version after which Kafka's own client holds itself back (KIP-219).
    cluster_action: asked by other brokers, exempt from request quotas when authorised.
    forwardable: a broker hands it on to the controller.
    """

    key: int
    name: str
    min_version: int
    max_version: int
    flexible_since: int | None
    response_header_flexible_since: int | None
    throttle_time_ms_since: int | None
    java_client_backs_off_since: int | None
    cluster_action: bool
    forwardable: bool
    listeners: tuple[str, ...]

    def speaks(self, api_version: int) -> bool:
        """Return whether requests in this version are read and answered."""
        return self.min_version <= api_version <= self.max_version

    def is_flexible(self, api_version: int) -> bool:
        """Return whether the version has compact lengths, tagged fields and request header v2."""
        return self.flexible_since is not None and api_version >= self.flexible_since

    def has_tagged_response_header(self, api_version: int) -> bool:
        """Return whether the response header is v1. Not for ApiVersions: clients cannot tell its version yet."""
        since = self.response_header_flexible_since
        return since is not None and api_version >= since


def _api(facts: Mapping[str, Any]) -> Api:
    stable = set(range(facts["min_version"], facts["max_version"] + 1)) - set(facts["unstable_versions"])
    same = {name: facts[name] for name in Api.__slots__ if name not in ("listeners", "max_version")}
    return Api(**same, max_version=max(stable), listeners=tuple(facts["listeners"]))


def spoken_pairs() -> Iterator[tuple[int, int]]:
    """Yield every (api key, api version) that is spoken."""
    for api in API_BY_KEY.values():
        for version in range(api.min_version, api.max_version + 1):
            yield api.key, version


API_BY_KEY: Mapping[int, Api] = {facts["key"]: _api(facts) for facts in table()["apis"]}
