"""The manager of byte rates: what its vectors do not reach."""

import re
import sys
import time
import tracemalloc

import pytest
from tests.unit.in_slices import no_collection
from tests.vectors.players._sweeping import expire_manager

from tidegate.api_keys import CREATE_TOPICS
from tidegate.quota import (
    DEFAULT,
    UNLIMITED,
    ClientQuotaManager,
    Level,
    MutationQuotaManager,
    QuotaEntity,
    QuotaRecord,
    QuotaType,
    QuotaWindow,
)
from tidegate.quota.managers.callback import DefaultQuotaCallback
from tidegate.quota.managers.extensions import Extensions
from tidegate.quota.managers.lookups import MAX_CACHED_BYTES, MAX_CACHED_NAME
from tidegate.quota.managers.sensor_manager import OVERFLOW

NOW_MS = 1_700_000_000_000
ALICE = QuotaEntity(user="alice")


def _manager(**settings: object) -> ClientQuotaManager:
    manager = ClientQuotaManager(QuotaType.PRODUCE, **settings)
    manager.update_quota(ALICE, 100.0)
    return manager


def test_nothing_is_kept_while_no_quota_is_defined() -> None:
    """Record returns 0 and makes no sensor (B§3.3); without a quota the window holds any amount."""
    manager = ClientQuotaManager(QuotaType.PRODUCE)
    assert manager.record("alice", "c1", 1e12, NOW_MS) == 0
    assert (len(manager.sensors), manager.enabled) == (0, False)
    assert manager.max_value_in_window("alice", "c1", lambda: NOW_MS) == sys.float_info.max


def test_clients_of_a_user_share_its_quota() -> None:
    """The example of the vectors: 600 at 0, then 2000 at 250 ms, taken back."""
    manager = _manager()
    assert manager.record("alice", "c1", 600.0, NOW_MS) == 0
    assert manager.record("alice", "c2", 2000.0, NOW_MS + 250) == 15750
    manager.unrecord("alice", "c2", 2000.0, NOW_MS + 250)
    assert manager.peek("alice", "c3", NOW_MS + 250) == 58.53658536585366


def test_unchecked_records_bite_on_the_next_decision() -> None:
    """They return nothing, and count."""
    manager = _manager()
    manager.record_unchecked("alice", "c1", 1500.0, NOW_MS)
    assert manager.record("alice", "c1", 0.0, NOW_MS) == 5000


def test_a_changed_quota_holds_for_clients_already_looked_up() -> None:
    """A remembered lookup does not outlive a change, in value, level or removal."""
    manager = _manager()
    assert manager.record("alice", "c1", 2000.0, NOW_MS) == 10_000
    manager.update_quota(ALICE, 1000.0)
    assert manager.record("alice", "c1", 0.0, NOW_MS) == 0
    manager.update_quota(QuotaEntity(user="alice", client_id="c1"), 1.0)
    assert manager.record("alice", "c1", 5.0, NOW_MS) == 0  # other tags, a fresh sensor
    assert manager.record("alice", "c2", 30_000.0, NOW_MS) == 22_000
    manager.update_quota(ALICE, None)
    manager.update_quota(QuotaEntity(user="alice", client_id="c1"), None)
    assert manager.record("alice", "c1", 1e9, NOW_MS) == 0


def test_the_size_cap_follows_changes() -> None:
    """Q * (n - 1) * w, remembered by client until a quota changes (B§3.7)."""
    manager = _manager(window=QuotaWindow(samples=3, window_ms=2000))
    for _ in range(2):
        assert manager.max_value_in_window("alice", "c1", lambda: NOW_MS) == 400.0
    assert manager.max_value_in_window("bob", "c1", lambda: NOW_MS) == sys.float_info.max
    manager.update_quota(ALICE, 7.0)
    assert manager.max_value_in_window("alice", "c1", lambda: NOW_MS) == 28.0
    assert len(manager.sensors) == 0


