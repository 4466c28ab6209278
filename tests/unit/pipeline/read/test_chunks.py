"""Chunks of Parquet files as the kernel's rows, against rows made one by one."""

from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.replaying.files import find_files, write_events
from tests.replaying.kernel import kernel_rows, sweeps_of
from tests.replaying.logs import START_MS, random_records, random_traffic
from tests.replaying.node import RecordingNode

from tidegate.callbacks.own_rules import OwnRules
from tidegate.pipeline import layout
from tidegate.pipeline.errors import UsageFilesError
from tidegate.pipeline.read import chunks, columns, ingest
from tidegate.pipeline.read.chunks import Chunk, bundled, read_chunk
from tidegate.pipeline.read.control_events import CONTROL_KINDS, NEXT_TS_MS
from tidegate.pipeline.read.ingest import list_chunks
from tidegate.pipeline.read.rows import read_rows
from tidegate.pipeline.read.runs import check_rising
from tidegate.pipeline.read.survey import survey_chunk
from tidegate.pipeline.read.timeline import Run
from tidegate.quota import QuotaRecord
from tidegate.usage.arrow import arrow_schema
from tidegate.usage.columns import SEQ_PER_US


def _node(seed, events=200):
    rng = Random(seed)
    node = RecordingNode(4)
    node.start(START_MS, records=random_records(rng, at_most=8))
    now_ms = random_traffic(node, rng, events=events)
    node.quota(QuotaRecord(entity=(("user", "alice"),), key="tidegate.quota.observe", value=1.0), now_ms)
    random_traffic(node, rng, events=events, now_ms=now_ms)
    return node


@settings(max_examples=10, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([1, 1 << 22]),
    st.sampled_from([0, 1 << 14]),
    st.sampled_from([1, 3, 64]),
)
def test_chunks_hold_what_the_events_say(tmp_path_factory, seed, largest_table, few_rows, most_chunks):
    """Every number of every row, client and control event, however names are looked up and files are read."""
    directory = tmp_path_factory.mktemp("usage")
    node = _node(seed)
    write_events(directory, node.events, rows_per_file=64)
    numbers, rows, counts, control, sweeps = {}, [], {}, [], []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "_LARGEST_TABLE", largest_table)
        patch.setattr(chunks, "_FEW_ROWS", few_rows)
        patch.setattr(chunks, "_BATCH_ROWS", 50)
        patch.setattr(chunks, "_MOST_CHUNKS", most_chunks)
        for chunk in bundled(list_chunks(find_files(directory))):
            survey = survey_chunk(chunk)
            keys = [tuple(key.values()) for key in survey.keys.to_pylist()]
            places = np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)
            for key, count in zip(keys, survey.rows.tolist(), strict=True):
                counts[key] = counts.get(key, 0) + count
            control += survey.control.seq.tolist()
            sweeps += survey.sweeps.tolist()
            for batch in read_rows(chunk, places):
                rows += zip(*(column.tolist() for column in batch), strict=True)
    decided = [event for event in node.events if event["kind"] in ("request", "network", "mutation")]
    expected = kernel_rows(decided, lambda name: numbers[4, *name])
    assert sorted(rows) == list(zip(*(column.tolist() for column in expected), strict=True))
    assert sorted(control) == [event["seq"] for event in node.events if event["kind"] in CONTROL_KINDS]
    assert sweeps == sweeps_of(node.events).tolist()
    assert sum(counts.values()) == len(decided)


@pytest.mark.parametrize("few_rows", [0, 1 << 14])
def test_what_is_read_of_files_can_be_put_together(tmp_path, monkeypatch, few_rows):
    """Whether a column is null in all rows of one, and of another in none; in bundles, too."""
    monkeypatch.setattr(chunks, "_FEW_ROWS", few_rows)
    events = _node(1).events
    requests = [event for event in events if event["kind"] == "request" and event["network_ns"] is not None]
    parts = (requests[:1], [event | {"network_ns": None} for event in requests[1:3]], events)
    files = []
    for place, part in enumerate(parts):
        files.append(tmp_path / f"{place}.parquet")
        pq.write_table(pa.Table.from_pylist(part, schema=arrow_schema()), files[-1])
    names = ("kind", "seq", "network_ns")
    found = pa.concat_tables(
        [read_chunk(chunk, names) for chunk in [*list_chunks(files), *bundled(list_chunks(files))]]
    )
    assert len(found) == 2 * sum(map(len, parts))


