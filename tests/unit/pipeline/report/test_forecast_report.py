"""What is said of a forecast."""

from tidegate.pipeline.report.forecast_report import forecast_notes


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
    assert first == "p: closed loop, a forecast: who is throttled comes later"
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
