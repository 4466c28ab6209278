"""What a report says, of records that say something and of such that say nothing."""

import json
import tracemalloc
from dataclasses import replace
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.replaying.callbacks import quota_groups
from tests.replaying.files import write_events
from tests.replaying.logs import START_MS, random_traffic
from tests.replaying.node import RecordingNode

from tidegate.pipeline.page.findings import run_jobs, wanted_entities
from tidegate.pipeline.page.html import report_html
from tidegate.pipeline.page.sections import report_facts, report_sections
from tidegate.pipeline.proposals.wanted import Wanted
from tidegate.pipeline.read.ingest import open_usage
from tidegate.pipeline.record import jobs_here
from tidegate.pipeline.replay.plan import Plan, in_force_plan
from tidegate.pipeline.report.text import count_text, duration_text
from tidegate.pipeline.results.table_rows import TableRows
from tidegate.quota import QuotaRecord
from tidegate.quota.admin.groups import Groups

HOSTILE = "</script>\u202e\x1b[2J" + "x" * 32_000


def _limit(client_id, bound):
    return QuotaRecord(entity=(("client-id", client_id),), key="producer_byte_rate", value=bound)


def _sections(directory, plans=()):
    with open_usage(directory) as files:
        found = run_jobs(jobs_here(files), plans, rows=files.rows, with_limits=True, with_recommendation=True)
    return {section.anchor: section for section in report_sections(found)}, report_facts(found)


@pytest.fixture
def usage(tmp_path):
    """Somebody with a hostile name and a limit, throttled from the second request on."""
    node = RecordingNode(3)
    node.start(START_MS, records=[_limit(HOSTILE, 100.0)])
    for second in (*range(5), *range(10, 310, 3)):
        node.produce("alice", HOSTILE, 2000 if second < 5 else 1, START_MS + 1000 * second)
    write_events(tmp_path, node.events)
    return tmp_path


def test_a_report_finds_what_each_job_finds(tmp_path):
    """A proposal and a replay of the same placed rows are those of rows that were placed for each."""
    node = RecordingNode(1)
    node.start(START_MS)
    random_traffic(node, Random(5), events=1500)
    write_events(tmp_path, node.events)
    plans = [in_force_plan(), Plan(name="low", records=(_limit("a", 100.0),), is_closed=True)]
    with open_usage(tmp_path) as files:
        jobs = jobs_here(files)
        proposal, replay = jobs.recommend_and_replay(Wanted(force=True), plans, take=lambda found: found)
        alone, expected = (
            jobs.recommend(None, Wanted(force=True), only_throttled=True),
            jobs.replay(plans, out=None),
        )
    for name in ("entities", "nodes", "outcomes"):
        assert getattr(proposal, name).table.equals(getattr(alone, name).table), name
    assert replace(proposal, entities=(), nodes=(), outcomes=()) == replace(
        alone, entities=(), nodes=(), outcomes=()
    )
    assert len(alone.entities) > 3
    assert repr(replay.entities.table.to_pylist()) == repr(expected.entities.table.to_pylist())  # has a NaN
    assert replay.unmatched == expected.unmatched


def test_obedience_is_the_same_whether_its_tables_are_written_or_not(tmp_path):
    """Without a table of clients, these are counted some at a time."""
    node = RecordingNode(1)
    node.start(START_MS)
    random_traffic(node, Random(6), events=800)
    write_events(tmp_path / "usage", node.events)
    with open_usage(tmp_path / "usage") as files:
        jobs = jobs_here(files)
        found = jobs.obedience(out=None)
        assert found == jobs.obedience(out=tmp_path / "out")
    assert sum(row["clients"] for row in found.libraries) > 3


