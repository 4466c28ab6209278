"""A million client ids at one manager with its real bound, 100,000 a test: nobody's throttle is shortened (row E1)."""

from itertools import count

import pytest

from tidegate.quota import DEFAULT, ClientQuotaManager, QuotaEntity, QuotaType, QuotaWindow
from tidegate.quota.measure.sensor_table import MAX_SENSOR_BYTES

PARTS = 10
IDS = 100_000
KNOWN = ("greedy", *(f"own-{number}" for number in range(100)))
NOW_MS = 1_700_000_000_000
IDS_PER_MS = 20
WINDOW = QuotaWindow(samples=11, window_ms=60_000)  # longer than the flood: everybody is in use all the time
BOUND, OWN_BOUND = 1_000.0, 2_000.0
BURST = 10_000_000.0


def manager() -> ClientQuotaManager:
    """Return a manager with a default quota and a hundred of clients' own."""
    made = ClientQuotaManager(QuotaType.PRODUCE, WINDOW)
    made.update_quota(QuotaEntity(client_id=DEFAULT), BOUND)
    for client_id in KNOWN[1:]:
        made.update_quota(QuotaEntity(client_id=client_id), OWN_BOUND)
    return made


class Flooded:
    """A manager that a flood goes through, and one that only those know who were there before."""

    def __init__(self, value: float) -> None:
        self.value = value
        self.manager, self.alone = manager(), manager()
        self.numbers = count()
        self.now_ms = NOW_MS
        for client_id in KNOWN:
            assert self.throttle_ms(client_id, BURST) > 0
        self.least_ms = manager().record("u", "client", value, NOW_MS)

    def throttle_ms(self, client_id: str, value: float) -> int:
        """Return what one who was there before has to wait, with the flood as without."""
        throttle_ms = self.manager.record("u", client_id, value, self.now_ms)
        assert throttle_ms == self.alone.record("u", client_id, value, self.now_ms)
        return throttle_ms

    def flood(self) -> None:
        """Have 100,000 others come, none of whom waits less than it would by itself."""
        first_ms = self.now_ms
        throttles_ms = set()
        for number in range(IDS):
            self.now_ms = first_ms + number // IDS_PER_MS
            client_id = f"client-{next(self.numbers)}"
            throttles_ms.add(self.manager.record("u", client_id, self.value, self.now_ms))
        assert min(throttles_ms) >= self.least_ms


@pytest.fixture(scope="module", params=[100.0, BURST], ids=["within", "over"])
def flooded(request: pytest.FixtureRequest) -> Flooded:
    """What clients of the flood use: little, or more than their quota."""
    return Flooded(request.param)


@pytest.mark.parametrize("part", range(PARTS))
def test_a_flood_shortens_no_throttle(flooded: Flooded, part: int) -> None:
    """Who was over its quota, or has one of its own, waits as long as without the flood; memory stays."""
    flooded.flood()
    for client_id in KNOWN:
        assert flooded.throttle_ms(client_id, 1.0) > 0
    sensors = flooded.manager.sensors
    assert sensors.held_bytes <= MAX_SENSOR_BYTES * 1.01
    assert flooded.manager.folded + sensors.dropped + len(sensors) >= next(flooded.numbers)
