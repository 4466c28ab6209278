"""The quotas that the demo sets, and the two other plans that it replays: what they are and why."""

from collections.abc import Mapping
from pathlib import Path

__all__ = ["QUOTAS", "RATE_LIMITS", "write_plans"]

_MIB = 1024 * 1024

QUOTAS: Mapping[str, Mapping[str, float]] = {
    "loader": {"producer_byte_rate": 2.0 * _MIB},
    "analytics": {"consumer_byte_rate": 4.0 * _MIB},
}
"""Client id → quota key → value: what is set half-way."""

RATE_LIMITS: Mapping[str, float] = {client: next(iter(values.values())) for client, values in QUOTAS.items()}
"""Client id → bytes per second, of `QUOTAS`."""

_PLANS = {
    "generous": """\
# Ten times as much for the two big ones.
version: 1
quotas:
  - client-id: {name: loader}
    producer_byte_rate: 20MiB
    reason: the nightly load has to end before six
  - client-id: {name: analytics}
    consumer_byte_rate: 40MiB
    reason: reads what loader wrote, and twice as fast
""",
    "one-for-all": """\
# One small default for every client, and no exceptions. It looks fair; see whom it hits.
version: 1
quotas:
  - client-id: {default: true}
    producer_byte_rate: 64KiB
    consumer_byte_rate: 1MiB
    reason: everybody gets the same
""",
}


def write_plans(directory: Path) -> Mapping[str, Path]:
    """Write the other plans as quota files into `directory` and return name → path."""
    paths = {name: directory / f"{name}.yaml" for name in _PLANS}
    for name, path in paths.items():
        path.write_text(_PLANS[name], encoding="utf-8")
    return paths
