"""Connection quotas beyond the vectors: slots, protection, taking back, expiry and bounds."""

import time

import pytest
from tests.unit.in_slices import no_collection

from tidegate.quota.connections.connection_quotas import (
    IP_RATE_EXPIRY_MS,
    MAX_IP_RATE_BYTES,
    Admission,
    AdmissionOutcome,
    ConnectionCountError,
    ConnectionQuotas,
)
from tidegate.quota.connections.limits import UNLIMITED_CONNECTIONS, ConnectionLimits, ListenerLimits
from tidegate.quota.measure.sensor_table import SAMPLE_BYTES, SENSOR_BYTES

T0 = 1_700_000_000_000
IP = "192.0.2.7"


def _quotas(limits: ConnectionLimits | None = None, *listeners: str) -> ConnectionQuotas:
    quotas = ConnectionQuotas(
        limits or ConnectionLimits(), samples=2, window_ms=1000, inter_broker_listener="REPLICATION"
    )
    for name in listeners or ("EXTERNAL", "REPLICATION"):
        quotas.add_listener(name)
    return quotas


def _connect(
    quotas: ConnectionQuotas, listener: str = "EXTERNAL", ip: str = IP, now_ms: int = T0
) -> Admission:
    quotas.record_arrival(listener, now_ms=now_ms)
    return quotas.admit(listener, ip, now_ms=now_ms)


def _rates(quotas: ConnectionQuotas, now_ms: int) -> dict[str, float]:
    rates = [metric for metric in quotas.metrics(now_ms) if metric.bound is not None]
    return {next(iter(metric.tags.values()), "broker"): metric.value for metric in rates}


def test_broker_maximum_spares_the_protected_listener() -> None:
    """The inter-broker listener gets in over the maximum; then others have to go."""
    quotas = _quotas(ConnectionLimits(max_connections=1))
    quotas.add_listener("REPLICATION", ListenerLimits(max_connections=5))
    assert quotas.slot_available("EXTERNAL")
    _connect(quotas)
    assert not quotas.slot_available("EXTERNAL")
    assert quotas.excess() == 0
    assert quotas.slot_available("REPLICATION")
    _connect(quotas, "REPLICATION")
    assert quotas.excess() == 1
    assert (quotas.is_protected("EXTERNAL"), quotas.is_protected("REPLICATION")) == (False, True)
    quotas.release("EXTERNAL", IP)
    assert quotas.total == 1


def test_the_only_listener_is_not_protected() -> None:
    """Protection needs a second listener to protect from."""
    quotas = _quotas(ConnectionLimits(max_connections=1), "REPLICATION")
    _connect(quotas, "REPLICATION")
    assert not quotas.slot_available("REPLICATION")


def test_listener_maximum_holds_for_the_protected_one_too() -> None:
    """A slot needs room in the listener itself."""
    quotas = _quotas()
    quotas.add_listener("REPLICATION", ListenerLimits(max_connections=1))
    _connect(quotas, "REPLICATION")
    assert not quotas.slot_available("REPLICATION")
    assert quotas.slot_available("EXTERNAL")


def test_arrivals_over_the_rate_hold_the_acceptor_back() -> None:
    """The delay is the larger of broker's and listener's, at most one window."""
    quotas = _quotas(ConnectionLimits(max_connection_creation_rate=10))
    holds = [quotas.record_arrival("EXTERNAL", now_ms=T0) for _ in range(12)]
    assert holds == [0] * 10 + [100, 200]
    for _ in range(100):
        hold_ms = quotas.record_arrival("EXTERNAL", now_ms=T0)
    assert hold_ms == 1000


def test_protected_listener_does_not_use_up_the_brokers_rate() -> None:
    """Brokers among themselves are not clients."""
    quotas = _quotas(ConnectionLimits(max_connection_creation_rate=10))
    quotas.add_listener("REPLICATION", ListenerLimits(max_connection_creation_rate=1000))
    for _ in range(50):
        assert quotas.record_arrival("REPLICATION", now_ms=T0) == 0
    assert _rates(quotas, T0)["broker"] == 0.0


