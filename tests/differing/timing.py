"""What time decides: throttle times that may differ, and how long a connection must stay deaf."""

import select
import time
from collections.abc import Iterator, Sequence

from tests.differing.requests import Made, probe
from tests.differing.sides import Reply, Side
from tests.e2e.lateness import Lateness

from tidegate.api_keys import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS

__all__ = ["LONG_MUTE_MS", "heard", "throttled_alike"]

LONG_MUTE_MS = 1100
"""What is throttled for longer is not waited for."""
_SEEN_DEAF_S = 0.06
"""How long a connection is looked at that will be deaf for much longer."""
_HEARD_WITHIN_S = 0.1
"""By how much a mute may end late on a machine that is not busy."""
_WINDOW_MS = 1000
_MUTATIONS = (CREATE_TOPICS, CREATE_PARTITIONS, DELETE_TOPICS)
Exchange = tuple[Made, Reply, Reply]


def throttled_alike(exchanges: Sequence[Exchange]) -> bool:
    """Return whether the throttle times of the last of these exchanges differ by no more than time explains.

    Of a rate, throttle + age - 1000 · (whole windows in the age) is a constant of what was recorded (B§1.4, B§2.1);
    of a token bucket, throttle + age is one (B§2.2). The age is that of the sensor's oldest sample, or since the bucket
    was full: of one of the requests of this kind so far. When a request was charged is known from when it was sent and
    answered.
    """
    made, kafka, tidegate = exchanges[-1]
    if kafka.throttle_ms == tidegate.throttle_ms:
        return True
    window_ms = 0 if made.api_key in _MUTATIONS else _WINDOW_MS
    return any(
        _overlap(first, second)
        for one, kafka_first, tidegate_first in exchanges
        if one.api_key == made.api_key or window_ms == 0
        for first in _constants(kafka, kafka_first, window_ms)
        for second in _constants(tidegate, tidegate_first, window_ms)
    )


def _constants(reply: Reply, first: Reply, window_ms: int) -> Iterator[tuple[float, float]]:
    """Yield, for each count of whole windows that the age may have, the least and the most of the constant."""
    least = max(1000 * (reply.sent_at - first.answered_at), 0.0)
    most = 1000 * (reply.answered_at - first.sent_at)
    windows = range(int(least // window_ms), int(most // window_ms) + 1) if window_ms else (0,)
    for whole in windows:
        at = reply.throttle_ms - window_ms * whole
        yield (at + least - 1 if reply.throttle_ms else float("-inf")), at + most + 1


def _overlap(first: tuple[float, float], second: tuple[float, float]) -> bool:
    return first[0] <= second[1] and second[0] <= first[1]


def heard(sides: Sequence[Side], made: Made, replies: Sequence[Reply], lateness: Lateness) -> list[str]:
    """Send a probe behind each throttled answer and say when it was answered: as Kafka promises, or when else.

    A mute begins between a request and its answer. All connections of the client are closed afterwards.
    """
    throttled = [place for place, reply in enumerate(replies) if reply.throttle_ms > 0]
    one = probe(made.client)
    for place in throttled:
        sides[place].send(one)
    waiting = {sides[place].sock(made.client): place for place in throttled}
    found = ["heard"] * len(sides)
    give_up_at = time.monotonic() + _patience_s([replies[place] for place in throttled])
    while waiting:
        ready = select.select(list(waiting), [], [], max(give_up_at - time.monotonic(), 0))[0]
        now = time.monotonic()
        if not ready:
            break
        for sock in ready:
            place = waiting.pop(sock)
            found[place] = _verdict(replies[place], now, lateness)
    for place in waiting.values():
        if replies[place].throttle_ms <= LONG_MUTE_MS:
            found[place] = f"still deaf, throttled for {replies[place].throttle_ms} ms"
    for side in sides:
        side.hang_up(made.client)
    return found


def _patience_s(replies: Sequence[Reply]) -> float:
    short = [reply.throttle_ms for reply in replies if reply.throttle_ms <= LONG_MUTE_MS]
    return max(short) / 1000 + 5 if short else _SEEN_DEAF_S


def _verdict(reply: Reply, now: float, lateness: Lateness) -> str:
    throttle_s = reply.throttle_ms / 1000
    if now < reply.sent_at + throttle_s - 0.001:
        return f"heard after {1000 * (now - reply.sent_at):.0f} of {reply.throttle_ms} ms"
    late_s = now - reply.answered_at - throttle_s
    if late_s > _HEARD_WITHIN_S + lateness.ms_since(reply.answered_at) / 1000:
        return f"heard {1000 * late_s:.0f} ms after the {reply.throttle_ms} ms"
    return "heard"