def test_a_scrape_changes_no_decision() -> None:
    """Snapshots and peeks at any time leave throttle times as they are."""
    scraped, alone = _manager(), _manager()
    for at_ms in range(0, 60_000, 700):
        assert len(list(scraped.metrics(NOW_MS + at_ms + 699))) == (2 if at_ms else 0)
        scraped.peek("alice", "c1", NOW_MS + at_ms + 400)
        expected = alone.record("alice", "c1", 90.0, NOW_MS + at_ms)
        assert scraped.record("alice", "c1", 90.0, NOW_MS + at_ms) == expected


def test_a_snapshot_has_rate_bound_and_throttle_time() -> None:
    """One metric per sensor, with the tags of Kafka."""
    manager = _manager()
    manager.record("alice", "c1", 2000.0, NOW_MS)
    manager.note_throttle("alice", "c1", 10_000, NOW_MS)
    manager.note_throttle("alice", "c1", 0, NOW_MS)
    tags = {"user": "alice", "client-id": ""}
    rows = [(m.group, m.name, m.tags, m.value, m.bound) for m in manager.metrics(NOW_MS)]
    assert rows == [
        ("Produce", "byte-rate", tags, 200.0, 100.0),
        ("Produce", "throttle-time", tags, 10_000.0, None),
    ]


def test_expired_sensors_are_made_anew() -> None:
    """After an hour a client's usage is forgotten, and the next request finds a new sensor."""
    manager = _manager()
    manager.record("alice", "c1", 5.0, NOW_MS)
    names = expire_manager(manager, NOW_MS + 3600 * 1000 + 1)
    assert names == ["Produce-alice:", "ProduceThrottleTime-alice:"]
    assert manager.record("alice", "c1", 1.0, NOW_MS + 3600 * 1000 + 2) == 0
    assert len(manager.sensors) == 1


def test_a_flood_of_client_ids_is_bounded_and_changes_no_verdict_of_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Past the bound sensors go, which is said as often as they double; a steady client keeps its throttle times."""
    manager = _manager(max_sensor_bytes=300_000)  # some hundred
    manager.update_quota(QuotaEntity(client_id=DEFAULT), 50.0)
    alone = _manager()
    for number in range(3_000):
        now_ms = NOW_MS + number * 10
        manager.record("flood", f"client-{number}", 10.0, now_ms)
        assert manager.record("alice", "c1", 2.0, now_ms) == alone.record("alice", "c1", 2.0, now_ms)
    assert manager.sensors.held_bytes <= 300_000
    assert len(manager.sensors) <= 110
    assert manager.sensors.dropped > 2_800
    lines = [record.message for record in caplog.records if "its table is full" in record.message]
    counts = [int(re.findall(r"[0-9]+", line)[0]) for line in lines]
    assert [count.bit_length() for count in counts] == list(range(counts[0].bit_length(), 13))


@pytest.mark.parametrize("flood_value", [10.0, 5_000.0, 200_000.0])
def test_a_flood_of_client_ids_shortens_no_throttle(
    flood_value: float, caplog: pytest.LogCaptureFixture
) -> None:
    """Who is over its bound stays so whatever names come by; those of a flood that is over share what is left.

    What these have used together may ask for more than 24 days; Kafka would make no throttle of that (B§2.1).
    """
    managers = [ClientQuotaManager(QuotaType.PRODUCE, max_sensor_bytes=size) for size in (300_000, 1 << 30)]
    for manager in managers:
        manager.update_quota(QuotaEntity(client_id=DEFAULT), 50.0)
        manager.update_quota(QuotaEntity(client_id="own"), 70.0)
        assert manager.record("u", "greedy", 10_000.0, NOW_MS) > 0
    for number in range(1, 3_001):
        throttles_ms = [
            manager.record("u", f"client-{number}", flood_value, NOW_MS + number) for manager in managers
        ]
        assert throttles_ms[0] >= throttles_ms[1]
    bounded, unbounded = managers
    now_ms = NOW_MS + 3_001
    for client_id, value in (("greedy", 1.0), ("client-1", flood_value), ("own", 10_000.0)):
        assert bounded.record("u", client_id, value, now_ms) == unbounded.record(
            "u", client_id, value, now_ms
        )
    assert bounded.sensors.held_bytes <= 310_000
    assert (bounded.folded > 0) == (flood_value > 500.0)
    lines = [record.message for record in caplog.records if "share one sensor" in record.message]
    assert len(lines) == bounded.folded.bit_length(), "one at each doubling"


@pytest.mark.parametrize("is_smooth", [False, True])
def test_a_flood_that_asks_a_callback_how_much_it_may_fetch_shortens_no_throttle(is_smooth: bool) -> None:
    """That makes each client's sensor, and room for it: at the time at which it asks."""
    extensions = Extensions()
    if is_smooth:
        extensions.apply(QuotaRecord(entity=(), key="tidegate.quota.smooth", value=1.0))
    manager = ClientQuotaManager(
        QuotaType.FETCH, callback=DefaultQuotaCallback(), max_sensor_bytes=300_000, extensions=extensions
    )
    manager.update_quota(QuotaEntity(client_id=DEFAULT), 50.0)
    manager.record("u", "greedy", 100_000.0, NOW_MS)
    for number in range(1_000):
        manager.max_value_in_window("u", f"client-{number}", lambda: NOW_MS + 1)
        manager.record("u", f"client-{number}", 1.0, NOW_MS + 1)
    assert manager.record("u", "greedy", 1.0, NOW_MS + 2) > 100_000
    assert manager.sensors.held_bytes <= 300_000
    assert manager.folded == 0


