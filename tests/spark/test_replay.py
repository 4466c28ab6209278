"""Replay on Spark and in this process: the record of a throttled node, the engine, and the kernel alone all agree."""

from datetime import UTC, datetime, timedelta
from random import Random

import pyarrow.parquet as pq
import pytest
from tests.replaying.files import write_events
from tests.replaying.kernel import replay_events
from tests.replaying.logs import START_MS, random_records, random_traffic, random_window
from tests.replaying.node import RecordingNode

from tidegate.pipeline.errors import DAMAGED_HINT, UsageFilesError
from tidegate.pipeline.read.ingest import open_usage
from tidegate.pipeline.record import jobs_here, jobs_on_spark
from tidegate.pipeline.replay.plan import Plan, in_force_plan
from tidegate.pipeline.results.writing import as_written, written_schema
from tidegate.pipeline.schemas import REPLAY_BY_ENTITY
from tidegate.quota.admin.definitions import QuotaRecord

_NODES = (1, 2, 7)
_DECIDED = ("throttle_ms", "request_throttle_ms", "rejected", "capped")
_TYPES = ("Produce", "Fetch", "Request", "ControllerMutation")


def _nodes(rng):
    nodes = []
    for node_id in _NODES:
        node = RecordingNode(node_id)
        node.start(START_MS, window=random_window(rng), records=random_records(rng, at_most=8))
        random_traffic(node, rng, events=700)
        nodes.append(node)
    return nodes


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """Nodes whose random logs lie in files, in which rows of all hours and nodes are mixed."""
    seed = Random().randrange(2**32)
    print(f"seed {seed}")
    directory = tmp_path_factory.mktemp("usage")
    nodes = _nodes(Random(seed))
    for node in nodes:
        write_events(directory, node.events, rows_per_file=150)
    return nodes, directory


@pytest.fixture(params=["spark", "local"])
def job(request):
    """Replay a directory against plans: on Spark, or in this process."""

    def run(directory, plans, out=None):
        with open_usage(directory) as files:
            if request.param == "local":
                jobs = jobs_here(files)
            else:
                jobs = jobs_on_spark(request.getfixturevalue("spark"), files)
            return jobs.replay(plans, out=out, with_decisions=out is not None).entities

    return run


def _rows(path):
    return pq.read_table(path).to_pylist()


def test_quotas_in_force_decide_again_as_recorded(job, logs):
    """Every throttle time and refusal of three nodes comes out as it was recorded."""
    rows = job(logs[1], [in_force_plan()])
    assert sum(row["requests"] for row in rows) > 1000
    assert sum(row["throttled_requests"] for row in rows) > 100
    assert sum(row["different_decisions"] for row in rows) == 0


def test_decisions_are_those_of_the_kernel_alone(job, logs, tmp_path):
    """Partitions, joins and sorting change no decision and lose no row."""
    nodes, directory = logs
    plans = [Plan(name=name, records=random_records(Random(name), at_most=6)) for name in ("a", "b")]
    rows = job(directory, plans, out=tmp_path)
    decided = _rows(tmp_path / "decisions")
    found = {
        (row["plan"], row["node_id"], row["seq"]): tuple(row[name] for name in _DECIDED) for row in decided
    }
    recorded = {(event["node_id"], event["seq"]): event for node in nodes for event in node.events}
    for row in decided:
        event = recorded[row["node_id"], row["seq"]]
        assert row["ts"] == datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=event["ts_ms"])
        assert [row[name] for name in ("user", "client_id")] == [event["user"], event["client_id"]]
        assert row["date"] == f"{row['ts']:%Y-%m-%d}"
    files = (tmp_path / "decisions").glob("date=*/*.parquet")
    assert sum(pq.read_metadata(file).num_rows for file in files) == len(decided)
    expected = {}
    for plan in plans:
        for node_id, node in zip(_NODES, nodes, strict=True):
            replayed = replay_events(node.events, plan, batch_rows=10_000)
            for event, decision in zip(replayed.events, replayed.decisions.tolist(), strict=True):
                if event["kind"] != "network":
                    byte_ms, request_ms, rejected, capped, *_ = decision
                    key = (plan.name, node_id, event["seq"])
                    expected[key] = (byte_ms, request_ms, bool(rejected), bool(capped))
    assert found == expected
    _check_sums(rows, found)


def _check_sums(rows, decisions):
    """The summary counts what the decisions say."""
    throttled = sum((decision[0] > 0) + (decision[1] > 0) for decision in decisions.values())
    delay_ms = sum(max(0, decision[0]) + max(0, decision[1]) for decision in decisions.values())
    assert sum(row["throttled_requests"] for row in rows) == throttled
    assert sum(row["throttle_ms"] for row in rows) == delay_ms
    assert max(row["longest_throttle_ms"] for row in rows) == max(max(d[:2]) for d in decisions.values())


