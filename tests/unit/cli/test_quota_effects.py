"""Effects of planned quotas on consumer groups: the sentences, and a cluster that does not answer."""

import asyncio
import socket
from pathlib import Path

from tidegate.cli.quota_effects import find_effects
from tidegate.cli.quota_effects.effects import _lag_warnings
from tidegate.cli.quota_effects.groups import LogGrowth
from tidegate.cli.quota_effects.limits import Readers
from tidegate.client import Admin
from tidegate.client.partitions import TopicPartition
from tidegate.client.settings import load_client_settings
from tidegate.config.quota_changes import QuotaChange

ENTITY = (("client-id", "app"),)
KEY = "consumer_byte_rate"
PLACE = TopicPartition("orders", 0)


def test_consumers_with_exactly_what_their_partitions_grow_never_catch_up():
    """With more they do, and the warning has the time."""
    growth = LogGrowth(leader=1, bytes_per_s=100.0, record_bytes=1_000.0, start_offset=0, end_offset=1_000)
    found = {}
    for value in (100.0, 150.0):
        readers = Readers(ENTITY, KEY, value, None, {"billing": {PLACE}})
        (warning,) = _lag_warnings(readers, {PLACE: growth}, {"billing": {PLACE: 0}})
        found[value] = warning.message.partition(" min, ")[2]
    lag = "they lag 1,000 records (about 1,000,000 bytes)"
    assert found == {100.0: f"{lag} and never catch up", 150.0: f"{lag} and catch up in about 6 h"}


def test_a_request_that_no_broker_answers_is_named(tmp_path: Path):
    """With its own timeout, which is not that of all requests."""
    config = tmp_path / "client.properties"
    config.write_text("request.timeout.ms=200\ndefault.api.timeout.ms=200\n")

    async def notes(address: str) -> list[str]:
        async with Admin(load_client_settings(address, config)) as admin:
            return list((await find_effects(admin, {}, [QuotaChange(ENTITY, KEY, None, 100.0)])).notes)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        (note,) = asyncio.run(notes(f"127.0.0.1:{silent.getsockname()[1]}"))
    assert note == "effects on consumer groups are not known: no answer within 0.2 s"
