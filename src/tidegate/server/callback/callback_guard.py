"""A guard that keeps a custom quota callback (KIP-257) from failing requests: it logs errors, and uses earlier answers.

A callback is third-party code that is called for every request. If it raises, or its answer is invalid (no tags, a
limit that is NaN or negative, a wrong type), the guard uses the last valid answer to the same question. Without
one, the client's usage is counted under `NO_TAGS`, and not limited. Failures are counted, and so are calls that take
longer than `SLOW_MS`, because they delay all requests; each kind is logged once a minute
(`tidegate.server.repeated_lines`).

Follows: KIP-257. Differs: in Kafka an exception of a callback fails the request.
"""

import importlib
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

from tidegate.errors import ConfigError
from tidegate.quota import ClientQuotaCallback, ClusterMetadata, QuotaEntity, QuotaType

__all__ = ["MAX_REMEMBERED", "NO_TAGS", "SLOW_MS", "GuardedCallback", "load_callback"]

_log = logging.getLogger("tidegate.server")

SLOW_MS: Final = 5
"""Duration in ms; a longer call is counted and logged as slow, because no other request is served during it."""
MAX_REMEMBERED: Final = 10_000
"""Most stored answers of each kind. When there are more, the oldest is removed."""
NO_TAGS: Final[Mapping[str, str]] = {"callback": "(failed)"}
"""Tags for clients that the callback has never given tags."""
_MAX_REMEMBERED_CHARS = 512  # of the names in one question; answers to longer questions are not stored
_METHODS = (
    "configure",
    "quota_limit",
    "quota_metric_tags",
    "quota_reset_required",
    "remove_quota",
    "update_cluster_metadata",
    "update_quota",
)
_FAILED: Final = object()

A = TypeVar("A")


class _LastGood(Generic[A]):
    """The last good answers by question."""

    def __init__(self) -> None:
        self._answers: dict[tuple[QuotaType, tuple[str, ...]], A] = {}

    def get(self, quota_type: QuotaType, names: tuple[str, ...], otherwise: A) -> A:
        return self._answers.get((quota_type, names), otherwise)

    def store_answer(self, quota_type: QuotaType, names: tuple[str, ...], answer: A) -> None:
        key = quota_type, names
        if self._answers.get(key, _FAILED) == answer or sum(map(len, names)) > _MAX_REMEMBERED_CHARS:
            return
        if len(self._answers) >= MAX_REMEMBERED:
            del self._answers[next(iter(self._answers))]
        self._answers[key] = answer