def test_tables_are_written(job, logs, tmp_path):
    """By entity and by client; the summary is the table."""
    plan = Plan(
        name="p", records=(QuotaRecord(entity=(("user", None),), key="producer_byte_rate", value=50.0),)
    )
    rows = job(logs[1], [plan], out=tmp_path)
    table = pq.read_table(tmp_path / "replay_by_entity")
    assert table.schema.equals(written_schema(REPLAY_BY_ENTITY))
    key = ("plan", "quota_type", "entity_user", "entity_client_id")
    written = {tuple(row[name] for name in key): row for row in table.to_pylist()}
    summary = as_written(rows.table).to_pylist()
    assert written == {tuple(row[name] for name in key): row for row in summary}
    by_client = _rows(tmp_path / "replay_by_client")
    assert sum(row["throttle_ms"] for row in by_client) == sum(row["throttle_ms"] for row in rows)


def test_a_file_given_twice_is_one_clear_error(job, tmp_path):
    """The same rows in two files would be charged twice."""
    node = RecordingNode(3)
    node.start(START_MS)
    node.produce("alice", "c1", 10, START_MS)
    for directory in ("a", "b"):
        write_events(tmp_path / directory, node.events)
    with pytest.raises(UsageFilesError, match=r"^seq 1 to 6 of node 3 occur twice$"):
        job(tmp_path, [Plan(name="p", records=())])


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"produce_bytes": -5}, "amount must be from 0 to 2147483647, got -5 in seq 6 of '"),
        ({"handler_ns": 2**62}, "handler_ns must be from 0 to"),
        ({"ts_ms": 2**60}, "ts_ms must be from 0 to"),
    ],
)
def test_impossible_rows_are_named(job, tmp_path, columns, reason):
    """A number that no engine wrote is refused with the row's node and seq."""
    node = RecordingNode()
    node.start(START_MS)
    node.produce("alice", "c1", 10, START_MS).update(columns)
    (tmp_path / "x").mkdir()
    _write_flat(tmp_path / "x" / "rows.parquet", node.events)
    with pytest.raises(UsageFilesError) as caught:
        job(tmp_path, [Plan(name="p", records=())])
    assert str(caught.value).startswith(reason)


def _write_flat(path, events):
    import pyarrow as pa
    import pyarrow.parquet as pq

    from tidegate.usage.arrow import arrow_schema

    pq.write_table(pa.Table.from_pylist(events, schema=arrow_schema()), path)


def test_damaged_data_is_named(job, tmp_path):
    """A file whose footer is good and whose pages are not is named when it is met."""
    node = RecordingNode()
    node.start(START_MS)
    random_traffic(node, Random(1), events=500)
    (tmp_path / "x").mkdir()
    path = tmp_path / "x" / "rows.parquet"
    _write_flat(path, node.events)
    content = bytearray(path.read_bytes())
    content[4 : len(content) // 2] = b"\xff" * (len(content) // 2 - 4)
    path.write_bytes(content)
    with pytest.raises(
        UsageFilesError, match=r"^cannot read '.*rows\.parquet': its data is damaged$"
    ) as caught:
        job(tmp_path, [Plan(name="p", records=())])
    assert caught.value.hint == DAMAGED_HINT


def test_a_log_without_requests_gives_nothing(job, tmp_path):
    """A node that only started has no entities."""
    node = RecordingNode()
    node.start(START_MS)
    write_events(tmp_path, node.events)
    assert len(job(tmp_path, [in_force_plan()])) == 0


def test_missing_names_are_empty_ones(job, tmp_path):
    """A row without user or client id is one of the client with empty names."""
    node = RecordingNode()
    node.start(START_MS)
    for _ in range(2):
        node.produce("", "", 30_000, START_MS)
    for column in ("user", "client_id"):
        node.events[-1][column] = None
    (tmp_path / "x").mkdir()
    import pyarrow as pa
    import pyarrow.parquet as pq

    from tidegate.usage.arrow import arrow_schema

    schema = pa.schema([field.with_nullable(True) for field in arrow_schema()])
    pq.write_table(pa.Table.from_pylist(node.events, schema=schema), tmp_path / "x" / "rows.parquet")
    (produce, _) = sorted(job(tmp_path, [Plan(name="p", records=())]), key=lambda row: row["quota_type"])
    assert produce["requests"] == 2
