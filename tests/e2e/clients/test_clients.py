"""Unmodified clients of four languages, logged in, in groups: each runs once, small. All of it: `long_clients.py`."""

from collections.abc import Iterator

import pytest
from tests.e2e.clients.kafka_tools import AUTHORIZER, run_tools
from tests.e2e.clients.programs import CLIENTS, Tools
from tests.e2e.clients.scenario import ClientsBroker, consume_in_a_group

pytestmark = pytest.mark.java

USERS = {name: f"user{number}" for number, name in enumerate(CLIENTS)}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClientsBroker]:
    """Return a broker at which every client has a user."""
    directory = tmp_path_factory.mktemp("clients")
    users = (*USERS.values(), "tools")
    made = ClientsBroker(directory, protocol="SASL_SSL", users=users, **AUTHORIZER)
    yield made
    made.close()


@pytest.mark.parametrize("name", CLIENTS)
def test_each_client_produces_and_consumes_in_a_group(broker: ClientsBroker, tools: Tools, name: str) -> None:
    """Two members share what it produced, one leaves, the other takes over; all that was read is committed."""
    client = CLIENTS[name]
    mechanism = next(each for each in ("SCRAM-SHA-512", "PLAIN") if client.can_log_in_by(each))
    job = broker.job(USERS[name], mechanism=mechanism, count=20)
    consume_in_a_group(client, broker, tools, job, with_third=False)


def test_kafkas_tools(broker: ClientsBroker, tools: Tools) -> None:
    """Topics, a user's quota that throttles a load, ACLs and groups by Kafka's tools, in one Java process."""
    run_tools(broker, tools, "SCRAM-SHA-512")
