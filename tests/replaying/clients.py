"""Applications that are played in a time of their own, without sockets: each a generator of what it sends.

A client yields a `Request` and is sent its `Answer`. All connections go to one node, which takes requests in order of
time, and none while their connection is muted. Times are in ms from the beginning.
"""

import heapq
from collections import deque
from collections.abc import Callable, Generator, Sequence
from random import Random
from typing import Any, NamedTuple

from tests.replaying.node import RecordingNode

from tidegate.quota.admin.definitions import QuotaRecord

__all__ = [
    "T0_MS",
    "Answer",
    "Client",
    "Request",
    "by_the_clock",
    "consumes_as_it_comes",
    "consumes_backlog",
    "creates_topics",
    "flushes_bursts",
    "limit_of",
    "play",
    "sends_on",
    "waits_for_each",
]

T0_MS = 1_700_000_000_000
KEYS = {"produce": "producer_byte_rate", "fetch": "consumer_byte_rate", "create": "controller_mutation_rate"}
_CREATE_TOPICS = 19
_IN_FLIGHT, _STEP_MS, _LONG_POLL_MS, _FETCH_BYTES = 5, 100, 500, 1 << 20


class Answer(NamedTuple):
    """When an answer is there, the throttle time it tells, and whether permits were refused."""

    at_ms: float
    throttle_ms: int
    is_refused: bool = False


class Request(NamedTuple):
    """When a request is sent, its API, and its size when it is taken at a time: bytes, or permits of `create`."""

    sent_ms: float
    api: str
    size: int | Callable[[float], int]


Client = Generator[Request, Answer, None]


def limit_of(api: str, value: float) -> QuotaRecord:
    """Return the quota of all clients that `play` plays."""
    return QuotaRecord(entity=(("client-id", "c"),), key=KEYS[api], value=float(value))


def play(
    clients: Sequence[Callable[[Random], Client]],
    *,
    seed: int,
    software: str,
    limit: QuotaRecord | None = None,
) -> tuple[list[dict[str, Any]], list[int]]:
    """Return the events of a node to which each client has a connection, and the throttles it handed out."""
    rng, node, throttles = Random(seed), RecordingNode(), []
    node.start(T0_MS, records=() if limit is None else (limit,))
    playing = [client(rng) for client in clients]
    taken_ms, muted_ms = [0.0] * len(playing), [0.0] * len(playing)
    waiting = [(0.0, number, next(client)) for number, client in enumerate(playing)]
    heapq.heapify(waiting)
    while waiting:
        at_ms, number, request = heapq.heappop(waiting)
        ready_ms = max(request.sent_ms + 0.15, taken_ms[number], muted_ms[number])
        if ready_ms > at_ms:
            heapq.heappush(waiting, (ready_ms, number, request))
            continue
        before = len(node.events)
        throttle_ms, is_refused = _decide(node, request, ready_ms, number + 1)
        for event in node.events[before:]:
            event |= {"client_software": software, "connection_id": number + 1}
        throttles.append(throttle_ms)
        taken_ms[number] = ready_ms + 0.25 + rng.expovariate(10)
        muted_ms[number] = ready_ms + throttle_ms + rng.uniform(0.6, 2.2) if throttle_ms else 0.0
        try:
            following = playing[number].send(Answer(taken_ms[number] + 0.1, throttle_ms, is_refused))
        except StopIteration:
            continue
        heapq.heappush(waiting, (taken_ms[number], number, following))
    return node.events, throttles


def _decide(node: RecordingNode, request: Request, at_ms: float, number: int) -> tuple[int, bool]:
    now_ms = T0_MS + int(at_ms)
    size = request.size(at_ms) if callable(request.size) else request.size
    if request.api != "create":
        event = getattr(node, request.api)("u", "c", size, now_ms)
        return event[f"{request.api}_throttle_ms"], False
    refused = node.mutate("u", "c", size, now_ms, connection_id=number)["rejected"]
    event = node.other("u", "c", now_ms, connection_id=number, api_key=_CREATE_TOPICS)
    return event["mutation_throttle_ms"], refused


def _slept(rng: Random, ms: float) -> float:
    """Return how long a sleep takes."""
    return ms + 0.06 + rng.expovariate(10)


# --- producers --------------------------------------------------------------------------------------------------------


def waits_for_each(records: int = 500, *, size: int = 50_000, think_ms: float = 50) -> Callable[..., Client]:
    """Return a producer that thinks after each answer."""

    def client(rng: Random) -> Client:
        now_ms = 0.0
        for _ in range(records):
            answer = yield Request(now_ms, "produce", size)
            now_ms = answer.at_ms + _slept(rng, think_ms)

    return client


def sends_on(records: int = 500, *, size: int = 50_000, think_ms: float = 50) -> Callable[..., Client]:
    """Return a producer that thinks after each send; it waits when five are on their way."""

    def client(rng: Random) -> Client:
        now_ms, answers = 0.0, deque([0.0] * _IN_FLIGHT, _IN_FLIGHT)
        for _ in range(records):
            now_ms = max(now_ms, answers[0])
            answers.append((yield Request(now_ms, "produce", size)).at_ms)
            now_ms += _slept(rng, think_ms)

    return client


