"""What is counted of requests, without a node."""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.server.metrics.test_meters import THROTTLES

from tidegate.api_keys import API_VERSIONS, FETCH, METADATA, PRODUCE
from tidegate.server.metrics.request_metrics import SAMPLES, RequestMetrics
from tidegate.server.requests.exchange import Exchange
from tidegate.server.requests.handler import Connection
from tidegate.testing import ManualClock
from tidegate.wire import RequestHeader, encode_response

RECORDED = json.loads((Path(__file__).parents[2] / "vectors" / "metrics.json").read_text("utf-8"))


class Counted:
    """Request metrics on a clock that stands still."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.metrics = RequestMetrics([PRODUCE, FETCH], ["PLAINTEXT", "INTERNAL"], self.clock.monotonic_ns)

    def request(
        self,
        *,
        api_key: int = PRODUCE,
        version: int = 9,
        throttle_ms: int = 0,
        listener: str = "PLAINTEXT",
        **attributes: Any,
    ) -> None:
        """Count one request of 100 bytes, 40 of them header."""
        header = RequestHeader(api_key, version, 1, "c1", 40)
        connection = Connection(id=1, listener=listener, client_host="test", local_host="test", local_port=1)
        channel = SimpleNamespace(connection=connection)
        exchange = Exchange(channel, header, 100, self.clock.monotonic_ns())  # type: ignore[arg-type]
        exchange.throttle_ms, exchange.response = throttle_ms, None
        for name, value in attributes.items():
            setattr(exchange, name, value)
        self.metrics.count([exchange])

    def numbers(self, name: str, **tags: str) -> dict[str, float]:
        """Return the numbers of one bean."""
        return {
            str(metric.attribute): metric.value
            for metric in self.metrics.metrics()
            if metric.name == name and metric.tags == tags
        }


@pytest.mark.parametrize(("api_key", "name"), [(PRODUCE, "Produce"), (FETCH, "FetchConsumer")])
def test_throttle_times_are_kafkas(api_key: int, name: str) -> None:
    """The histogram of throttle times of every request, to the last bit."""
    counted = Counted()
    for throttle_ms in THROTTLES[name]:
        counted.request(api_key=api_key, throttle_ms=throttle_ms)
    bean = f"kafka.network:type=RequestMetrics,name=ThrottleTimeMs,request={name}"
    assert counted.numbers("ThrottleTimeMs", request=name) == RECORDED["stages"][4]["mbeans"][bean]


def test_times_and_sizes_are_those_of_the_request() -> None:
    """Handler, wait and whole in ms; the size of the body."""
    counted = Counted()
    counted.clock.advance(1000)
    counted.request(handler_ns=2_600_000, remote_ns=40_000_000, started_ns=945_000_000)
    maxima = {
        name: counted.numbers(name, request="Produce")["Max"]
        for name in ("LocalTimeMs", "RemoteTimeMs", "TotalTimeMs", "RequestBytes")
    }
    assert maxima == {"LocalTimeMs": 3.0, "RemoteTimeMs": 40.0, "TotalTimeMs": 55.0, "RequestBytes": 60.0}


def test_versions_are_counted_apart() -> None:
    """With their rates; of an API all versions make the histograms."""
    counted = Counted()
    for version in (9, 9, 12):
        counted.request(version=version)
    counted.metrics.tick()
    assert counted.numbers("RequestsPerSec", request="Produce", version="9")["Count"] == 2.0
    assert counted.numbers("RequestsPerSec", request="Produce", version="9")["OneMinuteRate"] == 0.4
    assert counted.numbers("RequestsPerSec", request="Produce", version="12")["Count"] == 1.0
    assert counted.numbers("LocalTimeMs", request="Produce")["Count"] == 3.0


def test_fetch_is_there_under_two_names() -> None:
    """As in Kafka, which tells followers from consumers."""
    counted = Counted()
    counted.request(api_key=FETCH, version=12)
    for name in ("Fetch", "FetchConsumer"):
        assert counted.numbers("RequestsPerSec", request=name, version="12")["Count"] == 1.0
        assert counted.numbers("ThrottleTimeMs", request=name)["Count"] == 1.0


def test_unknown_versions_take_no_memory() -> None:
    """A client that makes versions up is counted as version 0, in whose form it is answered."""
    counted = Counted()
    for version in range(1000, 2000):
        counted.request(api_key=API_VERSIONS, version=version)
    assert counted.numbers("RequestsPerSec", request="ApiVersions", version="0")["Count"] == 1000.0
    assert len(list(counted.metrics.all_counts())) == 1


def test_an_api_that_comes_later_is_counted_too() -> None:
    """A connection may be given other handlers than those of the start."""
    counted = Counted()
    assert counted.numbers("LocalTimeMs", request="Metadata") == {}
    counted.request(api_key=METADATA, version=12)
    assert counted.numbers("LocalTimeMs", request="Metadata")["Count"] == 1.0


def test_bytes_and_answers_are_added_up() -> None:
    """A request without an answer brings bytes in and none out."""
    counted = Counted()
    answer = encode_response(PRODUCE, 9, 1, {"responses": [], "throttle_time_ms": 0})
    counted.request(response=answer, handler_ns=5)
    counted.request(handler_ns=7)
    counted.request(listener="INTERNAL")
    (counts,) = counted.metrics.all_counts()
    assert (counts.requests, counts.handler_ns) == (3, 12)
    listeners = counted.metrics.listeners
    assert (listeners["PLAINTEXT"].requests, listeners["PLAINTEXT"].unanswered) == (2, 1)
    assert listeners["PLAINTEXT"].request_bytes == 200
    assert listeners["PLAINTEXT"].response_bytes == answer.size
    assert (listeners["INTERNAL"].requests, listeners["INTERNAL"].request_bytes) == (1, 100)


def test_of_many_requests_few_are_looked_at() -> None:
    """Every one while they are few; then fewer, evenly, and counts, mean and maximum of throttles stay exact."""
    counted = Counted()
    api = counted.metrics._apis[PRODUCE]
    for _ in range(SAMPLES - 1):
        counted.request()
    assert len(api.sample) == SAMPLES - 1
    counted.request(throttle_ms=500)
    looked_at = []
    for number in range(50_000):
        counted.request(handler_ns=number * 1_000_000)
        if api.sample[-1][0] == number:
            looked_at.append(number)
    assert len(api.sample) == SAMPLES
    assert len(looked_at) < 5 * SAMPLES
    gaps = [after - before for before, after in itertools.pairwise(looked_at)]
    assert max(gaps) == gaps[-1] == pytest.approx(50_000 / SAMPLES, rel=0.1)
    numbers = counted.numbers("ThrottleTimeMs", request="Produce")
    assert (numbers["Count"], numbers["Max"]) == (50_000.0 + SAMPLES, 500.0)
    assert numbers["Mean"] == 500 / (50_000 + SAMPLES)


def test_a_sample_spans_five_minutes() -> None:
    """At a steady rate one request in so many is looked at that `SAMPLES` of them take some five minutes."""
    counted = Counted()
    for _ in range(200):
        for _ in range(500):
            counted.request()
        counted.metrics.tick()
    (counts,) = counted.metrics.all_counts()
    gap = counts.look_at - counts.requests
    counted.request()
    assert gap <= 1 + 100 * 300 // SAMPLES + 1
    counts.looked_at()
    assert counts.look_at - counts.requests == pytest.approx(100 * 300 / SAMPLES, rel=0.05)


def test_reading_changes_nothing() -> None:
    """Two readings in a row are the same, whatever was read before."""
    counted = Counted()
    counted.request(throttle_ms=7)
    assert [m.value for m in counted.metrics.metrics()] == [m.value for m in counted.metrics.metrics()]
