"""Plans from files, and which sensor a client has under them, against the engine's managers."""

import json
import math
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.replaying.logs import random_records
from tests.replaying.plans import callback_of, random_groups

from tidegate.config.windows import Windows
from tidegate.errors import ConfigError
from tidegate.pipeline.replay.plan import QUOTA_TYPES, Definitions, in_force_plan, load_plans
from tidegate.pipeline.replay.resolved import Resolved
from tidegate.quota.admin.definitions import QuotaRecord
from tidegate.quota.managers.quota_managers import QuotaManagers
from tidegate.quota.measure.window import QuotaWindow

_CONSUMED = "consumer_byte_rate"
_QUOTAS = "quotas:\n  - client-id: {default: true}\n    consumer_byte_rate: 1000\n"


@given(st.integers(0, 2**32), st.sampled_from(["alice", "a b:c", "x"]), st.sampled_from(["", "c1", "x"]))
def test_clients_are_resolved_as_by_the_managers(seed, user, client_id):
    """Tags, bound, cap and what is enabled are the engine's, under any definitions."""
    records = random_records(Random(seed), at_most=6)
    window = QuotaWindow(samples=4, window_ms=2000)
    managers = QuotaManagers(window=window, controller_window=window)
    for record in records:
        managers.apply(record)
    definitions = Definitions(records)
    for index, quota_type in enumerate(QUOTA_TYPES):
        manager = managers.manager(quota_type)
        resolved = definitions.resolve(index, user, client_id, Windows(rate=window))
        assert definitions.is_enabled(index) == manager.enabled
        assert dict(zip(("user", "client-id"), resolved.tags, strict=True)) == manager.tags(user, client_id)
        assert resolved.bound == pytest.approx(manager.bound(user, client_id), rel=0, abs=0, nan_ok=True)
    cap = managers.fetch.max_value_in_window(user, client_id, lambda: 0)
    resolved = definitions.resolve(1, user, client_id, Windows(rate=window))
    assert min(resolved.cap_bytes, 2**31 - 1) == int(min(cap, 2**31 - 1))


@given(st.integers(0, 2**32), st.sampled_from(["alice", "a b:c", "x"]), st.sampled_from(["", "c1", "x"]))
def test_members_are_resolved_as_by_the_callback(seed, user, client_id):
    """Tags, name of the sensor, bound and cap are those of the engine that asks it."""
    rng = Random(seed)
    records, groups = random_records(rng, at_most=6), random_groups(rng)
    managers = QuotaManagers(callback=callback_of(groups))
    for record in records:
        managers.apply(record)
    definitions = Definitions(records, groups=groups)
    for index, quota_type in enumerate(QUOTA_TYPES):
        manager = managers.manager(quota_type)
        resolved, tags = definitions.resolve(index, user, client_id, Windows()), manager.tags(user, client_id)
        if groups.group_of(user, client_id) is None:
            assert dict(zip(("user", "client-id"), resolved.tags, strict=True)) == tags
        else:
            assert json.loads(resolved.tags) == tags
            assert manager.sensor_name(user, client_id).endswith(resolved.sensor)
        assert resolved.bound == pytest.approx(manager.bound(user, client_id), rel=0, abs=0, nan_ok=True)
    cap = managers.fetch.max_value_in_window(user, client_id, lambda: 0)
    resolved = definitions.resolve(1, user, client_id, Windows())
    assert min(resolved.cap_bytes, 2**31 - 1) == int(min(cap, 2**31 - 1))


def test_the_cap_of_a_quota_that_is_no_number_is_zero():
    """Kafka accepts NaN as a bound, and narrows it to 0 (B§3.7)."""
    definitions = Definitions([QuotaRecord(entity=(("user", "alice"),), key=_CONSUMED, value=math.nan)])
    assert definitions.resolve(1, "alice", "c1", Windows()).cap_bytes == 0