def test_rows_out_of_order_are_put_in_order(tmp_path):
    """A file that somebody sorted otherwise is as good."""
    events = _node(1).events
    pq.write_table(pa.Table.from_pylist(events[::-1], schema=arrow_schema()), tmp_path / "x.parquet")
    (chunk,) = list_chunks([tmp_path / "x.parquet"])
    (rows,) = read_rows(chunk, np.arange(len(survey_chunk(chunk).keys)))
    assert (np.diff(rows.seq) > 0).all()


def test_a_file_that_changes_between_the_passes_is_refused(tmp_path):
    """Its clients are no longer those that were counted."""
    write_events(tmp_path, _node(1).events)
    chunk = list_chunks(find_files(tmp_path))[0]
    with pytest.raises(UsageFilesError, match="changed while it was read"):
        list(read_rows(chunk, np.array([0])))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "weather"}, "unknown kind 'weather' in 1 rows of"),
        ({"handler_ns": -1}, "handler_ns must be from 0"),
    ],
)
def test_of_files_that_are_read_together_the_bad_one_is_named(tmp_path, change, words):
    """Whether the first look finds it or the second."""
    events = _node(1).events
    events[next(place for place in range(100, 150) if events[place]["kind"] == "request")] |= change
    table = pa.Table.from_pylist(events, schema=arrow_schema())
    files = [tmp_path / f"{number}.parquet" for number in range(4)]
    for number, file in enumerate(files):
        pq.write_table(table[50 * number : 50 * number + 50], file)
    [bundle] = bundled(list_chunks(files))
    with pytest.raises(UsageFilesError) as caught:
        list(read_rows(bundle, np.arange(len(survey_chunk(bundle).keys))))
    assert words in str(caught.value)
    assert repr(str(files[2])) in str(caught.value)


def test_few_rows_are_read_together(monkeypatch):
    """As long as they are few and in few files; a large file is read by itself, and the order stays."""
    monkeypatch.setattr(chunks, "_MOST_CHUNKS", 3)
    given = [Chunk(f"{place}", 0, rows=rows) for place, rows in enumerate([9, 9, 9, 9, 1 << 14, 9, 1 << 20])]
    found = bundled(given)
    assert [chunk for bundle in found for chunk in bundle.chunks] == given
    assert [len(bundle.chunks) for bundle in found] == [3, 1, 1, 1, 1]
    assert [bundle.path for bundle in found[:2]] == ["0 or one of 2 after it", "3"]
    assert bundled([]) == []


def test_files_of_several_versions_are_read_together(tmp_path):
    """An older one lacks a column, which is null; in one of them a column may have no values at all."""
    table = pa.Table.from_pylist(_node(1).events, schema=arrow_schema())
    pq.write_table(table[:1].drop_columns(["lag_bytes"]), tmp_path / "a.parquet")
    pq.write_table(table[1:], tmp_path / "b.parquet")
    [bundle] = bundled(list_chunks([tmp_path / "a.parquet", tmp_path / "b.parquet"]))
    names = ("kind", "user", "client_id", "lag_bytes", "fetch_bytes", "seq")
    assert read_chunk(bundle, names).to_pylist() == table.select(names).to_pylist()


def test_a_file_that_vanishes_is_named(tmp_path):
    """Old files are compacted away while a long job reads."""
    with pytest.raises(UsageFilesError, match=r"gone\.parquet' was removed while it was read") as caught:
        survey_chunk(Chunk(str(tmp_path / "gone.parquet"), 0))
    assert caught.value.hint == "run the command again: compaction replaces files"


@pytest.mark.parametrize("kind", ["weather", ""])
def test_unknown_kinds_are_refused(tmp_path, kind):
    """A later version may record what changes decisions: nothing is dropped in silence."""
    events = _node(1).events
    for event in events[20:23]:
        event["kind"] = kind
    pq.write_table(pa.Table.from_pylist(events, schema=arrow_schema()), tmp_path / "x.parquet")
    (chunk,) = list_chunks([tmp_path / "x.parquet"])
    with pytest.raises(UsageFilesError, match=rf"^unknown kind '{kind}' in 3 rows of '.*x\.parquet'$"):
        survey_chunk(chunk)


@pytest.mark.parametrize("write_statistics", [True, False])
def test_runs_are_what_is_there(tmp_path, write_statistics):
    """From the statistics of a file or from its rows: holes split them; of imported rows they mean nothing."""
    events, path = _node(1).events, tmp_path / "x.parquet"

    def runs(events):
        table = pa.Table.from_pylist(events, schema=arrow_schema())
        pq.write_table(table, path, write_statistics=write_statistics)
        return survey_chunk(*list_chunks([path])).runs

    last = events[-1]["seq"]
    assert runs(events) == [Run(4, 1, last, START_MS, False)]
    assert runs([*events[:10], *events[15:]]) == [
        Run(4, 1, 10, START_MS, False),
        Run(4, 16, last, events[15]["ts_ms"], False),
    ]
    imported = [event | {"seq": event["ts_ms"] * 1000 * SEQ_PER_US} for event in events[:10]]
    assert [run[3:] for run in runs(imported)] == [(START_MS, True, False)]


