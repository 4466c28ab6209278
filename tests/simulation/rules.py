"""What settings mean, read here once more and without the node: who is observed, exempt or smooth, and the numbers.

>>> rules = Rules.of({"tidegate.quota.exempt": "user=bob%20b;client-id=<default>"})
>>> rules.selects(EXEMPT, "bob b", ""), rules.selects(EXEMPT, "alice", "c1"), rules.selects(EXEMPT, "alice", "")
(True, True, False)
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

__all__ = [
    "BURST_S",
    "CAP_MS",
    "DEBT_S",
    "DEFAULT_NAME",
    "EXEMPT",
    "INT_MAX",
    "OBSERVE",
    "SMOOTH",
    "Limits",
    "Names",
    "Rules",
    "static_quotas",
]

OBSERVE, EXEMPT, SMOOTH = (f"tidegate.quota.{name}" for name in ("observe", "exempt", "smooth"))
CAP_MS, BURST_S, DEBT_S = (
    f"tidegate.quota.{name}" for name in ("throttle.max.ms", "smooth.burst.seconds", "debt.max.seconds")
)
_OFF = {CAP_MS: 0, BURST_S: 1, DEBT_S: 0}
DEFAULT_NAME = "<default>"
INT_MAX = 2**31 - 1
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}

Names = tuple[str | None, str | None]
"""User and client id: a name, `DEFAULT_NAME`, or None where it is not used."""


@dataclass
class Rules:
    """What goes beyond Kafka."""

    entities: dict[str, set[Names]] = field(
        default_factory=lambda: {OBSERVE: set(), EXEMPT: set(), SMOOTH: set()}
    )
    numbers: dict[str, int] = field(default_factory=lambda: dict(_OFF))

    @classmethod
    def of(cls, texts: Mapping[str, str]) -> "Rules":
        """Return what settings say: nothing where Kafka is followed exactly."""
        rules = cls()
        if texts.get("tidegate.kafka.exact") == "true":
            return rules
        for key, names in rules.entities.items():
            names |= _entities(texts.get(key, "none"))
        for key in rules.numbers:
            rules.numbers[key] = int(texts.get(key, _OFF[key]))
        return rules

    def apply(self, key: str, names: Names, value: float | None) -> bool:
        """Take one record; False where it is none of these."""
        if key in self.numbers:
            self.numbers[key] = _OFF[key] if value is None else int(value)
        elif key in self.entities:
            (self.entities[key].discard if value is None else self.entities[key].add)(names)
        else:
            return False
        return True

    def selects(self, key: str, user: str, client_id: str) -> bool:
        """Return whether a list names a client, or the tags of a quota; an empty name is none."""
        return any(
            (one is None or (user and one in (user, DEFAULT_NAME)))
            and (other is None or (client_id and other in (client_id, DEFAULT_NAME)))
            for one, other in self.entities[key]
        )

    @property
    def beyond_exempt(self) -> bool:
        """Whether there is more than exempt clients."""
        return bool(self.entities[OBSERVE] or self.entities[SMOOTH] or self.numbers != _OFF)


def _entities(text: str) -> set[Names]:
    if text in ("", "none"):
        return set()
    found: set[Names] = set()
    for part in text.split(";"):
        pairs = dict(pair.split("=", 1) for pair in part.split(",")) if part != "all" else {}
        user, client_id = (
            pairs[kind] and unquote(pairs[kind]) if kind in pairs else None for kind in ("user", "client-id")
        )
        found.add((user, client_id))
    return found


@dataclass
class Limits:
    """Limits of connections. listeners: the most of each, and its rate."""

    most: int
    rate: int
    per_ip: int
    overrides: dict[str, int]
    listeners: dict[str, tuple[int, int]]

    @classmethod
    def of(cls, texts: Mapping[str, str], listeners: tuple[str, ...]) -> "Limits":
        """Return what settings say."""
        most = int(texts.get("max.connections", INT_MAX))
        rate = int(texts.get("max.connection.creation.rate", INT_MAX))
        pairs = filter(None, texts.get("max.connections.per.ip.overrides", "").split(","))
        own = {
            name: (
                int(texts.get(f"listener.name.{name.lower()}.max.connections", most)),
                int(texts.get(f"listener.name.{name.lower()}.max.connection.creation.rate", rate)),
            )
            for name in listeners
        }
        return cls(
            most=most,
            rate=rate,
            per_ip=int(texts.get("max.connections.per.ip", INT_MAX)),
            overrides={host: int(count) for host, count in (pair.split(":") for pair in pairs)},
            listeners=own,
        )


def static_quotas(texts: Mapping[str, str]) -> dict[tuple[Names, str], float]:
    """Return the quotas that settings give, by entity and key."""
    found: dict[tuple[Names, str], float] = {}
    if texts.get("tidegate.kafka.exact") == "true":
        return found
    for kind in ("producer", "consumer"):
        key = f"{kind}_byte_rate"
        if f"quota.{kind}.default" in texts:
            for name in (DEFAULT_NAME, ""):
                found[(None, name), key] = _bytes(texts[f"quota.{kind}.default"])
        for part in filter(None, texts.get(f"quota.{kind}.override", "").split(",")):
            name, _, rate = part.rpartition(":")
            found[(None, name), key] = _bytes(rate)
    return found


def _bytes(text: str) -> float:
    return float(int(text[:-1]) * _UNITS[text[-1]] if text[-1] in _UNITS else int(text))