@pytest.mark.parametrize(("listener", "broker_rate"), [("EXTERNAL", 0.0), ("REPLICATION", 0.0)])
def test_throttled_address_leaves_no_trace_in_the_rates(listener: str, broker_rate: float) -> None:
    """What an address is refused for is taken back from broker and listener, and it is not counted."""
    quotas = _quotas()
    quotas.set_ip_rate(IP, 0)
    admission = _connect(quotas, listener)
    assert admission.outcome is AdmissionOutcome.THROTTLED
    assert (admission.throttle_ms, admission.end_ms) == (1000, T0 + 1000)
    assert admission.message == f"/{IP} throttled for 1000"
    assert _rates(quotas, T0) == {"broker": broker_rate, "EXTERNAL": 0.0, "REPLICATION": 0.0, IP: 0.0}
    assert (quotas._counts.get(IP, 0), quotas.total) == (0, 0)


def test_too_many_of_one_address_are_counted_until_released() -> None:
    """The refused connection has to be released like any other."""
    quotas = _quotas(ConnectionLimits(max_connections_per_ip=1, max_connections_per_ip_overrides={"::1": 0}))
    assert _connect(quotas).outcome is AdmissionOutcome.ACCEPTED
    refused = _connect(quotas)
    assert (refused.outcome, refused.maximum) == (AdmissionOutcome.TOO_MANY_CONNECTIONS, 1)
    assert refused.message == f"Too many connections from /{IP} (maximum = 1)"
    assert quotas._counts.get(IP, 0) == 2
    assert _connect(quotas, ip="0:0::1").message == "Too many connections from /0:0:0:0:0:0:0:1 (maximum = 0)"
    quotas.release("EXTERNAL", IP)
    quotas.release("EXTERNAL", IP)
    assert quotas._counts.get(IP, 0) == 0


def test_address_written_in_another_way_is_the_same_one() -> None:
    """A client behind a dual-stack socket has one quota."""
    quotas = _quotas()
    quotas.set_ip_rate("::ffff:192.0.2.7", 7)
    assert quotas.ip_limit(IP) == 7
    _connect(quotas, ip="::ffff:192.0.2.7")
    assert quotas._counts.get(IP, 0) == 1


def test_default_ip_rate_is_per_address_and_an_override_is_not_touched_by_it() -> None:
    """Each address without a rate of its own gets the default one, to itself."""
    quotas = _quotas()
    quotas.set_ip_rate(None, 1)
    quotas.set_ip_rate("192.0.2.8", 1000)
    assert [_connect(quotas, ip=ip).outcome.value for ip in (IP, IP, "192.0.2.9", "192.0.2.8")] == [
        "accepted",
        "throttled",
        "accepted",
        "accepted",
    ]
    quotas.set_ip_rate(None, None)
    assert quotas.ip_limit(IP) == UNLIMITED_CONNECTIONS
    assert quotas.ip_limit("192.0.2.8") == 1000
    quotas.set_ip_rate("192.0.2.8", None)
    assert quotas.ip_limit("192.0.2.8") == UNLIMITED_CONNECTIONS


def test_release_of_what_was_never_counted_is_an_error() -> None:
    """With Kafka's text; nothing changes."""
    quotas = _quotas()
    with pytest.raises(ConnectionCountError) as caught:
        quotas.release("EXTERNAL", IP)
    expected = f"Attempted to decrease connection count for address with no connections, address: /{IP}"
    assert (str(caught.value), caught.value.address, quotas.total) == (expected, IP, 0)


def test_quiet_addresses_are_forgotten_after_an_hour() -> None:
    """Strictly after; the others stay."""
    quotas = _quotas()
    quotas.set_ip_rate(None, 100)
    _connect(quotas, ip="192.0.2.1", now_ms=T0)
    _connect(quotas, ip="192.0.2.2", now_ms=T0 + 1)
    _connect(quotas, ip="192.0.2.1", now_ms=T0 + 2)
    assert [*quotas.expire_in_slices(T0 + 1 + IP_RATE_EXPIRY_MS)] == []
    assert "192.0.2.2" in _rates(quotas, T0)
    assert [*quotas.expire_in_slices(T0 + 2 + IP_RATE_EXPIRY_MS)] == []
    assert "192.0.2.1" in _rates(quotas, T0)
    assert "192.0.2.2" not in _rates(quotas, T0)


