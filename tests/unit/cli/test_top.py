"""The table of `tidegate top`: 80 columns, whatever the names and numbers."""

import pytest
from rich.cells import cell_len

from tidegate.cli.main import main
from tidegate.cli.top import table_lines

COUNTS = {"Produce": {"entities": 3, "omitted": 0}, "Request": {"entities": 1, "omitted": 0}}


def entity(**values):
    """Return an entity of a document, with these values."""
    usual = {
        "quota_type": "Produce", "user": "", "client_id": "loader", "unit": "bytes per second", "limit": 1000.0,
        "rate": 500.0, "utilization": 0.5, "throttle_time_ms": 0, "throttled_connections": 0,
        "throttled_until_ms": None, "reason": None,
    }  # fmt: skip
    return {**usual, **values}


def document(*entities):
    """Return a document with these entities."""
    return {
        "format": 1,
        "node_id": 1,
        "time_ms": 1_700_000_000_000,
        "quota_types": COUNTS,
        "entities": list(entities),
    }


def test_a_line_for_each_entity():
    """Name, quota, rate, limit, share and throttles."""
    throttled = entity(throttled_connections=2, throttled_until_ms=1_700_000_009_000, utilization=2.0)
    percent = entity(
        quota_type="Request", user="alice", client_id="", unit="percent of one thread", rate=12.5
    )
    first, blank, _, _, *lines = table_lines(document(throttled, percent), 20)
    assert first.endswith(" · node 1 · 4 entities, 1 throttled")
    assert blank == ""
    assert lines[0].split() == [
        "loader",
        "Produce",
        "500",
        "B",
        "1000",
        "B",
        "200",
        "%",
        "2",
        "to",
        lines[0][-8:],
    ]
    assert lines[1].split() == ["alice", "Request", "12.5", "%", "1000", "%", "50", "%"]
    assert lines[2] == "… and 2 more"


def test_observed_clients_are_not_shown_as_throttled():
    """A client over its limit that is only observed, one within it, and one that is still muted."""
    over = entity(observed=True, throttle_time_ms=1134, utilization=1.1)
    within = entity(observed=True)
    far_over = entity(observed=True, throttle_time_ms=2**31 - 1, utilization=1e9, user="u" * 99)
    muted = entity(
        observed=True, throttle_time_ms=5, throttled_connections=1, throttled_until_ms=1_700_000_009_000
    )
    first, *lines = table_lines(document(over, within, far_over, muted), 20)
    assert first.endswith(", 1 throttled, 2 would be (observed)")
    assert lines[3].endswith("  110 % observed, 1.1 s")
    assert lines[4].endswith("   50 % observed")
    assert lines[5].endswith(" observed, >99 s")
    assert max(map(len, lines)) <= 80
    assert " % 1 to " in lines[6]


def test_only_the_first_are_shown():
    """And the number of the others."""
    lines = table_lines(document(*(entity(client_id=f"c{number}") for number in range(4))), 3)
    assert [line.split()[0] for line in lines[4:]] == ["c0", "c1", "c2", "…"]
    assert lines[-1] == "… and 1 more"


def test_no_entity_is_said():
    """With what makes one."""
    assert "no usage yet: a client appears when" in table_lines(document(), 20)[-1]


def test_the_widest_line_has_80_columns():
    """Long names are cut; no name writes to the terminal."""
    widest = entity(
        quota_type="ControllerMutation", user="u" * 300, client_id="\x1b[2J\n" * 100, rate=1023.9 * 1024**4,
        limit=1023.9 * 1024**4, utilization=None, throttled_connections=9999, throttled_until_ms=1_700_000_000_000,
    )  # fmt: skip
    lines = table_lines(document(widest, entity(utilization=1e300)), 20)
    assert max(map(len, lines)) <= 80
    assert all(line.isprintable() for line in lines)
    assert ">999 %" in lines[5]


def test_wide_characters_take_two_columns():
    """Names in Chinese or Japanese are cut to the columns that they take, and leave the others where they are."""
    lines = table_lines(
        document(entity(user="注文サービス", client_id="在庫管理システム"), entity(user="a")), 20
    )[2:]
    assert max(map(cell_len, lines)) <= 80
    assert "注文…ビス" in lines[2]
    assert {cell_len(line.partition(" Produce ")[0]) for line in lines[2:4]} == {25}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["top", "--metrics", "ftp://x"], "expected http://HOST:PORT or https://HOST:PORT, got 'ftp://x'"),
        (
            ["top", "--metrics", "http://a:b@x"],
            "expected http://HOST:PORT or https://HOST:PORT, got 'http://a:b@x'",
        ),
        (
            ["top", "--metrics", "http://x:99999"],
            "expected http://HOST:PORT or https://HOST:PORT, got 'http://x:99999'",
        ),
        (
            ["explain", "--metrics", "http://x/other"],
            "expected http://HOST:PORT or https://HOST:PORT, got 'http://x/other'",
        ),
        (["top", "--every", "0"], "expected a number of seconds from 0.1 to 3600, got '0'"),
    ],
)
def test_wrong_options_are_refused(arguments, error, capsys):
    """With a hint."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert error in capsys.readouterr().err
