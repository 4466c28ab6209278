"""What connection quotas answer: the verdict over a socket, an error, a metric.

Follows: Kafka `ConnectionThrottledException`, `TooManyConnectionsException`, B§6.9.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from tidegate.errors import TidegateError
from tidegate.quota.measure.rate import SampledRate
from tidegate.quota.measure.stats import Avg

__all__ = ["Admission", "AdmissionOutcome", "ConnectionCountError", "ConnectionMetric"]


class AdmissionOutcome(enum.Enum):
    """What becomes of a socket."""

    ACCEPTED = "accepted"
    THROTTLED = "throttled"
    TOO_MANY_CONNECTIONS = "too_many_connections"


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The verdict over one socket.

    THROTTLED has `throttle_ms` and `end_ms`, TOO_MANY_CONNECTIONS the `maximum`; both have Kafka's `message`.
    """

    outcome: AdmissionOutcome
    message: str | None = None
    throttle_ms: int = 0
    end_ms: int = 0
    maximum: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionMetric:
    """One metric of Kafka's group `socket-server-metrics`, and the statistic behind it."""

    name: str
    tags: Mapping[str, str]
    stat: SampledRate | Avg


class ConnectionCountError(TidegateError, ValueError):
    """Raise when a connection is released that was never counted. Has the text of Kafka's exception."""

    def __init__(self, address: str) -> None:
        super().__init__(
            f"Attempted to decrease connection count for address with no connections, address: /{address}"
        )
        self.address = address
