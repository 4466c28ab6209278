"""A quota callback on a real broker: named at the start, exchanged by an admin client, kept over a restart."""

import re
import time
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ConfigSource

PAGE = Path(__file__).parents[2] / "docs/callbacks.md"
CLASS = "client.quota.callback.class"
RATE = 10_000.0


def change(admin: AdminClient, **settings: str | None) -> None:
    """Change settings of the broker, or delete those that are None; names have `__` for a full stop."""
    entries = [
        ConfigEntry(
            name.replace("__", "."),
            value,
            incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
        )
        for name, value in settings.items()
    ]
    resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(timeout=20)


def described(admin: AdminClient) -> tuple[str | None, ConfigSource]:
    """Return the callback's class and where it comes from."""
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    entry = admin.describe_configs([resource])[resource].result(timeout=20)[CLASS]
    return entry.value, ConfigSource(entry.source)


def throttled_ms(address: str, client_id: str, topic: str) -> int:
    """Produce 200 KB, less where it is throttled, and return the longest throttle time that the broker has answered."""
    times = [0]
    settings = {"bootstrap.servers": address, "client.id": client_id, "linger.ms": 0, "batch.num.messages": 1}
    producer = Producer(
        settings | {"throttle_cb": lambda event: times.append(int(event.throttle_time * 1000))}
    )
    for _ in range(20):
        producer.produce(topic, bytes(10_000))
        producer.flush(0.2)
        if max(times):
            producer.purge()  # what waits for the end of the throttle
            break
    producer.flush(30)
    until = time.monotonic() + 1
    while not max(times) and time.monotonic() < until:
        producer.poll(0.1)
    return max(times)


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory of PYTHONPATH with the example of docs/callbacks.md."""
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "tenants.py").write_text(example)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    return tmp_path


def test_a_callback_is_exchanged_by_an_admin_client(new_broker, create_topic, modules) -> None:
    """Clients of a group share its limit; others are free; what is changed holds at once, and after a restart."""
    broker = new_broker(tidegate_callback_modules="tidegate.callbacks,tenants")
    admin = AdminClient({"bootstrap.servers": broker.address})
    topic = create_topic(broker, "orders")
    assert described(admin) == (None, ConfigSource.DEFAULT_CONFIG)
    assert throttled_ms(broker.address, "nightly", topic) == 0
    group = {
        "client__quota__callback__class": "tidegate.callbacks:QuotaGroups",
        "client__quota__callback__group__etl__members": "client-id:nightly",
        "client__quota__callback__group__etl__producer_byte_rate": str(RATE),
    }
    change(admin, **group)
    assert described(admin) == ("tidegate.callbacks:QuotaGroups", ConfigSource.DYNAMIC_BROKER_CONFIG)
    assert throttled_ms(broker.address, "nightly", topic) > 0
    assert throttled_ms(broker.address, "other", topic) == 0
    broker.kill()
    broker.start()
    assert described(admin) == ("tidegate.callbacks:QuotaGroups", ConfigSource.DYNAMIC_BROKER_CONFIG)
    assert throttled_ms(broker.address, "nightly", topic) > 0
    with pytest.raises(KafkaException, match="its module has no class 'Nobody'"):
        change(admin, client__quota__callback__class="tenants:Nobody")
    change(admin, client__quota__callback__class="tenants:Tenants", client__quota__callback__otherwise="5000")
    assert throttled_ms(broker.address, "other", topic) > 0
    change(admin, client__quota__callback__class=None)
    assert described(admin) == (None, ConfigSource.DEFAULT_CONFIG)
    assert throttled_ms(broker.address, "nightly", topic) == 0
    assert broker.stop() == 0
    assert "Traceback" not in broker.log


def test_a_class_that_is_not_there_keeps_the_broker_from_starting(new_broker) -> None:
    """With the reason, in one line."""
    with pytest.raises(AssertionError, match="its module has no class 'Nobody'"):
        new_broker(client_quota_callback_class="tidegate.callbacks:Nobody")