def test_a_flood_of_one_user_throttles_no_client_of_another() -> None:
    """A user that holds most of a full table makes room for others, however far over their bounds its clients are."""
    manager = ClientQuotaManager(QuotaType.PRODUCE, max_sensor_bytes=300_000)
    manager.update_quota(QuotaEntity(client_id=DEFAULT), 50.0)
    manager.update_quota(QuotaEntity(client_id="own"), 70.0)
    assert manager.record("mallory", "own", 10_000.0, NOW_MS) > 0
    for number in range(2_000):
        now_ms = NOW_MS + number
        manager.record("mallory", f"flood-{number}", 5_000.0, now_ms)
        for at in range(3):
            assert manager.record("alice", f"app-{at}-{number // 100}", 1.0, now_ms) == 0
    assert manager.folded > 1_000
    assert manager.sensors.get("Produce-:app-2-19") is not None
    assert manager.record("alice", "app-2-19", 5_000.0, NOW_MS + 2_000) > 0
    for number in range(2_000, 3_000):
        manager.record("mallory", f"flood-{number}", 5_000.0, NOW_MS + number)
    assert manager.record("alice", "app-2-19", 1.0, NOW_MS + 3_000) > 0
    assert manager.record("mallory", "own", 1.0, NOW_MS + 3_000) > 0
    assert manager.sensors.held_bytes <= 310_000


def test_what_a_user_owes_is_not_forgotten_for_other_users() -> None:
    """Only what another client id would not owe either: quotas of users, and of named client ids, stay."""
    manager = ClientQuotaManager(QuotaType.PRODUCE, max_sensor_bytes=300_000)
    manager.update_quota(QuotaEntity(user=DEFAULT), 50.0)
    manager.update_quota(QuotaEntity(user="flood", client_id=DEFAULT), 50.0)
    manager.update_quota(QuotaEntity(user=DEFAULT, client_id="app"), 50.0)
    owing = [("mallory" * 20, "any"), ("mallory" * 20, "app")]
    for user, client_id in owing:
        assert manager.record(user, client_id, 100_000.0, NOW_MS) > 0
    for number in range(300):
        manager.record("flood", f"client-{number}", 100_000.0, NOW_MS + 1)
    for number in range(300):
        manager.record(f"user-{number}", "any", 100_000.0, NOW_MS + 2)
    for user, client_id in owing:
        assert manager.record(user, client_id, 1.0, NOW_MS + 3) > 1_000_000


