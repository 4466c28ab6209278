"""Tidegate's commands against a gateway with `--processes` show the broker as a whole, whichever process answers."""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from bench.ports import free_port
from tests.gateway.raw_client import RawClient
from tests.gateway.test_processes import SeveralProcesses, connections_of, set_quota
from tests.gateway.test_tools import Tools
from tests.waiting import wait_until

from tidegate.gateway.processes import METRICS_STEP

PROCESSES = 2
WAIT_S = 30.0
RATE = 20_000
VALUE_BYTES = 900_000


@pytest.fixture(scope="module")
def tools(kafka, tmp_path_factory) -> Iterator[Tools]:
    """Return a gateway with two processes, each of which has a metrics listener."""
    port = free_port(1, processes=PROCESSES)
    options = ("--processes", str(PROCESSES), "--override", f"tidegate.metrics.listener=127.0.0.1:{port}")
    process = SeveralProcesses(tmp_path_factory.mktemp("tools"), kafka.address, options)
    process.start()
    yield Tools(process, port)
    process.close()


def metrics_of(tools: Tools, number: int) -> str:
    """Return the address of the metrics listener of a process."""
    port = int(tools.metrics.rpartition(":")[2])
    return f"http://127.0.0.1:{port + METRICS_STEP * (number - 1)}"


def connect_to(tools: Tools, number: int, client_id: str, closing: ExitStack) -> RawClient:
    """Return a connection at a process: the kernel chooses one at random, so others are closed again."""
    for _ in range(60):
        before = connections_of(tools.gateway)
        client = closing.enter_context(RawClient(tools.port, client_id))
        wait_until(lambda before=before: sum(connections_of(tools.gateway)) > sum(before), WAIT_S)
        if connections_of(tools.gateway)[number - 1] > before[number - 1]:
            return client
        client.socket.close()
    raise AssertionError("no connection reached the process")


def documents(tools: Tools, command: str, *arguments: str) -> list[dict]:
    """Return what a command prints of each listener."""
    listeners = [metrics_of(tools, number) for number in range(1, PROCESSES + 1)]
    return [
        json.loads(tools.tidegate(command, *arguments, "--json", "--metrics", listener))
        for listener in listeners
    ]


def test_top_and_explain_show_the_clients_of_all_processes(tools, kafka, create_topic, unique):
    """A client that only one process serves is throttled for each listener that is asked."""
    topic = create_topic(kafka, unique)
    set_quota(tools.gateway, unique, producer_byte_rate=RATE)
    with ExitStack() as closing:
        client = connect_to(tools, 2, unique, closing)
        assert client.produce(topic, VALUE_BYTES)["throttle_time_ms"] > 20_000
        found = documents(tools, "explain", "--client-id", unique)
        for document in found:
            produce = next(each for each in document["quotas"] if each["quota_type"] == "Produce")
            assert produce["throttled_connections"] == 1, produce
            assert produce["rate"] > RATE
        for document in documents(tools, "top", "--once"):
            (entity,) = (
                each
                for each in document["entities"]
                if (each["client_id"], each["quota_type"]) == (unique, "Produce")
            )
            assert entity["throttled_connections"] == 1
        text = tools.tidegate("top", "--once", "--metrics", metrics_of(tools, 1))
        assert re.search(r"node 1, 2 processes · ", text), text
