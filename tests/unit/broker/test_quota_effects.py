"""Warnings of new quotas that are too low for the consumers of groups, on a node whose clock stands still."""

import logging
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.node import Node
from tests.unit.in_slices import MOST_STEP_MS, longest_step_ms
from tests.unit.storage.logs import append, batch

from tidegate.broker import quota_effects
from tidegate.broker.node_groups import NodeGroups
from tidegate.broker.quota_effects import MEASURED_MS, QuotaEffects
from tidegate.groups.stored import StoredGroup, StoredMember
from tidegate.groups.subscription import assigned_partitions_in_slices
from tidegate.in_slices import run_at_once
from tidegate.quota import QuotaRecord
from tidegate.quota.managers.callback import DefaultQuotaCallback
from tidegate.quota.managers.quota_managers import QuotaManagers
from tidegate.server.audit import AUDIT_LOGGER
from tidegate.storage.groups.committed_offsets import pack_position, times

READER = (("client-id", "reader"),)
LARGE = b"x" * 5000


def assignment(*partitions: int, topic: str = "orders") -> bytes:
    """Return an assignment as clients encode it."""
    name = topic.encode()
    head = struct.pack(">hih", 0, 1, len(name)) + name
    return head + struct.pack(f">i{len(partitions)}ii", len(partitions), *partitions, 0)


class World:
    """A node with groups, quotas, and what is warned of."""

    def __init__(self, node: Node, caplog: pytest.LogCaptureFixture, **options: Any) -> None:
        self.node = node
        self.groups = NodeGroups(node.storage, node.cluster, node.scheduler)
        self.managers = QuotaManagers()
        self.effects = QuotaEffects(
            [self.groups], self.managers, node.storage, node.cluster, **{"throttle_max_ms": 0, **options}
        )
        self.effects.start(node.scheduler)
        self._caplog = caplog
        caplog.set_level(logging.WARNING, AUDIT_LOGGER)

    def add_group(
        self, group_id: str, *members: tuple[str, bytes], user: str = "ANONYMOUS 127.0.0.1", **fields: Any
    ) -> None:
        """Add a group whose members have these client ids and assignments."""
        stored = tuple(
            StoredMember(
                f"m{number}", None, client_id, "/127.0.0.1", 60_000, 10_000, b"", assigned, f"User:{user}"
            )
            for number, (client_id, assigned) in enumerate(members)
        )
        group = StoredGroup(
            **{
                "group_id": group_id, "protocol_type": "consumer", "generation": 1, "protocol": "range",
                "leader_id": "m0", "state_at_ms": 0, "members": stored, **fields,
            }
        )  # fmt: skip
        self.groups.coordinator.restore(group, self.groups.now_ms())

    def set_quota(self, value: float | None, key: str = "consumer_byte_rate", entity: Any = READER) -> None:
        """Put a quota in force, as an alteration does."""
        record = QuotaRecord(entity=entity, key=key, value=value)
        self.managers.apply(record)
        self.effects.on_quota(record)

    def produce(self, batches: int = 1, partition: int = 0, topic: str = "orders") -> None:
        """Append batches of 5,000 bytes."""
        for _ in range(batches):
            append(self.node.log(topic, partition), batch(value=LARGE))

    def let_pass(self, seconds: float) -> None:
        """Let time pass for clock and timers."""
        self.node.clock.advance(round(seconds * 1000))
        self.node.scheduler.advance(seconds)
        self.node.scheduler.advance(0.01)

    def measure(self, **produced: Any) -> list[str]:
        """Begin a measurement, produce, and return what is warned of at its end."""
        self.let_pass(1)
        self.produce(**produced)
        self.let_pass(MEASURED_MS / 1000)
        return self.warnings

    @property
    def warnings(self) -> list[str]:
        """Return what was warned of."""
        return [record.getMessage() for record in self._caplog.records if record.name == AUDIT_LOGGER]


@pytest.fixture
def world(node: Node, caplog: pytest.LogCaptureFixture) -> World:
    """Return a node with the topic `orders` of four partitions."""
    node.create("orders", 4)
    return World(node, caplog)