def test_number_of_addresses_is_bounded() -> None:
    """A flood of addresses forgets the one that was quiet longest."""
    quotas = ConnectionQuotas(ConnectionLimits(), samples=2, window_ms=1000, max_ip_rates=3)
    quotas.add_listener("EXTERNAL")
    quotas.set_ip_rate(None, 100)
    for number in (1, 2, 3, 1, 4, 5):
        _connect(quotas, ip=f"192.0.2.{number}")
    known = [tag for tag in _rates(quotas, T0) if tag.startswith("192")]
    assert known == ["192.0.2.1", "192.0.2.4", "192.0.2.5"]


def test_many_samples_leave_room_for_fewer_addresses() -> None:
    """The bound is one of memory: an hour of samples takes 300 KB an address."""
    quotas = ConnectionQuotas(ConnectionLimits(), samples=3600, window_ms=1000)
    quotas.add_listener("EXTERNAL")
    quotas.set_ip_rate(None, 100)
    for number in range(400):
        _connect(quotas, ip=f"192.0.2.{number % 256}" if number < 256 else f"192.0.3.{number % 256}")
    known = [tag for tag in _rates(quotas, T0) if tag.startswith("192")]
    assert len(known) == MAX_IP_RATE_BYTES // (SENSOR_BYTES + 3601 * SAMPLE_BYTES) == 331


@pytest.mark.alone
def test_a_limit_for_all_addresses_touches_none_of_them() -> None:
    """A thousand changes with 5,000 known addresses take milliseconds, and hold for each at its next connection."""
    quotas = _quotas()
    quotas.set_ip_rate(None, 100)
    for number in range(5_000):
        _connect(quotas, ip=f"10.0.{number // 256}.{number % 256}")
    with no_collection():
        begun_ns = time.thread_time_ns()
        for rate in range(1_000):
            quotas.set_ip_rate(None, 1 + rate)
        took_ns = time.thread_time_ns() - begun_ns
    assert took_ns < 50_000_000
    quotas.set_ip_rate(None, 0)
    assert _connect(quotas, ip="10.0.0.1").outcome.value == "throttled"


def test_an_override_can_come_later() -> None:
    """As for a host name that is looked up while connections come already."""
    quotas = _quotas(ConnectionLimits(max_connections_per_ip=5))
    quotas.set_ip_override("::ffff:192.0.2.7", 1)
    assert [_connect(quotas, ip=IP).outcome.value for _ in range(2)] == ["accepted", "too_many_connections"]


def test_reading_metrics_changes_no_decision() -> None:
    """Peeking between arrivals gives the same delays as not peeking."""
    plain, read = (_quotas(ConnectionLimits(max_connection_creation_rate=5)) for _ in range(2))
    times = [T0 + step * 130 for step in range(60)]
    expected = [plain.record_arrival("EXTERNAL", now_ms=now_ms) for now_ms in times]
    got = []
    for now_ms in times:
        assert len(list(read.metrics(now_ms + 700))) == 7
        got.append(read.record_arrival("EXTERNAL", now_ms=now_ms))
    assert got == expected
    assert any(expected)


def test_listener_takes_over_the_brokers_rate_once() -> None:
    """A later change of the broker's rate moves the broker's bound only."""
    quotas = _quotas(ConnectionLimits(max_connection_creation_rate=30))
    quotas.update_limits(ConnectionLimits(max_connection_creation_rate=7))
    bounds = {
        next(iter(one.tags.values()), "broker"): one.bound
        for one in quotas.metrics(T0)
        if one.bound is not None
    }
    assert bounds == {"broker": 7.0, "EXTERNAL": 30.0, "REPLICATION": 30.0}
