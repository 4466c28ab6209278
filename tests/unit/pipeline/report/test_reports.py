"""The tables that are printed."""

import io

import pytest
from rich.console import Console

from tidegate.pipeline.replay.plan import IN_FORCE
from tidegate.pipeline.report.replay_report import replay_notes, replay_table
from tidegate.pipeline.report.usage_report import usage_table
from tidegate.pipeline.schemas import REPLAY_BY_ENTITY, USAGE_BY_CLIENT


def _printed(table):
    out = io.StringIO()
    Console(file=out, width=200, highlight=False).print(table)
    return out.getvalue()


def _lines(table):
    return [line.split() for line in _printed(table).splitlines()]


def _entity(**columns):
    row = dict.fromkeys(REPLAY_BY_ENTITY.names, 0)
    row |= {
        "plan": "p",
        "quota_type": "Produce",
        "entity_user": None,
        "entity_client_id": None,
        "bound": None,
    }
    row |= {"first_throttled_ts_ms": None, "recorded_first_throttled_ts_ms": None}
    return row | columns


def test_replay_table_shows_what_would_have_been_and_what_was():
    """Count, share, total and longest delay, first time, share delayed; then what was recorded."""
    row = _entity(
        entity_user="alice", bound=1048576.0, requests=1000, amount=4000, throttled_requests=250, throttle_ms=90_000,
        longest_throttle_ms=1500, first_throttled_ts_ms=1_700_000_000_000, delayed_amount=1000,
        recorded_throttled_requests=10, recorded_throttle_ms=700,
    )  # fmt: skip
    cells = "produce user=alice 1.0 MiB/s 1,000 250 (25.0%) 1m30s 1.5 s 2023-11-14 22:13:20 25.0% 10 (1.0%) 700 ms"
    assert cells.split() in _lines(replay_table("p", [row], top=10))


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"quota_type": "Request", "entity_client_id": "c1", "bound": 12.5}, "request client-id=c1 12.5 %"),
        (
            {"quota_type": "Fetch", "entity_user": "a", "entity_client_id": "c"},
            "fetch user=a client-id=c none",
        ),
        ({"quota_type": "ControllerMutation", "bound": 2.0, "rejected_mutations": 7}, "mutation – 2/s"),
    ],
)
def test_entities_and_limits_are_shown_in_their_units(columns, expected):
    """Percent for thread time, a rate for mutations, none where nothing limits."""
    assert expected in " ".join(
        " ".join(line) for line in _lines(replay_table("p", [_entity(**columns)], top=1))
    )


def test_refusals_are_shown_where_there_are_any():
    """The column is left out of tables without them."""
    assert "refused" not in _printed(replay_table("p", [_entity()], top=1))
    assert "refused" in _printed(replay_table("p", [_entity(recorded_rejected_mutations=1)], top=1))


def test_replay_table_is_cut_after_the_longest_delays():
    """Who would have waited longest comes first; the title says how many there are."""
    rows = [_entity(entity_user=f"u{number}", throttle_ms=number) for number in range(5)]
    text = _printed(replay_table("p", rows, top=2))
    assert text.index("user=u4") < text.index("user=u3")
    assert "user=u2" not in text
    assert "(the first 2 of 5 entities)" in text


def test_names_of_clients_cannot_write_to_the_terminal():
    """Control characters and markup in a client id are shown, not obeyed."""
    row = _entity(entity_client_id="[red]x\x1b[2J")
    assert r"client-id=[red]x\x1b[2J" in _printed(replay_table("p", [row], top=1))


def test_notes_tell_what_the_table_does_not():
    """How many decisions were checked, capped, or not counted."""
    row = _entity(requests=10, different_decisions=1, capped_fetches=2, warming_up_requests=3)
    assert replay_notes(IN_FORCE, [row], in_force=True) == [
        "in force: 9 of 10 decisions as recorded",
        "in force: 2 fetches were larger than this plan allows and were replayed at its cap",
        "in force: 3 decisions not counted: before the first start, or too soon after lost events",
    ]
    assert replay_notes("p", [_entity(requests=10, different_decisions=1)], in_force=False) == []


def test_usage_table_shows_each_client():
    """Requests, share throttled, bytes and peaks, thread time, mutations, throttle time."""
    row = dict.fromkeys(USAGE_BY_CLIENT.names, 0) | {
        "user": "alice", "client_id": "", "requests": 200, "throttled_requests": 1, "produce_bytes": 2048,
        "peak_produce_bytes_per_second": 1024, "handler_ns": 3_000_000, "network_ns": 1_000_000, "mutations": 5,
        "produce_throttle_ms": 1000, "request_throttle_ms": 500,
    }  # fmt: skip
    text = "alice '' 200 0.5% 2.0 KiB 1.0 KiB 0 B 0 B 4 ms 5 1.5 s"
    assert text.split() in _lines(usage_table([row], clients=1))


def test_usage_table_says_how_many_clients_there_are():
    """A cut table tells so in its title."""
    row = dict.fromkeys(USAGE_BY_CLIENT.names, 0) | {"user": "a", "client_id": "b"}
    assert "(the 1 with most bytes of 1,234)" in _printed(usage_table([row], clients=1234))
