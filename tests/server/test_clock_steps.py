"""A wall clock that is stepped while a node serves: quotas, the usage record, and time stamps."""

import asyncio
import logging
import time
from pathlib import Path

import pytest
from tests.server.nodes import METADATA, MemoryStore, RunningNode, metadata_handler, running_node

from tidegate.clock import SystemClock
from tidegate.quota import ClientQuotaManager, QuotaEntity, QuotaType, QuotaWindow
from tidegate.server.clock_watch import LEAST_STEP_MS, ClockWatch
from tidegate.server.requests.handler import Answer, Request
from tidegate.testing import ManualClock
from tidegate.usage.readers import read_segment

HOUR_MS = 3_600_000


class SteppedClock(SystemClock):
    """The machine's clocks, with a wall clock that a test may step."""

    def __init__(self) -> None:
        super().__init__()
        self.stepped_ms = 0

    def wall_ms(self) -> int:
        """Return the stepped wall clock."""
        return time.time_ns() // 1_000_000 + self.stepped_ms


@pytest.mark.parametrize("step_ms", [-HOUR_MS, -5000, HOUR_MS])
def test_a_stepped_wall_clock_throttles_nobody(tmp_path: Path, step_ms: int) -> None:
    """Half of the quota is half of the quota: within a second the record says how far the clocks are apart."""
    clock = SteppedClock()
    seen_ms: list[int] = []

    def metadata(request: Request) -> Answer:
        seen_ms.append(request.now_ms)
        return metadata_handler(request)

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        await client.alter([("client-id", "c1")], "producer_byte_rate", 10_000.0)
        client.send_produce(padding=32_000)
        assert (await client.receive())[1]["throttle_time_ms"] == 0
        clock.stepped_ms = step_ms
        before_ms = clock.wall_ms()
        for _ in range(12):  # for longer than a second
            client.send_produce(padding=1)
            assert (await client.receive())[1]["throttle_time_ms"] == 0
            await asyncio.sleep(0.1)
        await client.metadata()
        assert before_ms <= seen_ms[-1] <= clock.wall_ms(), "time stamps of records follow the wall clock"
        (path,) = (tmp_path / "spool").glob("*.open")
        events = list(read_segment(path))
        (stepped,) = [event for event in events if event["kind"] == "clock"]
        assert stepped["wall_offset_ms"] == pytest.approx(step_ms, abs=50)
        times = [event["ts_ms"] for event in events]
        assert times == sorted(times)
        assert times[-1] - times[0] < 10_000, "engine time was not stepped"

    async def main() -> None:
        async with running_node(
            tmp_path, MemoryStore(), {}, handlers={METADATA: metadata}, clock=clock
        ) as node:
            await asyncio.wait_for(scenario(node), 20)

    asyncio.run(main())


def test_what_kafka_does_when_its_clock_is_set_back() -> None:
    """The engine, asked with a wall clock as Kafka does, throttles a client at half its quota after the step."""
    manager = ClientQuotaManager(QuotaType.PRODUCE, QuotaWindow())
    manager.update_quota(QuotaEntity(client_id="c"), 1000.0)
    throttled_ms = {0: 0, -HOUR_MS: 0}
    for step_ms in throttled_ms:
        for at_ms in range(0, 120_000, 100):
            now_ms = 1_700_000_000_000 + at_ms + (step_ms if at_ms >= 60_000 else 0)
            throttled_ms[step_ms] += manager.record("u", "c", 50.0, now_ms)
    assert throttled_ms[0] == 0
    assert throttled_ms[-HOUR_MS] > HOUR_MS


def test_small_steps_are_reported_when_they_have_piled_up(caplog: pytest.LogCaptureFixture) -> None:
    """A slewed clock is not worth a row; each step of 100 ms is, once, with the distance from then on."""
    clock = ManualClock(start_ms=1000)
    steps: list[tuple[int, int]] = []
    watch = ClockWatch(clock, lambda now_ms, offset_ms: steps.append((now_ms, offset_ms)))
    with caplog.at_level(logging.WARNING):
        for step_ms in (0, LEAST_STEP_MS - 1, 1, 0, -5000, 0, 5000 - LEAST_STEP_MS):
            clock.advance(1000)
            clock.step_wall(step_ms)
            watch.look()
    assert steps == [(4000, 100), (6000, -4900), (8000, 0)]
    assert [text.split(";")[0] for text in caplog.messages] == [
        "wall clock jumped by +100 ms",
        "wall clock jumped by -5000 ms",
        "wall clock jumped by +4900 ms",
    ]
