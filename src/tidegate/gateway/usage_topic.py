"""The topic through which gateway processes share quotas: each publishes its usage, and reads that of all.

Records (`usage_report`) older than some minutes are of no use, and the broker deletes them.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from tidegate.client import Admin
from tidegate.client.consumer import LATEST, Consumer
from tidegate.client.errors import ClientError
from tidegate.client.partitions import TopicPartition
from tidegate.client.producer import Producer
from tidegate.client.settings import ClientSettings
from tidegate.gateway.gateway import run_work
from tidegate.gateway.quota_topic import create_if_missing
from tidegate.gateway.shared_mutations import SharedMutations
from tidegate.gateway.sharing import LOST_AFTER_MS, TICK_MS, Sharing
from tidegate.gateway.usage_report import USAGE_TOPIC, UsageReport, decode_report, encode_report

__all__ = ["UsageExchange"]

_log = logging.getLogger("tidegate.gateway")

_PLACE = TopicPartition(USAGE_TOPIC, 0)
_CONFIGS = {
    "cleanup.policy": "delete",
    "compression.type": "uncompressed",
    "retention.ms": "600000",
    "segment.ms": "600000",
    "segment.bytes": "16777216",
}
_TICK_S = TICK_MS / 1000
_READ_AT_A_TIME = 4
"""Records that are decoded together: of the largest, some milliseconds."""
_PAUSE_S = 1.0


class UsageExchange:
    """Publishes the usage of this process, and reads that of all. `open` it, then let `run` run.

    mutations: the buckets of mutation quotas that it shares. is_wanted: whether any quota is shared with other
    gateways; nothing is published otherwise.
    """

    def __init__(
        self,
        settings: ClientSettings,
        sharing: Sharing,
        *,
        mutations: SharedMutations,
        now_ms: Callable[[], int],
        is_wanted: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._sharing = sharing
        self._mutations = mutations
        self._now_ms = now_ms
        self._is_wanted = is_wanted
        self._producer = Producer(settings, acks=1)
        self._consumer = Consumer(settings, max_records=_READ_AT_A_TIME)
        self._sending: asyncio.Task[int] | None = None
        self._is_open = self._is_tried = False

    async def open(self) -> None:
        """Create the topic if it is missing, and read what other processes publish now. Raises `ClientError`."""
        if not self._is_wanted():
            return
        async with Admin(self._settings) as admin:
            await create_if_missing(admin, USAGE_TOPIC, _CONFIGS)
        self._consumer.assign({_PLACE: LATEST})
        loop = asyncio.get_running_loop()
        until_s = loop.time() + 2 * _TICK_S
        while (left_s := until_s - loop.time()) > 0:
            await self._read(left_s)
        self._sharing.begin(self._now_ms())
        self._is_open = self._is_tried = True

    async def run(self) -> None:
        """Publish and read. Never ends."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._publish_all())
            tasks.create_task(self._read_all())

    async def close(self) -> None:
        """Publish that this process stops, so that the others use its share, and close the connections."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
        if self._is_open and not self._sharing.is_cut_off:
            with suppress(ClientError, TimeoutError):
                async with asyncio.timeout(_PAUSE_S):
                    last = await self._with_mutations(self._sharing.last_report())
                    await self._producer.send(*_PLACE, [encode_report(last)])
        await self._producer.__aexit__()
        await self._consumer.__aexit__()

    async def _publish_all(self) -> None:
        loop = asyncio.get_running_loop()
        next_s = loop.time()
        while True:
            if loop.time() - next_s > LOST_AFTER_MS / 1000:
                self._end()  # the process was suspended, so the next reports that it reads are old
            next_s = max(next_s + _TICK_S, loop.time())
            if self._is_wanted() and self._is_tried:  # a process that is starting is not cut off yet
                report = await run_work(self._sharing.tick_in_slices(self._now_ms()))
                report = await self._with_mutations(report)
                if self._is_open:
                    self._publish(report)
            await asyncio.sleep(next_s - loop.time())

    async def _with_mutations(self, report: UsageReport) -> UsageReport:
        """Return a report that has the use of the buckets of mutations, too."""
        work = self._mutations.counts_in_slices(report.number, self._now_ms())
        return replace(report, gateway=self._mutations.gateway, mutations=await run_work(work))

    def _publish(self, report: UsageReport) -> None:
        """Send a report, unless an earlier one is still unanswered: the cluster does not respond then."""
        if self._sending is not None and not self._sending.done():
            return
        self._sending = asyncio.get_running_loop().create_task(
            self._producer.send(*_PLACE, [encode_report(report)])
        )
        self._sending.add_done_callback(_note_failure)

    async def _read_all(self) -> None:
        while True:
            try:
                if not self._is_wanted():
                    if self._is_open:
                        self._end()  # the reports will be old when sharing is wanted again
                    await asyncio.sleep(_PAUSE_S)
                elif self._is_open:
                    await self._read(_PAUSE_S)
                else:
                    await self.open()
            except ClientError as error:
                if not self._is_tried:
                    self._is_tried = True
                    await run_work(self._sharing.tick_in_slices(self._now_ms()))  # it is cut off from now on
                _log.warning(
                    "cannot share cluster-wide quotas through topic %s: %s; until the cluster answers, they are 1/%d "
                    "of their limits here, and mutation quotas count the mutations of this gateway alone",
                    USAGE_TOPIC,
                    error,
                    self._sharing.processes,
                    extra={"repeats": USAGE_TOPIC},
                )
                await asyncio.sleep(_PAUSE_S)
                self._is_open = False

    def _end(self) -> None:
        """End sharing until the topic is open again, which is read from its end."""
        self._is_open = False
        self._sharing.end()

    async def _read(self, timeout_s: float) -> None:
        for records in (await self._consumer.poll(timeout_s=timeout_s)).values():
            for record in records:
                report = decode_report(record)
                if report is not None:
                    now_ms = self._now_ms()
                    self._sharing.receive(report, now_ms)
                    await run_work(self._mutations.receive_in_slices(report, now_ms, offset=record.offset))


def _note_failure(sending: "asyncio.Task[int]") -> None:
    if not sending.cancelled() and (error := sending.exception()) is not None:
        _log.debug("cannot publish usage to topic %s: %s", USAGE_TOPIC, error)
