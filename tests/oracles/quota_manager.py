"""A straightforward port of Kafka's `ClientQuotaManager`: resolves every request anew, by the rules as written.

Written from B§3.3–3.9; levels and limits are looked up by going through a list, nothing is remembered.
"""

from tests.oracles.sampled_rate import PortedRate

from tidegate.quota import DEFAULT, UNLIMITED, QuotaEntity, sanitize

__all__ = ["PortedManager", "ported_bits", "ported_limit", "ported_tags"]

Quotas = dict[tuple[object, object], float]
"""(user, client id) → bound; a part is a name, `DEFAULT` or None."""


def ported_bits(quotas: Quotas) -> int:
    """Return Kafka's `quotaTypesEnabled` for these quotas."""
    bits = 0
    for user, client_id in quotas:
        bits |= 4 if user is not None and client_id is not None else 2 if user is not None else 1
    return bits


def ported_tags(quotas: Quotas, bits: int, user: str, client_id: str) -> tuple[str, str]:
    """Return the tags of a client, `user` sanitised; `bits` are the `ported_bits` of `quotas`."""
    if bits in (0, 1):
        return "", client_id
    if bits == 2:
        return user, ""
    if bits == 4:
        return user, client_id
    for level, tags in (
        ((user, client_id), (user, client_id)),
        ((user, DEFAULT), (user, client_id)),
        ((user, None), (user, "")),
        ((DEFAULT, client_id), (user, client_id)),
        ((DEFAULT, DEFAULT), (user, client_id)),
        ((DEFAULT, None), (user, "")),
    ):
        if level in quotas:
            return tags
    return "", client_id


def ported_limit(quotas: Quotas, tags: tuple[str, str]) -> float | None:
    """Return the bound for tags, None: unlimited."""
    user, client_id = tags
    levels: list[tuple[object, object]] = []
    if user and client_id:
        levels = [(user, client_id), (user, DEFAULT), (DEFAULT, client_id), (DEFAULT, DEFAULT)]
    elif user:
        levels = [(user, None), (DEFAULT, None)]
    elif client_id:
        levels = [(None, client_id), (None, DEFAULT)]
    return next((quotas[level] for level in levels if level in quotas), None)


class PortedManager:
    """What `tidegate.quota.ClientQuotaManager` must equal."""

    def __init__(self, *, samples: int, window_ms: int, cap_ms: int | None = None) -> None:
        self._windows = {"samples": samples, "window_ms": window_ms, "cap_ms": cap_ms}
        self.quotas: Quotas = {}
        self._bits = 0
        self.rates: dict[tuple[str, str], PortedRate] = {}

    def update_quota(self, entity: QuotaEntity, bound: float | None) -> None:
        """Set or remove a quota, and refresh the bounds that Kafka refreshes."""
        user = sanitize(entity.user) if isinstance(entity.user, str) else entity.user
        key = (user, entity.client_id)
        if bound is None:
            self.quotas.pop(key, None)
        else:
            self.quotas[key] = bound
        self._bits = ported_bits(self.quotas)
        if self._bits in (0, 1, 2, 4) and DEFAULT not in key:
            self._refresh([(user or "", entity.client_id or "")])
        else:
            self._refresh(list(self.rates))

    def record(self, user: str, client_id: str, value: float, now_ms: int) -> int:
        """Charge and return the throttle time; nothing while no quota is defined."""
        if not self.quotas:
            return 0
        return self._rate(user, client_id).decide(value, now_ms)

    def record_unchecked(self, user: str, client_id: str, value: float, now_ms: int) -> None:
        """Charge without asking."""
        self._rate(user, client_id).record(value, now_ms)

    def _rate(self, user: str, client_id: str) -> PortedRate:
        tags = ported_tags(self.quotas, self._bits, sanitize(user), client_id)
        if tags not in self.rates:
            limit = ported_limit(self.quotas, tags)
            self.rates[tags] = PortedRate(bound=UNLIMITED if limit is None else limit, **self._windows)
        return self.rates[tags]

    def _refresh(self, all_tags: list[tuple[str, str]]) -> None:
        for tags in all_tags:
            if tags in self.rates:
                limit = ported_limit(self.quotas, tags)
                self.rates[tags].bound = UNLIMITED if limit is None else limit
