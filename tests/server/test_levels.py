"""The eight levels of quotas on a running node (KIP-13, KIP-55, B§3.4): which of all that are defined holds."""

from tests.server.nodes import RunningNode

USER, CLIENT = ("user", "ANONYMOUS"), ("client-id", "c1")
ANY_USER, ANY_CLIENT = ("user", None), ("client-id", None)
BOTH, USER_ONLY, CLIENT_ONLY = ("ANONYMOUS", "c1"), ("ANONYMOUS", ""), ("", "c1")
LEVELS = (
    ([USER, CLIENT], BOTH),
    ([USER, ANY_CLIENT], BOTH),
    ([USER], USER_ONLY),
    ([ANY_USER, CLIENT], BOTH),
    ([ANY_USER, ANY_CLIENT], BOTH),
    ([ANY_USER], USER_ONLY),
    ([CLIENT], CLIENT_ONLY),
    ([ANY_CLIENT], CLIENT_ONLY),
)
"""The entity of each level, the most specific first, and by which tags its clients are counted."""
SENT_BYTES = 30_000  # ten seconds' worth of more than the largest quota
KEYS = {"Produce": "producer_byte_rate", "Fetch": "consumer_byte_rate"}


def bounds(node: RunningNode, group: str) -> dict[tuple[str, str], float | None]:
    """Return the quota by which each client is measured, by user and client id."""
    metrics = node.node.metrics(node.node.clock.now_ms())
    return {
        (metric.tags["user"], metric.tags["client-id"]): metric.bound
        for metric in metrics
        if (metric.group, metric.name) == (group, "byte-rate")
    }


def test_the_most_specific_of_all_levels_holds(with_node) -> None:
    """Produce and fetch are throttled by the first that is defined; when it goes by the next; in the end by none."""

    async def throttles_ms(node: RunningNode) -> list[int]:
        """Return the throttle times of a Produce and a Fetch, each of a new connection."""
        producer, consumer = await node.connect(), await node.connect()
        producer.send_produce(padding=SENT_BYTES)
        consumer.send_fetch(max_bytes=SENT_BYTES)
        found = [(await client.receive())[1]["throttle_time_ms"] for client in (producer, consumer)]
        for client in (producer, consumer):
            client.writer.close()
        return found

    async def scenario(node: RunningNode) -> None:
        admin = await node.connect("admin")
        for number, (entity, _) in enumerate(LEVELS):
            for key in KEYS.values():
                await admin.alter(entity, key, 10.0 + number)
        for number, (entity, tags) in enumerate(LEVELS):
            assert min(await throttles_ms(node)) > 0, entity
            for group, key in KEYS.items():
                assert bounds(node, group)[tags] == 10.0 + number, (entity, group)
                await admin.alter(entity, key, None)
        assert await throttles_ms(node) == [0, 0]

    with_node(scenario)
