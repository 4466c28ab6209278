"""The demo's way of setting quotas, against a real broker."""

import pytest
from bench.ports import free_port
from tests.e2e.plain_client import PlainClient

from tidegate.cli.demo.traffic import set_client_quotas
from tidegate.errors import TidegateError


def test_quotas_are_set(broker, topic, unique):
    """What the demo sets holds for the client's next request."""
    set_client_quotas(broker.port, {unique: {"producer_byte_rate": 1000.0}})
    with PlainClient(broker.port, unique) as client:
        client.send_produce(topic, value_bytes=11_000)
        assert client.receive_produce().throttle_time_ms > 0


def test_a_refusal_is_an_error(broker, unique):
    """A quota that Kafka does not know is refused, and the broker's reason is passed on."""
    with pytest.raises(TidegateError, match=r"no_such_rate"):
        set_client_quotas(broker.port, {unique: {"no_such_rate": 1.0}})


def test_a_broker_that_is_not_there_is_an_error():
    """A port that nobody listens on is one error, not a traceback of sockets."""
    with pytest.raises(TidegateError, match=r"cannot connect to 127\.0\.0\.1"):
        set_client_quotas(free_port(), {"loader": {"producer_byte_rate": 1.0}})