def test_a_quota_below_what_is_produced_is_warned_of(world: World) -> None:
    """With the growth, the lag and the least value; every number is that of the log."""
    world.produce(batches=2)
    world.node.storage.offsets.set_positions("g", "orders", {0: pack_position(1, -1, "", times(0, None))})
    world.add_group("g", ("reader", assignment(0, 1)))
    world.set_quota(1000.0)
    (warning,) = world.measure(batches=10)
    rate = -(-sum(segment.size for segment in world.node.log("orders").segments) * 10 // 12 // 10)
    assert warning == (
        "consumer_byte_rate 1000.0 of client-id='reader' is too low for group 'g' (client-id='reader'): 2 partitions "
        f"grew by {rate} bytes/s in the last 10 s, more than the quota lets the consumers fetch; they lag 11 records "
        f"(about {rate * 11} bytes) and fall further behind; hint: set at least {rate}"
    )


def test_a_quota_that_suffices_is_not_warned_of(world: World) -> None:
    """Nor is one that is removed or replaced meanwhile, and each change is looked at once."""
    world.add_group("g", ("reader", assignment(0, 1)))
    world.set_quota(6000.0)
    assert world.measure(batches=10) == []
    world.set_quota(1000.0)
    world.let_pass(1)
    world.set_quota(None)
    assert world.measure(batches=10) == []
    world.set_quota(1000.0)
    world.let_pass(1)
    world.set_quota(1e9)
    assert world.measure(batches=10) == []
    world.set_quota(1000.0)
    assert len(world.measure(batches=10)) == 1
    assert len(world.measure(batches=10)) == 1


def test_only_those_that_share_the_quota_count(world: World) -> None:
    """Other clients, users, partitions and protocols do not, nor does a client that another quota limits."""
    world.add_group("other-client", ("writer", assignment(0)))
    world.add_group("own", ("reader", assignment(0)), user="alice")
    world.add_group("other-partitions", ("reader", assignment(3)))
    world.add_group("connect", ("reader", assignment(0)), protocol_type="connect")
    world.add_group("unknown-topic", ("reader", assignment(0, topic="nothing")))
    world.add_group("no-partition", ("reader", assignment(77, -1)))
    world.set_quota(1e9, entity=(("user", "alice"),))
    world.set_quota(1000.0)
    assert world.measure(batches=10) == []


def test_names_of_users_that_kafka_sanitises_are_found(world: World) -> None:
    """Quotas are looked up by the sanitised name; the warning has the name itself."""
    world.add_group("g", ("reader", assignment(0)), user="b@b")
    world.set_quota(1000.0, entity=(("user", "b@b"),))
    (warning,) = world.measure(batches=10)
    assert warning.startswith("consumer_byte_rate 1000.0 of user='b@b' is too low for group 'g'")


def test_the_default_limits_each_client_alone(world: World) -> None:
    """Two clients that read 500 bytes a second each are within 600; together they are not, if they share it."""
    world.add_group("g", ("a", assignment(0)), ("b", assignment(1)))
    world.set_quota(600.0, entity=(("client-id", None),))
    world.let_pass(1)
    world.produce(1, 0)
    world.produce(1, 1)
    world.let_pass(10)
    assert world.warnings == []
    world.set_quota(600.0, entity=(("user", "ANONYMOUS"),))
    world.let_pass(1)
    world.produce(1, 0)
    world.produce(1, 1)
    world.let_pass(10)
    assert "group 'g' (client-id='a'): 2 partitions grew by" in world.warnings[0]


def test_groups_that_read_the_same_need_it_twice(world: World) -> None:
    """A partition that three groups read is fetched three times."""
    for name in ("g1", "g2", "g3", "g4"):
        world.add_group(name, ("reader", assignment(0)))
    world.set_quota(2000.0)
    (warning,) = world.measure(batches=1)
    assert "groups 'g1', 'g2', 'g3' and 1 more" in warning
    assert ": 1 partition grew by" in warning


def test_a_log_that_rolls_and_is_deleted_counts_what_is_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """New segments count from their beginning; a deleted topic counts nothing."""
    node = Node(tmp_path / "data")
    node.create("orders", 1, segment_bytes="6000")
    node.create("gone", 1)
    world = World(node, caplog)
    world.add_group("g", ("reader", assignment(0)))
    world.add_group("h", ("reader", assignment(0, topic="gone")))
    world.produce(1)
    world.set_quota(4000.0)
    world.let_pass(1)
    world.produce(9)
    world.produce(100, topic="gone")
    run_at_once(node.storage.topics.delete_in_slices(node.storage.topics.by_name["gone"]))
    world.let_pass(10)
    size = sum(segment.size for segment in node.log("orders").segments)
    assert len(node.log("orders").segments) == 10
    assert f"grew by {-(-size * 9 // 10 // 10)} bytes/s" in world.warnings[0]
    node.storage.close()


def test_quotas_that_were_there_before_are_not_new(world: World) -> None:
    """A start warns of nothing."""
    effects = QuotaEffects(
        [world.groups], world.managers, world.node.storage, world.node.cluster, throttle_max_ms=0
    )
    world.add_group("g", ("reader", assignment(0)))
    effects.on_quota(QuotaRecord(entity=READER, key="consumer_byte_rate", value=1.0))
    effects.start(world.node.scheduler)
    assert world.measure(batches=10) == []


@pytest.mark.parametrize(
    ("exact", "window_s", "throttle_max_ms", "is_warned"),
    [(True, 10, 0, True), (True, 9, 0, False), (True, 10, 9_999, False), (False, 60, 0, False)],
)
def test_members_whose_session_a_throttle_outlasts(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    *,
    exact: bool,
    window_s: int,
    throttle_max_ms: int,
    is_warned: bool,
) -> None:
    """Only where muted time counts toward sessions, and a request throttle can last as long as one."""
    from tidegate.quota import QuotaWindow

    node = Node(tmp_path / "data", kafka_exact=exact)
    world = World(node, caplog, throttle_max_ms=throttle_max_ms)
    window = QuotaWindow(window_ms=window_s * 1000)
    world.effects._managers = world.managers = QuotaManagers(window=window)
    world.add_group("g", ("reader", b""), ("reader", b""), ("other", b""))
    world.set_quota(1.0, "request_percentage")
    world.let_pass(1)
    expected = [
        "request_percentage 1.0 of client-id='reader' can make group 'g' lose 2 members: a throttle can last 10000 "
        "ms, and their session timeout of 10000 ms includes muted time (tidegate.kafka.exact=true); hint: set "
        "quota.window.size.seconds below 10, or a longer session.timeout.ms in the clients"
    ]
    assert world.warnings == (expected if is_warned else [])
    node.storage.close()


@pytest.mark.parametrize(
    "damaged",
    [
        b"", b"\0", assignment(0)[:-8], assignment(0)[:5], b"\0\0\x7f\xff\xff\xff", b"\0\0\xff\xff\xff\xff",
        struct.pack(">hih", 0, 1, -1), struct.pack(">hihi", 0, 1, 0, -1), struct.pack(">hihi", 0, 1, 0, 2**31 - 1),
    ],
)  # fmt: skip
def test_assignments_that_cannot_be_read(world: World, damaged: bytes) -> None:
    """What a leader sends is any bytes: the readable part counts, and nothing is raised."""
    found = run_at_once(assigned_partitions_in_slices(damaged, most=10))
    assert found == []
    world.add_group("g", ("reader", damaged))
    world.set_quota(1.0)
    world.measure(batches=1)


def test_a_partition_that_is_assigned_often_counts_once(world: World) -> None:
    """A leader may assign anything: neither the same partition a thousand times nor to each member adds growth."""
    world.add_group("g", ("reader", assignment(*[0] * 1000)), ("reader", assignment(0, 0)))
    world.set_quota(1000.0)
    assert world.measure(batches=1) == []
    world.set_quota(500.0)
    assert len(world.measure(batches=1)) == 1


def test_a_quota_callback_is_not_asked(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """A callback sees the calls that Kafka makes (B§8), and none of a warning; also one that is loaded meanwhile."""

    class Unreachable(DefaultQuotaCallback):
        def quota_metric_tags(self, *_: Any) -> Any:
            raise AssertionError("asked")

    node.create("orders", 4)
    world = World(node, caplog)
    world.add_group("g", ("reader", assignment(0)))
    world.set_quota(1.0)
    world.let_pass(1)
    world.managers.callback = world.managers.fetch._custom = Unreachable()
    world.produce(1)
    world.let_pass(10)
    world.effects.on_quota(QuotaRecord(entity=READER, key="consumer_byte_rate", value=2.0))
    world.let_pass(1)
    world.let_pass(10)
    assert not caplog.records


def test_bounds(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of changes, partitions and warnings: what is beyond them is not looked at, and the last line counts."""
    monkeypatch.setattr(quota_effects, "MAX_WARNINGS", 2)
    monkeypatch.setattr(quota_effects, "MAX_CHANGES", 4)
    for number in range(6):
        world.add_group(f"g{number}", (f"c{number}", assignment(0)))
    for number in range(6):
        world.set_quota(1.0, entity=(("client-id", f"c{number}"),))
    warnings = world.measure(batches=1)
    assert len(warnings) == 3
    assert warnings[-1] == "2 more quotas are too low for their consumers"
    monkeypatch.setattr(quota_effects, "MAX_PARTITIONS", 3)
    world.add_group("many", ("many", assignment(0, 1, 2, 3)))
    world.set_quota(1.0, entity=(("client-id", "many"),))
    world.let_pass(1)
    world.produce(1, 3)
    world.let_pass(10)
    assert len(world.warnings) == 3  # partition 3 is the fourth


def test_topics_that_are_deleted_during_the_judgement_are_not_warned_of(world: World) -> None:
    """They had grown when they were judged, and are gone when the warning is put together."""
    world.add_group("g", ("reader", assignment(0)))
    world.set_quota(1000.0)
    run_at_once(world.effects.look_in_slices())
    world.produce(10)
    world.node.clock.advance(MEASURED_MS)
    work = world.effects.look_in_slices()
    next(work)
    for log in world.node.storage.topics.by_name["orders"].logs:
        log.deleted = True
    run_at_once(work)
    assert world.warnings == []


def test_many_members_and_partitions_take_short_steps(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """No step of the work holds the event loop."""
    node.create("orders", 200)
    world = World(node, caplog)
    everything = assignment(*range(200))
    for number in range(40):
        world.add_group(f"g{number}", *((f"c{member}", everything) for member in range(5)))
    world.set_quota(1.0, entity=(("client-id", None),))
    changed = dict(world.effects._changed)

    def begin() -> Iterator[None]:
        world.effects._measured, world.effects._changed = [], dict(changed)
        return world.effects.look_in_slices()

    def end() -> Iterator[None]:
        run_at_once(begin())
        world.produce(1)
        node.clock.advance(MEASURED_MS)
        return world.effects.look_in_slices()

    assert longest_step_ms(begin)[1] < MOST_STEP_MS
    assert longest_step_ms(end)[1] < MOST_STEP_MS
    assert len(world.warnings) >= 5
