"""The notes below the tables: forecasts, decisions, entries that match no client, missing rows."""

from tests.unit.pipeline.report.rows import outcome

from tidegate.pipeline.read.missing import Missing
from tidegate.pipeline.replay.plan import IN_FORCE
from tidegate.pipeline.replay.unmatched import Unmatched
from tidegate.pipeline.report.notes import forecast_notes, missing_notes, replay_notes, unmatched_notes


def _row(waited_ms, **columns):
    row = {"quota_type": "Produce", "entity_user": None, "entity_client_id": "loader", "waited_ms": waited_ms}
    row["entity_tags"] = None
    row |= {"longest_wait_ms": 2000, "last_ts_ms": 70_000, "recorded_last_ts_ms": 10_000, "sent_again": 0}
    return row | columns


def test_open_loop_says_so():
    """Nobody takes it for a forecast."""
    assert forecast_notes("p", [], is_closed=False, top=5) == ["p: open loop, all times as recorded"]


def test_a_forecast_says_who_waits_and_how_late_they_end():
    """Those that wait longest first, no more than were asked for, in lines of 80 columns."""
    rows = [_row(0), _row(65_000), _row(90_000, quota_type="Fetch", entity_user="a", sent_again=3)]
    first, *sentences = forecast_notes("p", rows, is_closed=True, top=2)
    assert first == "p: closed loop, a forecast: throttled clients send later"
    assert sentences == [
        "  fetch user=a client-id=loader: waits 1m30s, 2.0 s at most, ends 1m00s later, 3 sent again",
        "  produce client-id=loader: waits 1m05s, 2.0 s at most, ends 1m00s later",
    ]
    assert forecast_notes("p", rows, is_closed=True, top=1) == [first, sentences[0]]


def test_a_group_waits_by_its_name():
    """It has neither user nor client id."""
    row = _row(65_000, entity_client_id=None, entity_tags='{"group":"etl"}')
    assert forecast_notes("p", [row], is_closed=True, top=1)[1].startswith("  produce group=etl: waits 1m05s")


def test_how_late_they_end_is_a_range_where_the_record_does_not_tell():
    """From the earliest to the latest of the three forecasts."""
    row = _row(65_000, last_ts_ms_low=40_000, last_ts_ms_high=70_000)
    assert forecast_notes("p", [row], is_closed=True, top=1)[1].endswith("ends 30.0 s–1m00s later")


def test_notes_tell_what_the_tables_do_not():
    """How many decisions were checked, and capped."""
    columns = {"approximate_requests": 4, "approximate_after_gap": 3, "approximate_cold_start": 1}
    row = outcome(requests=10, different_decisions=1, capped_fetches=2, **columns)
    assert replay_notes(IN_FORCE, [row], in_force=True) == [
        "in force: 5 of 6 decisions as recorded",
        "in force: 2 fetches were larger than the plan allows; the replay uses the plan's maximum size",
        "in force: 3 decisions are approximate: earlier events were lost (gap)",
        "in force: 1 decision is approximate: the usage before the record is unknown (cold start)",
    ]
    row = outcome(requests=1, approximate_requests=1)
    assert replay_notes(IN_FORCE, [row], in_force=True) == [
        "in force: no decision can be compared with the record"
    ]
    assert replay_notes("p", [outcome(requests=10, different_decisions=1)], in_force=False) == []


def test_entries_for_nobody_are_named_with_what_to_do():
    """A misspelt name, a user where nobody has logged in, a pair that never is; the first ten."""
    entity = (("client-id", None), ("user", "alice\x1b[2J"))
    entries = [
        Unmatched(plan="p", entity=(("client-id", "loadr"),), kind="client-id", nearest="loader"),
        Unmatched(plan="p", entity=entity, kind="user", no_users=True),
        Unmatched(plan="p", entity=(("client-id", "c"), ("user", "u"))),
        Unmatched(plan="q", entity=(("client-id", "c"), ("user", "u"))),
        *[Unmatched(plan="p", entity=(("user", f"u{number}"),), kind="user") for number in range(20)],
    ]
    notes = unmatched_notes(entries)
    assert notes[:3] == [
        "p: client-id=loadr matches no client in the record; did you mean loader?",
        r"p: user=alice\x1b[2J client-id=<default> matches no client in the record: its only user is ANONYMOUS, "
        "because no client has logged in; set quotas by client-id, or configure authentication",
        "p, q: user=u client-id=c matches no client in the record: both names exist, but never together",
    ]
    assert notes[-1] == "13 more entities match no client"


def test_missing_rows_are_named_with_their_place():
    """Lost events with their number, missing files, and the unknown usage before the record if it matters."""
    places = [
        Missing(node_id=1, seq=9, ts_ms=0, reason="gap", lost_events=1),
        Missing(node_id=2, seq=9, ts_ms=0, reason="gap", lost_events=None),
        Missing(node_id=3, seq=9, ts_ms=0, reason="missing rows", lost_events=None),
        Missing(node_id=4, seq=9, ts_ms=0, reason="cold start", lost_events=None),
    ]
    first = [
        "node 1 lost 1 event before 1970-01-01 00:00:00 UTC (gap)",
        "node 2 lost events before 1970-01-01 00:00:00 UTC (gap)",
        "rows of node 3 are missing before 1970-01-01 00:00:00 UTC (missing file)",
    ]
    assert missing_notes(places, with_cold_starts=False) == first
    cold = "the usage of node 4 before 1970-01-01 00:00:00 UTC is unknown (cold start)"
    assert missing_notes(places, with_cold_starts=True) == [*first, cold]
    assert missing_notes(places * 2, with_cold_starts=False)[-1] == "rows are missing in 1 more place"
