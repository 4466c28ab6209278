"""Unmodified clients against `tidegate serve`, by every way to come in; and which of them wait as they are told.

What was seen is written to `.cache/clients/results.json`, of which `scripts/client_table.py` makes the table of
`docs/clients.md`.
"""

from collections.abc import Iterator

import pytest
from tests.e2e.clients.kafka_tools import AUTHORIZER, TOOLS, run_tools
from tests.e2e.clients.programs import CLIENTS, Tools
from tests.e2e.clients.results import note
from tests.e2e.clients.scenario import MECHANISMS, ClientsBroker, consume_in_a_group, obeyed
from tests.e2e.clients.versions import PINNED

pytestmark = pytest.mark.java

USERS = {name: f"user{number}" for number, name in enumerate(CLIENTS)}
WAYS = {
    "PLAINTEXT": ("",),
    "SASL_PLAINTEXT": MECHANISMS,
    "SSL": ("",),
    "SASL_SSL": ("PLAIN", "SCRAM-SHA-512"),
}
"""By security protocol the mechanisms that are tried."""
REFUSED = "(?i)authentication"


@pytest.fixture(scope="module", params=WAYS)
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClientsBroker]:
    """Return a broker at which every client has a user."""
    users = (*USERS.values(), "tools") if "SASL" in request.param else ()
    made = ClientsBroker(
        tmp_path_factory.mktemp("clients"), protocol=request.param, users=users, **AUTHORIZER
    )
    yield made
    made.close()


@pytest.mark.parametrize("name", CLIENTS)
def test_in_a_group(broker: ClientsBroker, tools: Tools, name: str) -> None:
    """Two members share what it produced, one leaves, the other takes over, a third goes on where they committed."""
    client = CLIENTS[name]
    for mechanism in WAYS[broker.protocol]:
        job = broker.job(USERS[name], mechanism=mechanism, topic=f"{USERS[name]}-{mechanism}", count=100)
        if client.can_log_in_by(mechanism):
            consume_in_a_group(client, broker, tools, job, with_third=True)
            note(name, client.version, ways=[f"{broker.protocol} {mechanism}".strip()])
        else:
            with pytest.raises(AssertionError, match=REFUSED):
                client.run(tools, job, "produce")


@pytest.mark.parametrize("broker", ["SASL_PLAINTEXT"], indirect=True)
@pytest.mark.parametrize("name", CLIENTS)
def test_throttled(broker: ClientsBroker, tools: Tools, name: str) -> None:
    """Under quotas of its user it is throttled, and all of its records are written and read all the same."""
    client = CLIENTS[name]
    found = obeyed(client, broker, tools, USERS[name], "PLAIN")
    print(f"\n{name} {client.version}: {found}")
    assert set(found) == {"produce", "fetch"}
    note(name, client.version, obeyed=found)


def test_kafkas_tools(broker: ClientsBroker, tools: Tools) -> None:
    """Topics, quotas, ACLs, groups and loads, by Kafka's tools, by each way in; the load is throttled."""
    for mechanism in WAYS[broker.protocol]:
        run_tools(broker, tools, mechanism)
        for name in TOOLS:
            note(name, PINNED["kafka"](), ways=[f"{broker.protocol} {mechanism}".strip()])