def test_clients_that_are_counted_together_have_their_own_sensors_again() -> None:
    """When those that were over their bounds are not any more, there is room."""
    manager = ClientQuotaManager(QuotaType.PRODUCE, max_sensor_bytes=300_000)
    manager.update_quota(QuotaEntity(client_id=DEFAULT), 50.0)
    for number in range(200):
        manager.record("u", f"client-{number}", 5_000.0, NOW_MS)
    assert manager.sensors.get(f"Produce-:{OVERFLOW}") is not None
    assert manager.sensors.get("Produce-:client-199") is None
    manager.record("u", "new", 1.0, NOW_MS + 60_000)
    assert manager.record("u", "client-199", 1.0, NOW_MS + 60_000) == 0
    assert manager.sensors.get("Produce-:client-199") is not None


def test_long_names_are_looked_up_each_time() -> None:
    """They are not remembered, and are decided alike."""
    manager = ClientQuotaManager(QuotaType.PRODUCE)
    manager.update_quota(QuotaEntity(client_id=DEFAULT), 100.0)
    name = "x" * (MAX_CACHED_NAME + 1)
    assert [manager.record("u", name, 600.0, NOW_MS) for _ in range(3)] == [0, 2000, 8000]
    assert manager.max_value_in_window("u", name, lambda: NOW_MS) == 1000.0


@pytest.mark.parametrize(
    ("quotas", "client", "sentence"),
    [
        (
            [],
            ("alice", "c1"),
            "Produce quota of user 'alice', client id 'c1': unlimited, no quota of this type is defined",
        ),
        (
            [(QuotaEntity(user=DEFAULT), 5.0)],
            ("alice", "c1"),
            "Produce quota of user 'alice', client id 'c1': 5.0 of (user=<default>), no quota for (user='alice'); "
            "shared by all clients with user='alice'",
        ),
        (
            [(QuotaEntity(user="bob"), 5.0)],
            ("alice", "c1"),
            "Produce quota of user 'alice', client id 'c1': unlimited, no quota for (user='alice'), (user=<default>); "
            "shared by all clients with user='alice'",
        ),
        (
            [(QuotaEntity(client_id=DEFAULT), 5.0)],
            ("alice", ""),
            "Produce quota of user 'alice', client id '': unlimited, no quota for an empty client id; "
            "shared by all clients with no tags",
        ),
    ],
)
def test_explaining_says_which_quota_holds_and_why(
    quotas: list, client: tuple[str, str], sentence: str
) -> None:
    """The levels looked at before, and who shares it; no sensor is made."""
    manager = ClientQuotaManager(QuotaType.PRODUCE)
    for entity, bound in quotas:
        manager.update_quota(entity, bound)
    assert str(manager.explain(*client)) == sentence
    assert len(manager.sensors) == 0


def test_bound_and_levels_are_told() -> None:
    """`UNLIMITED` is the double nearest to the largest long (B§3.4)."""
    manager = _manager()
    assert (manager.bound("alice", "x"), manager.bound("bob", "x"), manager.levels) == (
        100.0,
        UNLIMITED,
        Level.USER,
    )


def _with_sensors(count: int) -> ClientQuotaManager:
    manager = ClientQuotaManager(QuotaType.PRODUCE)
    manager.update_quota(QuotaEntity(client_id=DEFAULT), 1e6)
    manager.update_quota(QuotaEntity(user="other", client_id=DEFAULT), 1e6)
    for number in range(count):
        manager.record("alice", f"client-{number}", 1.0, NOW_MS)
    return manager