def test_everything_has_its_section(usage):
    """In order, with facts, and all as plain JSON."""
    texts = {("producer_byte_rate", 1e9): "1GB"}
    plan = Plan(name="loose", records=(_limit(HOSTILE, 1e9),), limit_texts=texts)
    sections, facts = _sections(usage, [plan])
    assert list(sections) == [
        "what-to-do",
        "clients",
        "apis",
        "over-time",
        "throttles",
        "plans",
        "limits",
        "recommendation",
        "obedience",
        "not-exact",
    ]
    assert dict(facts)["broker"] == "3"
    [waited, plan, proposed, how] = sections["what-to-do"].sentences
    assert waited.startswith(
        "1 of 2 entities were throttled. Longest total throttle times: client-id=</script>\\u202e\\x1b[2Jx…"
    )
    assert proposed.startswith("Proposed quotas, per second and broker: a default of produce ")
    assert proposed.endswith("In a forecast for this record they throttle no client.")
    assert "tidegate quotas apply" in how
    assert (
        plan
        == "Plan loose throttles no client. It does not throttle 1 entity that the record shows as throttled."
    )
    [chart] = sections["over-time"].charts
    assert "Node 3, limit 100 B/s." in chart.description
    assert "Dots: the limits of plans, loose 1 GB/s." in chart.description
    assert "Marks at the bottom: times with throttled requests." in chart.description
    [plans] = sections["plans"].charts
    assert "1GB/s (client-id)" in {row[1] for row in plans.table.cells()}
    [heat] = sections["throttles"].charts
    assert len(heat.table.rows) >= 4
    [limits] = sections["limits"].tables
    assert [row[0] for row in limits.cells()] == ["produce", "produce", "request", "request"]
    assert limits.cells()[1][1] == "<default>, for the only entity"
    [quotas] = sections["recommendation"].tables
    assert [row[:2] for row in quotas.cells()] == [["client-id=<default>", "64KiB (floor)"]]
    assert quotas.cells()[0][-1].startswith("produce: the only one is client-id=</script>\\u202e")
    said = sections["recommendation"].sentences
    assert "In a replay of the record, these quotas throttle no client." in said
    assert any(
        sentence.startswith("Throttled when recorded, so that") and " of 105 requests, " in sentence
        for sentence in said
    )
    assert [row[:1] for row in sections["obedience"].tables[0].cells()] == [["(unknown)"]]
    json.dumps([chart.spec for section in sections.values() for chart in section.charts], allow_nan=False)


def test_topics_and_apis_have_their_sections(tmp_path):
    """The topics with most bytes, what belongs to requests with several, and what is unknown."""
    node = RecordingNode(3)
    node.start(START_MS)
    topics = [("orders", 0), (HOSTILE, 2), (None, None)]
    for number, (topic, others) in enumerate(topics):
        event = node.produce("alice", "app", 1000 - number, START_MS + 1000 * number)
        event |= {"topic": topic, "other_topics": others}
    write_events(tmp_path, node.events)
    sections, _ = _sections(tmp_path)
    assert [*sections][1:4] == ["clients", "topics", "apis"]
    [table] = sections["topics"].tables
    assert [row[0][:9] for row in table.cells()] == ["orders", "</script>", "(unknown)"]
    assert [row[-2:] for row in table.cells()] == [["0", "0 B"], ["1", "999 B"], ["0", "0 B"]]
    _, several, unknown = sections["topics"].sentences
    assert several.startswith("Records of several topics are in 1 request with 999 B: ")
    assert unknown.startswith("1 request of unknown topics")
    [table] = sections["apis"].tables
    assert [row[0] for row in table.cells()] == ["Produce"]


def test_no_name_is_longer_than_a_line_or_turns_the_page(usage):
    """32 KB, a mark that turns the direction of writing, an escape sequence, the end of a script."""
    sections, facts = _sections(usage)
    page = report_html(title="t", facts=facts, sections=[*sections.values()], made_by="m")
    body = page[: page.index("/*!")]
    assert len(body) < 100_000
    assert "\u202e" not in body
    assert "\x1b" not in body
    assert body.count("</script>") == 1  # of the data


def test_a_record_of_nothing_makes_a_page(tmp_path):
    """No client, no chart; what there is is said."""
    node = RecordingNode()
    node.start(START_MS)
    write_events(tmp_path, node.events)
    sections, _ = _sections(tmp_path)
    assert list(sections) == ["what-to-do", "clients", "recommendation", "obedience", "not-exact"]
    assert sections["recommendation"].sentences[0].startswith("No quotas are proposed: nothing to recommend")
    [throttled, used, proposed] = sections["what-to-do"].sentences
    assert (throttled, used) == ("No client was throttled.", "No client sent a request.")
    assert proposed.startswith("No quotas are proposed: ")


def test_a_limit_that_is_no_number_is_shown(tmp_path):
    """Kafka takes any double."""
    node = RecordingNode()
    node.start(START_MS, records=[_limit("a", float("nan"))])
    node.produce("u", "a", 10, START_MS)
    write_events(tmp_path, node.events)
    sections, facts = _sections(tmp_path)
    report_html(title="t", facts=facts, sections=[*sections.values()], made_by="m")