def test_a_gap_knows_when_the_next_row_came(tmp_path):
    """Up to then events may have been lost; None where that row is in another chunk."""
    node = RecordingNode(4)
    node.gap(START_MS)
    node.expire(START_MS + 70)
    node.gap(START_MS + 80)
    pq.write_table(pa.Table.from_pylist(node.events, schema=arrow_schema()), tmp_path / "x.parquet")
    control = survey_chunk(*list_chunks([tmp_path / "x.parquet"])).control
    assert [gap[NEXT_TS_MS] for gap in control.of_kinds("gap")] == [START_MS + 70, None]


def test_a_gap_knows_its_own_node_only(tmp_path):
    """Another node's rows may have any `seq`."""
    found = []
    for node_id in (4, 5):
        node = RecordingNode(node_id)
        for number in range(3):
            node.gap(START_MS + 100 * number + node_id)
        found += node.events
    pq.write_table(pa.Table.from_pylist(found, schema=arrow_schema()), tmp_path / "x.parquet")
    control = survey_chunk(*list_chunks([tmp_path / "x.parquet"])).control
    expected = [START_MS + 104, START_MS + 204, None, START_MS + 105, START_MS + 205, None]
    assert [gap[NEXT_TS_MS] for gap in control.of_kinds("gap")] == expected


def test_rows_of_tags_count_that_say_something(tmp_path):
    """There may be as many as requests, and most say again what is known; a gap makes all news."""
    node = RecordingNode(4)
    node.start(START_MS)
    node.exchange(OwnRules(), "a:Callback", START_MS)
    for segment in range(5):
        if segment == 3:
            node.gap(START_MS)
        for number in range(4):
            node.produce("alice", f"c{number}", 1, START_MS)
        node.segment()
    said = [event["seq"] for event in node.events if event["kind"] == "tags"]
    pq.write_table(pa.Table.from_pylist(node.events[::-1], schema=arrow_schema()), tmp_path / "x.parquet")
    [chunk] = list_chunks([tmp_path / "x.parquet"])
    assert survey_chunk(chunk).control.of_kinds("tags") == []
    found = [event["seq"] for event in survey_chunk(chunk, with_answers=True).control.of_kinds("tags")]
    assert found == [*said[:8], *said[24:32]]
    assert len(said) == 40
    assert len(survey_chunk(chunk).keys) == 4


def test_connections_are_surveyed_with_their_clients(tmp_path):
    """Each pair once, where it is asked for; and how clients send, by their software."""
    node = RecordingNode()
    node.start(START_MS)
    software = ("librdkafka", "apache-kafka-java", "")
    for number in range(12):
        event = node.produce("alice", f"c{number % 2}", 10, START_MS + number)
        event |= {"connection_id": 2**60 + number % 3, "client_software": software[number % 3]}
    write_events(tmp_path, node.events)
    (chunk,) = list_chunks(find_files(tmp_path))
    survey = survey_chunk(chunk, with_connections=True)
    names = survey.keys["client_id"].to_pylist()
    pairs = {(names[place], connection_id) for place, connection_id in survey.connections.tolist()}
    assert pairs == {(f"c{client}", 2**60 + number) for client in range(2) for number in range(3)}
    assert (len(survey.connections), len(survey_chunk(chunk).connections)) == (6, 0)
    (rows,) = read_rows(chunk, np.arange(2), with_software=True)
    java = layout.PIPELINES | layout.READS_AHEAD
    bits = [java | layout.SENDS_ON, java, 0]
    assert (rows.flags - layout.PRODUCE_CHARGE).tolist() == bits * 4


@pytest.mark.parametrize("few_rows", [0, 1 << 14])
def test_a_file_is_opened_once_a_pass(tmp_path, monkeypatch, few_rows):
    """To be listed, to be surveyed, and for its rows: of many small files each opening is most of the time."""
    opened = []
    for module in (chunks, ingest):
        real = module.opened_parquet
        monkeypatch.setattr(
            module,
            "opened_parquet",
            lambda name, real=real, **options: opened.append(name) or real(name, **options),
        )
    monkeypatch.setattr(chunks, "_FEW_ROWS", few_rows)
    write_events(tmp_path, _node(1).events)
    (chunk,) = list_chunks(find_files(tmp_path)[:1])
    survey = survey_chunk(chunk, with_connections=True, with_answers=True)
    assert len(survey.control.seq)
    assert sum(len(rows.seq) for rows in read_rows(chunk, np.arange(len(survey.keys)))) == survey.rows.sum()
    assert opened == [chunk.path] * 3