def test_a_removed_quota_disables_its_type():
    """The last definition of a type takes the type with it (B§3.3)."""
    entity = (("user", "alice"),)
    definitions = Definitions([QuotaRecord(entity=entity, key="producer_byte_rate", value=1.0)])
    definitions.apply(QuotaRecord(entity=entity, key="producer_byte_rate", value=None))
    assert not definitions.is_enabled(0)


def test_connection_quotas_are_none_of_ours():
    """A quota of an ip is for no request."""
    record = QuotaRecord(entity=(("ip", None),), key="connection_creation_rate", value=1.0)
    assert Definitions().apply(record) is None


def test_a_plan_is_named_after_its_file(tmp_path):
    """Windows and quotas come from the file."""
    path = tmp_path / "tight.yaml"
    path.write_text("windows: {quota.window.num: 3, controller.quota.window.size.seconds: 2}\n" + _QUOTAS)
    (plan,) = load_plans([path])
    assert plan.name == "tight"
    assert plan.windows == Windows(rate=QuotaWindow(samples=3), mutation=QuotaWindow(window_ms=2000))
    assert len(plan.records) == 1
    assert not plan.is_in_force


def test_two_plans_of_one_name_are_refused(tmp_path):
    """Names tell plans apart in every table."""
    for directory in ("a", "b"):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "q.yaml").write_text(_QUOTAS)
    with pytest.raises(ConfigError, match="two plans are called 'q'"):
        load_plans([tmp_path / "a" / "q.yaml", tmp_path / "b" / "q.yaml"])


def test_a_bad_file_is_named(tmp_path):
    """File and line of the mistake are in the error."""
    path = tmp_path / "bad.yaml"
    path.write_text("quotas: 7\n")
    with pytest.raises(ConfigError, match=r"bad\.yaml:1"):
        load_plans([path])


def test_quotas_in_force_are_a_plan_without_definitions():
    """It takes them from the record."""
    assert in_force_plan().is_in_force


def test_windows_are_checked():
    """A window that no engine could have is refused."""
    with pytest.raises(ConfigError, match="number of samples must be from 1"):
        Windows.of({"quota.window.num": 0})


def test_limits_are_kept_as_they_were_written(tmp_path):
    """By key and value; of equal ones as the first was."""
    entries = [
        f"  - user: {{name: {name}}}\n    producer_byte_rate: {size}\n"
        for name, size in (("a", "20MB"), ("b", "20000kB"))
    ]
    (tmp_path / "q.yaml").write_text("quotas:\n" + "".join(entries))
    (plan,) = load_plans([tmp_path / "q.yaml"])
    assert plan.limit_texts == {("producer_byte_rate", 2e7): "20MB"}


@given(st.integers(0, 2**32))
def test_many_clients_are_resolved_as_one_by_one(seed):
    """Those that no entity names are alike; names that are, that are empty, and that are written another way.

    Some are in groups.
    """
    rng = Random(seed)
    groups = random_groups(rng) if rng.random() < 0.5 else None
    definitions = Definitions(random_records(rng, at_most=6), groups=groups)
    names = ("alice", "bob", "a b:c", "", "x", "y", "c1", "c2")
    clients = [(user, client_id) for user in names for client_id in names]
    for index in range(len(QUOTA_TYPES)):
        for some in (clients, clients[:3], []):
            expected = [definitions.resolve(index, *client, Windows()) for client in some]
            columns = [pa.array([client[part] for client in some], pa.string()) for part in range(2)]
            found = definitions.resolved(index, *columns, Windows())
            texts = found.sensor_texts()
            rows = map(
                Resolved,
                found.tags,
                [texts.get(place, tags) for place, tags in enumerate(found.tags)],
                found.bounds.tolist(),
                found.caps_bytes.tolist(),
                [found.rows[row].entity for row in found.row.tolist()],
            )
            assert list(map(repr, rows)) == list(map(repr, expected))