def flushes_bursts(
    bursts: int = 25,
    *,
    records: int = 20,
    size: int = 50_000,
    pause_ms: float = 1000,
    by_the_clock: bool = False,
) -> Callable[..., Client]:
    """Return a producer that sends a burst, waits for all answers (`flush()`), and pauses or goes by the clock."""

    def client(rng: Random) -> Client:
        now_ms = 0.0
        for burst in range(bursts):
            now_ms = max(now_ms, burst * pause_ms) if by_the_clock else now_ms
            answers, last_ms = deque([0.0] * _IN_FLIGHT, _IN_FLIGHT), 0.0
            for _ in range(records):
                now_ms = max(now_ms + 0.05, answers[0])
                last_ms = (yield Request(now_ms, "produce", size)).at_ms
                answers.append(last_ms)
            now_ms = last_ms if by_the_clock else last_ms + _slept(rng, pause_ms)

    return client


def by_the_clock(
    seconds: int = 25, *, rate: float, size: int, batch_bytes: int = 16_384, is_told: bool = True
) -> Callable[..., Client]:
    """Return a producer whose records come at times of their own; batches grow while it waits (`linger.ms` 5).

    is_told: it sends nothing until `throttle_time_ms` is over.
    """

    def client(rng: Random) -> Client:
        times, answers = [0.0], deque([0.0] * _IN_FLIGHT, _IN_FLIGHT)
        while times[-1] < seconds * 1000:
            times.append(times[-1] + rng.expovariate(rate / 1000))
        sent, now_ms, told_ms, most = 0, 0.0, 0.0, max(1, batch_bytes // size)
        while sent < len(times):
            full_ms = times[min(sent + most, len(times)) - 1]
            now_ms = max(now_ms + 0.05, min(times[sent] + 5, full_ms), answers[0], told_ms)
            count = max(1, sum(time <= now_ms for time in times[sent : sent + most]))
            answer = yield Request(now_ms, "produce", count * size + 100)
            sent += count
            answers.append(answer.at_ms)
            told_ms = answer.at_ms + answer.throttle_ms if is_told else 0.0

    return client


# --- consumers --------------------------------------------------------------------------------------------------------


def consumes_backlog(
    records: int = 300, *, work_ms: float = 50, reads_ahead: bool = True, in_steps: bool = False
) -> Callable[..., Client]:
    """Return a consumer of what is there already, a record a fetch."""

    def client(rng: Random) -> Client:
        sent_ms = ready_ms = 0.0
        for _ in range(records):
            answer = yield Request(sent_ms, "fetch", 50_000)
            while answer.throttle_ms:
                answer = yield Request(answer.at_ms + _wait_ms(answer, in_steps), "fetch", 50_000)
            begins_ms = max(ready_ms, answer.at_ms) if reads_ahead else answer.at_ms
            ready_ms = begins_ms + _slept(rng, work_ms)
            sent_ms = begins_ms if reads_ahead else ready_ms

    return client


def consumes_as_it_comes(
    place: int = 0,
    *,
    of: int = 1,
    seconds: int = 25,
    rate: float = 20,
    size: int = 50_000,
    in_steps: bool = False,
) -> Callable[..., Client]:
    """Return a consumer at the end of a topic, one of several in a group: data comes by the clock."""

    def client(rng: Random) -> Client:
        times = [number * 1000 / rate for number in range(int(seconds * rate)) if number % of == place]
        read, now_ms = 0, rng.random()
        while read < len(times):
            if times[read] > now_ms + _LONG_POLL_MS:
                now_ms = (yield Request(now_ms + _LONG_POLL_MS, "fetch", 100)).at_ms
                continue
            counts = [0]

            def amount(at_ms: float, first: int = read, counts: list[int] = counts) -> int:
                there = sum(time <= at_ms for time in times[first : first + _FETCH_BYTES // size])
                counts[0] = max(1, there)
                return counts[0] * size + 100

            answer = yield Request(max(now_ms, times[read]), "fetch", amount)
            now_ms = answer.at_ms + _wait_ms(answer, in_steps)
            read += 0 if answer.throttle_ms else counts[0]

    return client


def _wait_ms(answer: Answer, in_steps: bool) -> float:
    """Return how long a consumer waits before it fetches again."""
    return -(-answer.throttle_ms // _STEP_MS) * _STEP_MS + in_steps if in_steps else answer.throttle_ms


# --- admin clients ----------------------------------------------------------------------------------------------------


def creates_topics(requests: int = 60, *, think_ms: float = 100, refused: str) -> Callable[..., Client]:
    """Return an admin client that creates topics of five partitions one after another.

    refused: what its application does about refused permits: `asks again`; `goes on` with the next topic; `gives up`:
    goes on, and fails at once with what it asks while it is throttled.
    """

    def client(rng: Random) -> Client:
        now_ms = told_ms = 0.0
        for _ in range(requests):
            if refused == "gives up" and now_ms < told_ms:
                now_ms += _slept(rng, think_ms)
                continue
            answer = yield Request(max(now_ms, told_ms), "create", 5)
            told_ms = answer.at_ms + answer.throttle_ms
            while answer.is_refused and refused == "asks again":
                answer = yield Request(told_ms, "create", 5)
                told_ms = answer.at_ms + answer.throttle_ms
            now_ms = answer.at_ms + _slept(rng, think_ms)

    return client
