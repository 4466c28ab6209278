"""The custom quota callback of a node: loads it, passes it the cluster, and replaces it while requests are served.

A new instance is loaded and configured on a thread of its own, because an import may take long. Then it gets all quotas
and the cluster metadata in slices, during which no quota can change. After that it replaces the old instance in one
step, with new sensors. Throttles that have begun continue. Last, the old instance is closed.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from typing import Any, Final

from tidegate.clock import Clock
from tidegate.errors import ConfigError
from tidegate.in_slices import run_at_once
from tidegate.quota import ClusterMetadata, Metric, QuotaManagers, QuotaRecord
from tidegate.scheduling import Scheduler
from tidegate.server.callback.callback_guard import GuardedCallback, load_callback
from tidegate.server.requests.handler import Wait
from tidegate.server.requests.slices import run_on_thread
from tidegate.server.settings.config import ServerConfig
from tidegate.server.settings.kafka_settings import CALLBACK_CLASS
from tidegate.server.settings.table import CALLBACK_SETTINGS

__all__ = ["LOAD_S", "UNCHANGED", "NodeCallback"]

LOAD_S = 10.0
"""Time for a class to load and to be configured while the broker runs; Kafka's admin client waits 30 s."""
UNCHANGED: Final = object()
"""The prepared state if the settings of the callback stay the same."""


class NodeCallback:
    """The callback of one node. cluster: the metadata that it gets, if any.

    note_exchange: if given, called with the class (None: no callback) when it comes into use, with new sensors.
    """

    def __init__(
        self,
        config: ServerConfig,
        managers: QuotaManagers,
        *,
        clock: Clock,
        loop: Scheduler,
        note_exchange: Callable[[str | None, int], None] | None,
    ) -> None:
        self.cluster: Callable[[], ClusterMetadata] | None = None
        self._named_at_start: str = config[CALLBACK_CLASS]
        self._managers = managers
        self._note_exchange = note_exchange
        self._clock = clock
        self._loop = loop
        self._settings: dict[str, str] = {}
        self._cluster_changed = False
        self._failed_before = self._slow_before = 0  # calls of the callbacks before this one

    @property
    def current(self) -> GuardedCallback | None:
        """The callback in use; None: Kafka's own rules."""
        callback = self._managers.callback
        assert callback is None or isinstance(callback, GuardedCallback)
        return callback

    def load(self, config: ServerConfig) -> None:
        """Use the class that the settings name, if any. Call it before any quota is defined. Raises `ConfigError`."""
        name = config[CALLBACK_CLASS]
        if name:
            callback = load_callback(name, config.for_callback(), self._clock.monotonic_ns)
            run_at_once(self._managers.exchange_in_slices(callback, ()))
        self._settings = _settings_of(config)

    def prepare_in_slices(self, config: ServerConfig) -> Generator[Wait | None, None, Any]:
        """Return the callback that new settings name, None if they name none, or `UNCHANGED`.

        Raises `ConfigError` if it does not exist, or may not be loaded while the broker runs.
        """
        name = config[CALLBACK_CLASS]
        if _settings_of(config) == self._settings or (not name and self.current is None):
            return UNCHANGED
        if not name:
            return None
        self._check_allowed(name, config["tidegate.callback.modules"])
        return (yield from self._load_on_thread(name, config))

    def exchange_in_slices(
        self, callback: GuardedCallback | None, config: ServerConfig, records: Iterable[QuotaRecord]
    ) -> Generator[None, None, None]:
        """Use `callback`, after passing `records` to it. No quota may change during this."""
        before = self.current
        yield from self._managers.exchange_in_slices(callback, records, self.cluster, self._note_current)
        self._settings = _settings_of(config)
        if before is not None:
            before.close()
            self._failed_before += before.failures
            self._slow_before += before.slow

    def metrics(self) -> Iterator[Metric]:
        """Yield how many calls of a custom callback failed or were slow so far; nothing where there is none."""
        if self.current is not None:
            for name, count in (
                ("failed-call-total", self._failed_before + self.current.failures),
                ("slow-call-total", self._slow_before + self.current.slow),
            ):
                yield Metric(group="ClientQuotaCallback", name=name, tags={}, value=float(count))

    def note_start(self) -> None:
        """Record the callback that the node starts with, if it has one."""
        if self.current is not None:
            self._note_current()

    def on_cluster_change(self) -> None:
        """Pass changed cluster metadata to the callback in a later turn, once for all changes until then."""
        if self.current is not None and not self._cluster_changed:
            self._cluster_changed = True
            self._loop.call_soon(self.update_leaders)

    def update_leaders(self) -> None:
        """Pass the leader of each partition to the callback."""
        self._cluster_changed = False
        if self.current is not None and self.cluster is not None:
            self._managers.update_cluster_metadata(self.cluster())

    def close(self) -> None:
        """Close the callback, if there is one."""
        if self.current is not None:
            self.current.close()

    def _note_current(self) -> None:
        if self._note_exchange is not None:
            self._note_exchange(None if self.current is None else self.current.name, self._clock.now_ms())

    def _check_allowed(self, name: str, modules: str) -> None:
        """Refuse classes that clients must not load: importing a module runs its code."""
        allowed = [module.strip() for module in modules.split(",")]
        module = name.partition(":")[0]
        if name != self._named_at_start and not any(
            module == one or module.startswith(f"{one}.") for one in allowed
        ):
            raise ConfigError(
                f"{CALLBACK_CLASS} is {name!r}, expected a module of tidegate.callback.modules, {modules!r}"
            )

    def _load_on_thread(
        self, name: str, config: ServerConfig
    ) -> Generator[Wait | None, None, GuardedCallback]:
        load = partial(load_callback, name, config.for_callback(), self._clock.monotonic_ns)
        try:
            return (
                yield from run_on_thread(
                    self._loop, load, name="tidegate-callback", most_s=LOAD_S, on_late=GuardedCallback.close
                )
            )
        except TimeoutError as error:
            text = f"{CALLBACK_CLASS} is {name!r}: not loaded within {LOAD_S:.0f} s"
            raise ConfigError(text) from error


def _settings_of(config: ServerConfig) -> dict[str, str]:
    return {name: text for name, text in config.given.items() if name.startswith(CALLBACK_SETTINGS)}