class GuardedCallback:
    """A `ClientQuotaCallback` that never fails. callback: the configured one that is asked; name: its class.

    failures: calls that raised or answered nonsense; slow: calls that took longer than `SLOW_MS`.
    """

    def __init__(self, callback: ClientQuotaCallback, name: str, monotonic_ns: Callable[[], int]) -> None:
        self.name = name
        self.failures = 0
        self.slow = 0
        self._callback = callback
        self._monotonic_ns = monotonic_ns
        self._tags: _LastGood[Mapping[str, str]] = _LastGood()
        self._limits: _LastGood[float | None] = _LastGood()

    def configure(self, config: Mapping[str, Any]) -> None:
        """Ignore `config`: `load_callback` has configured the callback."""

    def quota_metric_tags(self, quota_type: QuotaType, user: str, client_id: str) -> Mapping[str, str]:
        """Return the callback's tags, those it gave this client last, or `NO_TAGS`."""
        tags = self._ask(self._callback.quota_metric_tags, quota_type, user, client_id)
        if tags is not _FAILED:
            if _is_tags(tags):
                tags = dict(tags)
                self._tags.store_answer(quota_type, (user, client_id), tags)
                return tags
            self._nonsense("quota_metric_tags", tags, "a map of strings")
        return self._tags.get(quota_type, (user, client_id), NO_TAGS)

    def quota_limit(self, quota_type: QuotaType, tags: Mapping[str, str]) -> float | None:
        """Return the callback's limit, the last good one for the same tags, or None: unlimited."""
        if tags is NO_TAGS:
            return None
        names = (*tags, *tags.values())
        answer = self._ask(self._callback.quota_limit, quota_type, dict(tags))
        if answer is not _FAILED:
            if _is_limit(answer):
                limit = None if answer is None or answer == math.inf else float(answer)
                self._limits.store_answer(quota_type, names, limit)
                return limit
            self._nonsense("quota_limit", answer, "None or a number, at least 0")
        return self._limits.get(quota_type, names, None)

    def update_quota(self, quota_type: QuotaType, entity: QuotaEntity, value: float) -> None:
        """Pass a stored quota to the callback."""
        self._ask(self._callback.update_quota, quota_type, entity, value)

    def remove_quota(self, quota_type: QuotaType, entity: QuotaEntity) -> None:
        """Pass the removal of a stored quota to the callback."""
        self._ask(self._callback.remove_quota, quota_type, entity)

    def quota_reset_required(self, quota_type: QuotaType) -> bool:
        """Return the callback's answer; False if it fails."""
        return self._ask_whether("quota_reset_required", self._callback.quota_reset_required, quota_type)

    def update_cluster_metadata(self, cluster: ClusterMetadata) -> bool:
        """Pass cluster metadata to the callback, and return whether limits have changed; False if it fails."""
        return self._ask_whether("update_cluster_metadata", self._callback.update_cluster_metadata, cluster)

    def close(self) -> None:
        """Call the callback's `close`, if it has one. It is not called again."""
        close = getattr(self._callback, "close", None)
        if callable(close):
            self._ask(close)

    def _ask(self, method: Callable[..., Any], *args: Any) -> Any:
        """Return the callback's answer, or `_FAILED` if it raises."""
        began_ns = self._monotonic_ns()
        try:
            answer = method(*args)
        except Exception as error:
            self.failures += 1
            name = _name(method)
            _log.error(
                "quota callback %s: %s failed; the last valid results stay in force", self.name, name, exc_info=error,
                extra={"repeats": f"callback failed {name}"},
            )  # fmt: skip
            answer = _FAILED
        took_ns = self._monotonic_ns() - began_ns
        if took_ns > SLOW_MS * 1_000_000:
            self.slow += 1
            name = _name(method)
            _log.warning(
                "quota callback %s: %s took %.1f ms, expected at most %d", self.name, name, took_ns / 1e6, SLOW_MS,
                extra={"repeats": f"callback slow {name}"},
            )  # fmt: skip
        return answer

    def _ask_whether(self, name: str, method: Callable[[Any], Any], about: Any) -> bool:
        answer = self._ask(method, about)
        if answer is True or answer is False:
            return answer
        if answer is not _FAILED:
            self._nonsense(name, answer, "True or False")
        return False

    def _nonsense(self, name: str, answer: object, expected: str) -> None:
        self.failures += 1
        _log.error(
            "quota callback %s: %s returned %.100r, expected %s; the last valid results stay in force",
            self.name, name, answer, expected,
            extra={"repeats": f"callback nonsense {name}"},
        )  # fmt: skip


def load_callback(name: str, settings: Mapping[str, Any], monotonic_ns: Callable[[], int]) -> GuardedCallback:
    """Return an instance of the class `package.module:Class`, configured with the node's settings.

    Raises `ConfigError` if the class does not exist, is not a callback, or refuses the settings.
    """
    module_name, colon, class_name = name.partition(":")
    if not (colon and module_name and class_name.isidentifier()):
        raise ConfigError(f"client.quota.callback.class is {name!r}, expected package.module:Class")
    try:
        found = getattr(importlib.import_module(module_name), class_name, None)
        if not isinstance(found, type):
            raise ConfigError(
                f"client.quota.callback.class is {name!r}: its module has no class {class_name!r}"
            )
        missing = [method for method in _METHODS if not callable(getattr(found, method, None))]
        if missing:
            raise ConfigError(
                f"client.quota.callback.class is {name!r}: the class lacks {', '.join(missing)}"
            )
        callback: ClientQuotaCallback = found()
        callback.configure(settings)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"client.quota.callback.class is {name!r}: {type(error).__name__}: {error}",
            hint="install the module, or add its directory to PYTHONPATH",
        ) from error
    return GuardedCallback(callback, name, monotonic_ns)


def _is_tags(tags: object) -> bool:
    return isinstance(tags, Mapping) and all(
        isinstance(name, str) and isinstance(value, str) for name, value in tags.items()
    )


def _is_limit(limit: object) -> bool:
    if limit is None:
        return True
    return (
        isinstance(limit, int | float)
        and not isinstance(limit, bool)
        and (limit == math.inf or 0 <= limit < 2**1000)
    )


def _name(method: Callable[..., Any]) -> str:
    return getattr(method, "__name__", "a call")
