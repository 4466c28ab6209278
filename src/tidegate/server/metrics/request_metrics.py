"""Metrics of requests, by API and version: Kafka's group `RequestMetrics`.

Each request costs a few additions of integers. Times and sizes come from a sample of the requests: every request while
they are few, else one in so many that `SAMPLES` requests span about five minutes. All throttles are counted.

Follows: Kafka `RequestMetrics`, `RequestChannel.Request.updateRequestMetrics` (B§12.3).
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from tidegate.api_keys import API_VERSIONS, FETCH
from tidegate.clock import NS_PER_MS
from tidegate.quota import Metric
from tidegate.server.metrics.meters import Meter, percentiles, standard_deviation, summary
from tidegate.server.requests.exchange import Exchange
from tidegate.wire import API_BY_KEY, Api

__all__ = ["SAMPLES", "ApiCounts", "ListenerCounts", "RequestMetrics", "VersionCounts"]

SAMPLES = 1028
"""Requests of an API whose times are remembered, as many as in a reservoir of Kafka's: 300 KB at most."""
_OTHER_API = replace(API_BY_KEY[API_VERSIONS], key=-1, name="Other", min_version=0, max_version=0)
"""Stands for all APIs that Tidegate does not know."""
_SPAN_S = 300.0
_GROUP = "RequestMetrics"
_FETCH_CONSUMER = "FetchConsumer"
_SAMPLED = ("LocalTimeMs", "RemoteTimeMs", "TotalTimeMs", "RequestBytes")  # in the order of a sample
_THROTTLE_TIME = len(_SAMPLED)


class ListenerCounts:
    """Counts of one listener; bytes are those of whole frames without their length prefix.

    created, closed, expired: connections; `expired`: those closed because their session had expired.
    logins, failed_logins: of clients that had to authenticate. logins_without_relogin: logins of clients that could
        not log in again. relogins, failed_relogins: logins after the first.
    unanswered: requests without an answer, such as Produce with acks=0.
    """

    __slots__ = (
        "closed",
        "created",
        "expired",
        "failed_logins",
        "failed_relogins",
        "logins",
        "logins_without_relogin",
        "relogins",
        "request_bytes",
        "requests",
        "response_bytes",
        "unanswered",
    )

    def __init__(self) -> None:
        self.created = self.closed = self.expired = 0
        self.logins = self.logins_without_relogin = self.failed_logins = 0
        self.relogins = self.failed_relogins = 0
        self.requests = self.unanswered = self.request_bytes = self.response_bytes = 0


class VersionCounts:
    """Counts of one version of an API. look_at: the number of the next request to sample."""

    __slots__ = (
        "_recent",
        "handler_ns",
        "look_at",
        "meter",
        "requests",
    )

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.requests = self.handler_ns = 0
        self.look_at = 1
        self._recent = 0  # requests of the last five minutes, less `requests`

    def looked_at(self) -> None:
        """Choose the next request to look at."""
        self.look_at = self.requests + 1 + max(self._recent + self.requests, 0) // SAMPLES

    def tick(self) -> None:
        """Update the rates and the number of recent requests."""
        self.meter.tick(self.requests)
        self._recent = int(self.meter.per_unit()[1] * _SPAN_S) - self.requests