@pytest.mark.alone
@pytest.mark.parametrize("entity", [QuotaEntity(client_id=DEFAULT), QuotaEntity(user="u", client_id="c")])
def test_changing_a_quota_costs_the_same_however_many_sensors_there_are(entity: QuotaEntity) -> None:
    """A thousand changes over 5,000 sensors take as long as over 10; refreshing each sensor took seconds."""
    took_ns = {}
    for count in (10, 5_000):
        manager = _with_sensors(count)
        manager.update_quota(entity, 0.5)
        with no_collection():
            begun_ns = time.thread_time_ns()
            for number in range(1_000):
                manager.update_quota(entity, 1.0 + number)
            took_ns[count] = time.thread_time_ns() - begun_ns
    assert took_ns[5_000] < 3 * took_ns[10] + 20_000_000


def test_a_changed_quota_holds_for_every_sensor_at_its_next_use() -> None:
    """Decisions, scrapes and explanations see the new bound, whatever was kept before."""
    manager = _with_sensors(3)
    manager.update_quota(QuotaEntity(client_id=DEFAULT), 10.0)
    assert {metric.bound for metric in manager.metrics(NOW_MS) if metric.name == "byte-rate"} == {10.0}
    manager.update_quota(QuotaEntity(client_id=DEFAULT), 100.0)
    manager.record_unchecked("alice", "client-0", 1999.0, NOW_MS)
    assert manager.record("alice", "client-0", 0.0, NOW_MS) == 10_000
    assert manager.explain("alice", "client-1").bound == manager.bound("alice", "client-1") == 100.0


def test_permits_are_asked_of_the_quota_that_holds_when_they_are_asked_for() -> None:
    """A quota that changes while a request goes on holds for the rest of it: its sensor was looked up before."""
    manager = MutationQuotaManager(QuotaWindow(samples=10, window_ms=1000))
    manager.update_quota(QuotaEntity(user=DEFAULT), 10.0)
    quota = manager.new_quota("alice", "c1", CREATE_TOPICS, 6, NOW_MS)
    assert quota.record(100.0, NOW_MS)
    manager.update_quota(QuotaEntity(user=DEFAULT), 1.0)
    assert manager.peek("alice", "c1", NOW_MS) == 0.0
    assert quota.record(10.0, NOW_MS)
    assert not quota.record(1.0, NOW_MS)
    assert quota.throttle_time_ms(NOW_MS) == 10_000


def test_what_is_remembered_of_clients_is_bounded_in_bytes() -> None:
    """A user who makes up client ids shares one sensor among them, and each lookup is remembered for a while."""
    manager = ClientQuotaManager(QuotaType.FETCH)
    manager.update_quota(ALICE, 1e9)
    names = [(f"{number:06}" + "\U0001f600" * 250).encode() for number in range(30_000)]
    tracemalloc.start()
    for name in names:  # each time another text, as it is read from a request
        manager.record("alice", name.decode(), 1.0, NOW_MS)
        manager.max_value_in_window("alice", name.decode(), lambda: NOW_MS)
    held_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held_bytes < 1.2 * MAX_CACHED_BYTES


def test_a_sweep_is_over_for_everybody_when_it_has_begun() -> None:
    """In slices it decides as at once: who was idle begins anew although the sweep has not come to it yet."""
    at_once, in_slices = _with_sensors(2_000), _with_sensors(2_000)
    swept_ms = NOW_MS + 3600 * 1000 + 1
    for manager in (at_once, in_slices):
        manager.record("alice", "client-1999", 5e6, NOW_MS + 10)
        manager.record("alice", "client-1998", 5e6, swept_ms - 10)
    expire_manager(at_once, swept_ms)
    sweep = in_slices.expire_in_slices(swept_ms)
    next(sweep)
    later_ms = swept_ms + 1
    answers = [
        [manager.record("alice", f"client-{number}", 11e6, later_ms) for number in (1997, 1998, 1999)]
        for manager in (at_once, in_slices)
    ]
    assert answers[0] == answers[1]
    assert answers[0][0] != answers[0][1]
    assert len(list(sweep)) > 2
    assert [s.name for s in at_once.sensors] == [s.name for s in in_slices.sensors]
