"""The periodic work of a node: its timers, the sweep of idle sensors, and the compilation of codecs ahead of use."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain

from tidegate.clock import Clock
from tidegate.quota import ConnectionQuotas, QuotaManagers
from tidegate.scheduling import Scheduler, Timer
from tidegate.server.requests.handler import HandlerTable
from tidegate.server.requests.recorder import Recorder
from tidegate.server.requests.slices import SLICE_NS, Slices
from tidegate.wire import API_BY_KEY, compile_ahead

__all__ = ["EXPIRE_SENSORS_EVERY_S", "PeriodicWork"]

EXPIRE_SENSORS_EVERY_S = 30  # Kafka's own period (B§1.2)
_ROLL_USAGE_EVERY_S = 0.5
_COMPILE_EVERY_S = 0.005


class PeriodicWork:
    """The timers of one node. Nothing runs before `start`, and nothing after `close`."""

    def __init__(
        self,
        managers: QuotaManagers,
        connections: ConnectionQuotas,
        recorder: Recorder | None,
        *,
        clock: Clock,
        loop: Scheduler,
        slices: Slices,
    ) -> None:
        self._managers = managers
        self._connections = connections
        self._recorder = recorder
        self._clock = clock
        self._loop = loop
        self._slices = slices
        self._timers: dict[str, Timer] = {}
        self._sweep: Iterator[None] | None = None
        self._codecs: Iterator[tuple[int, int]] = iter(())

    def start(self, handlers: HandlerTable) -> None:
        """Begin to sweep sensors, to write the usage record, and to compile the codecs of the APIs of `handlers`."""
        self._codecs = iter(_newest_first(handlers))
        self._timers["codecs"] = self._loop.call_later(_COMPILE_EVERY_S, self._compile_one)
        self.every("expire", EXPIRE_SENSORS_EVERY_S, self._expire_sensors)
        if self._recorder is not None:
            self.every("roll", _ROLL_USAGE_EVERY_S, partial(self._roll_usage, self._recorder))

    def close(self) -> None:
        """Cancel all timers."""
        for timer in self._timers.values():
            timer.cancel()

    def every(self, name: str, period_s: float, call: Callable[[], None]) -> None:
        """Call `call` every `period_s` seconds, until `close`."""

        def run() -> None:
            self._timers[name] = self._loop.call_later(period_s, run)
            call()

        self._timers[name] = self._loop.call_later(period_s, run)

    def _compile_one(self) -> None:
        """Compile the codecs of one API version ahead of its first request, a little at a time (some ms each)."""
        pair = next(self._codecs, None)
        if pair is not None:
            compile_ahead([pair])
            self._timers["codecs"] = self._loop.call_later(_COMPILE_EVERY_S, self._compile_one)

    def _roll_usage(self, recorder: Recorder) -> None:
        """Hand old segments of the usage record to the writer, and write the engine's state when that is due."""
        now_ms = self._clock.now_ms()
        recorder.maybe_roll(now_ms)
        if recorder.snapshot_due(now_ms):
            work = recorder.snapshot_in_slices(self._managers, self._clock.now_ms)
            self._slices.start(work, self._clock.monotonic_ns)

    def _expire_sensors(self) -> None:
        """Sweep idle sensors in slices. The first slice selects all of them, so the sweep is recorded at its time."""
        if self._sweep is not None:
            return  # the previous sweep is not over
        now_ms = self._clock.now_ms()
        self._sweep = chain(
            self._managers.expire_in_slices(now_ms), self._connections.expire_in_slices(now_ms)
        )
        next(self._sweep, None)
        if self._recorder is not None:
            self._recorder.expire(now_ms)
        self._slices.schedule(self._sweep_on)

    def _sweep_on(self) -> bool:
        assert self._sweep is not None
        until_ns = self._clock.monotonic_ns() + SLICE_NS
        for _ in self._sweep:
            if self._clock.monotonic_ns() >= until_ns:
                return False
        self._sweep = None
        return True


def _newest_first(handlers: HandlerTable) -> list[tuple[int, int]]:
    """Return every (api key, version) that is served: the newest versions of all APIs first, as clients choose them."""
    pairs = [
        (api.max_version - version, api.key, version)
        for api in map(API_BY_KEY.__getitem__, handlers)
        for version in range(api.min_version, api.max_version + 1)
    ]
    return [(key, version) for _, key, version in sorted(pairs)]