def test_the_limit_of_a_group_is_shown(tmp_path):
    """By its name and height; it is of no entity."""
    node = RecordingNode()
    node.start(START_MS)
    node.produce("alice", "a", 30_000, START_MS)
    node.produce("bob", "b", 30_000, START_MS + 100)
    write_events(tmp_path, node.events)
    members = {("user", "alice"): "etl", ("user", "bob"): "etl"}
    groups = Groups(members=members, limits={("etl", "producer_byte_rate"): 1024.0})
    sections, facts = _sections(tmp_path, [Plan(name="shared", records=(), groups=groups)])
    page = report_html(title="t", facts=facts, sections=[*sections.values()], made_by="m")
    assert "group=etl (produce)" in page
    assert "1 KiB/s" in page
    [clients] = sections["clients"].charts
    headings = [column.heading for column in clients.table.columns]
    rows = [dict(zip(headings, cells, strict=True)) for cells in clients.table.cells()]
    assert {(row["throttled"], row["delay"]) for row in rows} == {("never", "–")}
    assert "(None)" not in page


def test_what_is_missing_or_unknown_is_said(tmp_path):
    """A gap, and a quota callback."""
    node = RecordingNode()
    node.start(START_MS)
    node.exchange(quota_groups(), "a:Groups", START_MS)
    node.produce("u", "a", 10, START_MS)
    node.gap(START_MS + 1)
    write_events(tmp_path, node.events)
    sections, _ = _sections(tmp_path)
    said = " ".join(sections["not-exact"].sentences)
    assert "client.quota.callback.class=a:Groups was set" in said
    assert "Node 1 lost 1 event before" in said
    [throttled, used, proposed] = sections["what-to-do"].sentences
    assert throttled == "No client was throttled."
    assert used.startswith("1 client sent requests. Most bytes were produced and fetched by u / a: ")
    assert proposed.startswith("No quotas are proposed: ")


def test_a_report_makes_rows_of_the_shown_entities_only(tmp_path):
    """The page shows some of 50,000 entities, and adds up the others, which never become rows."""
    node = RecordingNode(3)
    node.start(START_MS)
    for second in range(20):
        node.produce("alice", "a", 2000, START_MS + 1000 * second)
    write_events(tmp_path, node.events)
    default = QuotaRecord(entity=(("client-id", None),), key="producer_byte_rate", value=100.0)
    plan = Plan(name="tight", records=(default,))
    with open_usage(tmp_path) as files:
        found = run_jobs(jobs_here(files), [plan], rows=files.rows)
    replayed = {name: _with_many_clients(rows, 50_000) for name, rows in found.replayed.items()}
    found = replace(found, replayed=replayed)
    shown, shown_bytes = _traced(lambda: report_sections(found))
    wanted, wanted_bytes = _traced(lambda: wanted_entities(replayed["in force"], []))
    _, all_bytes = _traced(lambda: [*replayed["tight"]])
    assert max(shown_bytes, wanted_bytes) < all_bytes / 5
    assert len(wanted.entities) == 20
    sections = {section.anchor: section for section in shown}
    [chart] = sections["plans"].charts
    rows = sorted(replayed["tight"], key=lambda row: (-row["throttle_ms"], -row["requests"]))
    assert chart.table.rows == rows[:50]
    assert chart.table.caption == f"Plan tight, 50 of {count_text(len(rows))} entities"
    others = rows[50:]
    assert sections["plans"].sentences[0] == (
        f"tight: {count_text(len(others))} more entities, not shown: "
        f"{count_text(sum(row['requests'] for row in others))} requests, "
        f"{duration_text(sum(row['throttle_ms'] for row in others))} of throttle time, 0 ms when recorded"
    )
    throttled = sum(bool(row["throttle_ms"]) for row in rows)
    assert f"Plan tight throttles {count_text(throttled)} of " in sections["what-to-do"].sentences[1]


def _with_many_clients(rows, count):
    """Return the rows once for each of many client ids, each with another throttle time."""
    table = rows.table
    place = np.repeat(np.arange(count), len(table))
    many = table.take(np.tile(np.arange(len(table)), count))
    throttle_ms = pc.if_else(pc.greater(many["throttle_ms"], 0), pa.array(place * 7919 % count), 0)
    names = pa.array([f"client-{number}" for number in place.tolist()])
    columns = {"entity_client_id": names, "throttle_ms": throttle_ms}
    for name, values in columns.items():
        many = many.set_column(many.column_names.index(name), name, values)
    return TableRows(many)


def _traced(function):
    """Return what a function returns, and the most bytes that it held."""
    tracemalloc.start()
    try:
        return function(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