class ApiCounts(dict[int, VersionCounts]):
    """Counts of one API, by version, and the sample of its requests.

    An unknown version of ApiVersions is counted as version 0: the broker answers it in the form of that version.
    """

    def __init__(self, api: Api, monotonic_ns: Callable[[], int]) -> None:
        super().__init__()
        self.name = api.name
        self.sample: deque[tuple[int, ...]] = deque(maxlen=SAMPLES)
        self.throttled = self.throttled_ms = self.throttled_squares = self.longest_ms = 0
        self.shortest_ms = 0
        self._api = api
        self._monotonic_ns = monotonic_ns

    def __missing__(self, version: int) -> VersionCounts:
        if not self._api.speaks(version):
            return self[self._api.min_version]
        counts = self[version] = VersionCounts(Meter(now_ns=self._monotonic_ns()))
        return counts

    def throttle(self, throttle_ms: int) -> None:
        """Count a throttle."""
        self.shortest_ms = min(self.shortest_ms or throttle_ms, throttle_ms)
        self.longest_ms = max(self.longest_ms, throttle_ms)
        self.throttled += 1
        self.throttled_ms += throttle_ms
        self.throttled_squares += throttle_ms * throttle_ms

    def look_at(self, exchange: Exchange) -> None:
        """Remember a request, with times in whole ms."""
        total_ns = self._monotonic_ns() - exchange.started_ns
        times_ns = exchange.handler_ns, exchange.remote_ns, total_ns
        times_ms = [(time_ns + NS_PER_MS // 2) // NS_PER_MS for time_ns in times_ns]
        self.sample.append((*times_ms, exchange.frame_bytes - exchange.header.body_at, exchange.throttle_ms))

    @property
    def requests(self) -> int:
        """Return the number of requests."""
        return sum(counts.requests for counts in self.values())

    def throttle_times(self) -> Iterator[tuple[str, float]]:
        """Yield the numbers of all throttle times, with a 0 for each request that was not throttled."""
        requests = self.requests
        yield "Min", float(self.shortest_ms if self.throttled == requests else 0)
        yield "Max", float(self.longest_ms)
        yield "Mean", self.throttled_ms / requests if requests else 0.0
        yield "StdDev", standard_deviation(requests, self.throttled_ms, self.throttled_squares)
        yield from percentiles([row[_THROTTLE_TIME] for row in self.sample])


class _Apis(dict[int, ApiCounts]):
    """Counts by API key."""

    def __init__(self, monotonic_ns: Callable[[], int]) -> None:
        super().__init__()
        self._monotonic_ns = monotonic_ns

    def __missing__(self, key: int) -> ApiCounts:
        if key not in API_BY_KEY:
            # A gateway also forwards what it does not know: all of that is counted together.
            if key != _OTHER_API.key:
                return self[_OTHER_API.key]
            api = self[key] = ApiCounts(_OTHER_API, self._monotonic_ns)
            return api
        api = self[key] = ApiCounts(API_BY_KEY[key], self._monotonic_ns)
        return api


class RequestMetrics:
    """The counts of all APIs: those of `api_keys` are there from the start, others with the first request.

    listeners: what is counted by listener.
    """

    __slots__ = ("_apis", "_monotonic_ns", "listeners")

    def __init__(
        self, api_keys: Iterable[int], listeners: Iterable[str], monotonic_ns: Callable[[], int]
    ) -> None:
        self.listeners = {name: ListenerCounts() for name in listeners}
        self._apis = _Apis(monotonic_ns)
        self._monotonic_ns = monotonic_ns
        for key in sorted(api_keys):
            self._apis[key]

    def count(self, exchanges: Iterable[Exchange]) -> None:
        """Count requests that were decided."""
        apis, listeners = self._apis, self.listeners
        for exchange in exchanges:
            header, response = exchange.header, exchange.response
            counts = apis[header.api_key][header.api_version]
            counts.requests += 1
            counts.handler_ns += exchange.handler_ns
            listener = listeners[exchange.channel.connection.listener]
            listener.requests += 1
            listener.request_bytes += exchange.frame_bytes
            if response is None:
                listener.unanswered += 1
            else:
                listener.response_bytes += response.size
            if exchange.throttle_ms:
                apis[header.api_key].throttle(exchange.throttle_ms)
            if counts.requests >= counts.look_at:
                apis[header.api_key].look_at(exchange)
                counts.looked_at()

    def all_counts(self) -> Iterator[VersionCounts]:
        """Yield the counts of every version that was asked for."""
        for api in self._apis.values():
            yield from api.values()

    def tick(self) -> None:
        """Update the rates of every version; call it every `tidegate.server.metrics.meters.TICK_S`."""
        for counts in self.all_counts():
            counts.tick()

    def metrics(self) -> Iterator[Metric]:
        """Yield the numbers of all APIs without any effect. Those of Fetch are there twice, as in Kafka."""
        for key, api in list(self._apis.items()):
            for name in (api.name, _FETCH_CONSUMER) if key == FETCH else (api.name,):
                yield from self._meters(api, name)
                yield from self._histograms(api, name)

    def _meters(self, api: ApiCounts, name: str) -> Iterator[Metric]:
        now_ns = self._monotonic_ns()
        for version, counts in list(api.items()):
            tags = {"request": name, "version": str(version)}
            for attribute, value in counts.meter.numbers(counts.requests, now_ns=now_ns):
                yield _metric("RequestsPerSec", tags, attribute, value)

    @staticmethod
    def _histograms(api: ApiCounts, name: str) -> Iterator[Metric]:
        tags, rows, count = {"request": name}, list(api.sample), float(api.requests)
        for at, histogram in enumerate(_SAMPLED):
            yield _metric(histogram, tags, "Count", count)
            for attribute, value in summary([row[at] for row in rows]):
                yield _metric(histogram, tags, attribute, value)
        yield _metric("ThrottleTimeMs", tags, "Count", count)
        for attribute, value in api.throttle_times():
            yield _metric("ThrottleTimeMs", tags, attribute, value)


def _metric(name: str, tags: dict[str, str], attribute: str, value: float) -> Metric:
    return Metric(group=_GROUP, name=name, tags=tags, value=value, attribute=attribute)
