"""The request quota over every API and version that is served: told where the answer has a field for it, muted always.

Follows: Kafka's `RequestQuotaTest` (KIP-124, KIP-219).
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.server.whole_node import RawClient, WholeNode, whole_node
from tests.wire.messages import has_throttle_time_ms, response_body_at
from tests.wire.odd_messages import plain_message

from tidegate.api_keys import FETCH
from tidegate.in_slices import run_at_once
from tidegate.quota import QuotaRecord
from tidegate.server.muting import Muting
from tidegate.wire import API_BY_KEY, encode_request, read_response

SERVED = (
    0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 29, 30, 31, 32, 33, 35, 36, 37,
    42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 60, 61, 68, 74, 75,
)  # fmt: skip
WINDOW_MS = 1000
"""The longest throttle time of the request quota."""
TINY_PERCENT = 1e-9


def limit(node: WholeNode, client_id: str) -> None:
    """Give a client a request quota that any request exceeds."""
    entity = (("client-id", client_id),)
    node.node.on_quota(QuotaRecord(entity=entity, key="request_percentage", value=TINY_PERCENT))


def throttled(node: WholeNode) -> int:
    """Return how many connections are muted."""
    muting: Muting = node.node._front.muting
    return sum(int(metric.value) for metric in muting.metrics() if metric.group == "Request")


async def ask(node: WholeNode, api_key: int, version: int, message: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a request of a new connection, which closes."""
    client = RawClient(node.node.listeners["PLAINTEXT"].port)
    frame = await client.ask(encode_request(api_key, version, 1, "slow", message)[4:])
    assert frame is not None
    assert throttled(node) == 1, "it is muted once its answer has left"
    await client.close()
    return read_response(api_key, version, frame, response_body_at(api_key, version))


@pytest.mark.parametrize("api_key", SERVED, ids=lambda key: API_BY_KEY[key].name)
def test_every_version_is_throttled(tmp_path: Path, api_key: int) -> None:
    """Answered at once with the longest throttle time, and muted, also where a version has no field for it."""
    api = API_BY_KEY[api_key]

    async def main() -> None:
        async with whole_node(tmp_path) as node:
            run_at_once(node.storage.topics.create_in_slices("x", 1, {}))
            assert node.node.handlers.keys() == set(SERVED)
            limit(node, "slow")
            for version in range(api.min_version, api.max_version + 1):
                message = plain_message(api_key, version)
                if api_key == FETCH:
                    message = {**message, "max_wait_ms": 0}
                answer = await ask(node, api_key, version, message)
                told = WINDOW_MS if has_throttle_time_ms(api, version) else None
                assert answer.get("throttle_time_ms") == told, version
                while throttled(node):
                    await asyncio.sleep(0)

    asyncio.run(main())


def test_who_says_that_it_is_a_follower_is_throttled(tmp_path: Path) -> None:
    """Nobody has ClusterAction: its fetch is refused, and costs its time; with `tidegate.kafka.exact` it is exempt."""

    async def main(told_ms: int, **settings: str) -> None:
        async with whole_node(tmp_path, **settings) as node:
            limit(node, "slow")
            client = RawClient(node.node.listeners["PLAINTEXT"].port)
            message = {**plain_message(FETCH, 12), "replica_id": 1, "max_wait_ms": 0}
            frame = await client.ask(encode_request(FETCH, 12, 1, "slow", message)[4:])
            assert frame is not None
            assert read_response(FETCH, 12, frame, 5)["throttle_time_ms"] == told_ms
            await client.close()

    asyncio.run(main(WINDOW_MS))
    asyncio.run(main(0, tidegate_kafka_exact="true"))
