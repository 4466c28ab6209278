"""What a record is enough for: its windows with requests, and whose clients are brokers."""

import pyarrow as pa
import pytest
from tests.replaying.files import write_events
from tests.replaying.logs import START_MS
from tests.replaying.node import RecordingNode

from tidegate.pipeline.proposals.evidence import (
    WINDOW_MS,
    chunk_windows,
    internal_names,
    is_internal,
    windows_in,
)
from tidegate.pipeline.read.ingest import open_usage


@pytest.mark.parametrize(
    "client_id",
    [
        "1", "4000000000", "broker-12-fetcher-3", "broker-1-txn-marker-sender", "AddPartitionsManager-client-1",
        "raft-client-2", "NetworkPartitionMetadataClient-client-1", "__remote_log_metadata_client_1_consumer",
    ],
)  # fmt: skip
def test_clients_of_brokers_are_known_by_their_client_id(client_id):
    """As Kafka 4.3.1 names them."""
    assert is_internal(client_id)


@pytest.mark.parametrize(
    "client_id",
    ["", "0x1", "12345678901", "1\n", "a1", "my-broker-1-fetcher-0", "raft-client", "broker-1", "\u0661"],
)
def test_other_clients_are_not(client_id):
    """A name that only begins or ends alike is an application's."""
    assert not is_internal(client_id)


def test_an_entity_is_internal_if_all_its_clients_are():
    """A user that an application shares with the brokers is not left out."""
    users, client_ids = (
        pa.array(["kafka", "kafka", "bob", "bob"]),
        pa.array(["1", "raft-client-1", "1", "app"]),
    )
    assert internal_names("user", users, client_ids) == {("kafka", None)}
    assert internal_names("client-id", users, client_ids) == {(None, "1"), (None, "raft-client-1")}
    both = {("kafka", "1"), ("kafka", "raft-client-1"), ("bob", "1")}
    assert internal_names("both", users, client_ids) == both


def test_windows_count_once_over_all_chunks(tmp_path):
    """Only those with requests, however many nodes and files have them."""
    for node_id in (1, 2):
        node = RecordingNode(node_id)
        node.start(START_MS - 100 * WINDOW_MS)
        for window in range(0, 8, 2):
            node.produce("a", "c", 1, START_MS + window * WINDOW_MS)
        write_events(tmp_path, node.events, rows_per_file=2)
    with open_usage(tmp_path) as files:
        assert len(files.chunks) > 2
        assert windows_in(chunk_windows(chunk) for chunk in files.chunks) == 4