def test_columns_that_are_all_null_are_not_read(tmp_path):
    """Nor are those missed that are null in one row group only."""
    table = pa.Table.from_pylist(_node(1).events, schema=arrow_schema())
    place = table.column_names.index("produce_bytes")
    first = table.slice(0, 200).set_column(place, table.field(place), pa.nulls(200, pa.int64()))
    with pq.ParquetWriter(tmp_path / "x.parquet", arrow_schema()) as writer:
        writer.write_table(first)
        writer.write_table(table.slice(200))
    wanted = ["produce_bytes", "quota_user", "kind", "quota_value", "seq"]
    for chunk, expected in zip(list_chunks([tmp_path / "x.parquet"]), (first, table.slice(200)), strict=True):
        assert repr(read_chunk(chunk, wanted).to_pylist()) == repr(expected.select(wanted).to_pylist())


def _footer_changed(path, found, other):
    before, footer = path.read_bytes().rpartition(b"PAR1")[0], pq.read_metadata(path).serialized_size
    path.write_bytes(before[: -footer - 4] + before[-footer - 4 :].replace(found, other) + b"PAR1")


@pytest.mark.parametrize("few_rows", [0, 1 << 14])
def test_statistics_of_another_type_are_damage(tmp_path, monkeypatch, few_rows):
    """Columns of INT64 whose footer says DOUBLE: Arrow would end the process."""
    monkeypatch.setattr(chunks, "_FEW_ROWS", few_rows)
    write_events(tmp_path, _node(1).events)
    path = find_files(tmp_path)[0]
    (chunk,) = list_chunks([path])
    _footer_changed(path, b"\x15\x04\x19", b"\x15\x0a\x19")
    with pytest.raises(UsageFilesError, match="its data is damaged"):
        survey_chunk(chunk)
    with pytest.raises(UsageFilesError, match="is not a usable Parquet file"):
        list_chunks([path], from_ms=START_MS + 1)


def test_names_that_are_not_utf8_are_damage(tmp_path):
    """Also where they are the names of columns."""
    write_events(tmp_path, _node(1).events)
    path = find_files(tmp_path)[0]
    (chunk,) = list_chunks([path])
    _footer_changed(path, b"client_host", b"client_h\xffst")
    with pytest.raises(UsageFilesError, match="is not a usable Parquet file"):
        list_chunks([path])
    with pytest.raises(UsageFilesError, match="its data is damaged"):
        read_chunk(chunk, ["seq"])


def test_a_name_that_is_not_in_its_dictionary_is_damage(tmp_path):
    """In a file without checksums, as earlier versions wrote them."""
    table = pa.Table.from_pylist(_node(1).events, schema=arrow_schema()).slice(0, 8)
    names = pa.array(["a", "b", "c", "d", "e", "a", "a", "a"])
    table = table.set_column(table.column_names.index("client_id"), "client_id", names)
    pq.write_table(table, tmp_path / "x.parquet", compression="none", use_dictionary=["client_id"])
    (chunk,) = list_chunks([tmp_path / "x.parquet"])
    places = b"\x03\x03" + sum(place << 3 * place for place in range(5)).to_bytes(3, "little")
    data = (tmp_path / "x.parquet").read_bytes()
    assert data.count(places) == 1
    assert read_chunk(chunk, ["client_id"])["client_id"].to_pylist() == names.to_pylist()
    (tmp_path / "x.parquet").write_bytes(data.replace(places, b"\x03\x03" + b"\xff" * 3))
    with pytest.raises(UsageFilesError, match="its data is damaged"):
        read_chunk(chunk, ["client_id"])


@pytest.mark.parametrize(("seq", "twice"), [([6, 7, 7, 8], 7), ([5, 6], 5), ([7, 6], 6)])
def test_rows_come_one_after_another(seq, twice):
    """Those of a node, also after what came before; the first that does not is named."""
    check_rising(np.array([6, 7, 9]), after=5, node_id=3)
    with pytest.raises(UsageFilesError, match=f"^seq {twice} of node 3 occurs twice$") as caught:
        check_rising(np.array(seq), after=5, node_id=3)
    assert caught.value.hint == "remove the second copy of a file, or give each node its own id"
