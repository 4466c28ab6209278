"""Lines of the request log: what is taken, and what is said of one that cannot be read."""

import json
from datetime import UTC
from zoneinfo import ZoneInfo

import pytest
from tests.unit.kafka_log.samples import line

from tidegate.kafka_log.line import LineError, LineReader, OtherFormatError

AT_S = 1_795_254_177  # 2026-11-21 09:42:57 UTC


@pytest.mark.parametrize(
    ("time", "at_us", "whole_ms"),
    [
        ("2026-11-21 09:42:57", 0, True),
        ("2026-11-21 09:42:57,018", 18_000, True),
        ("2026-11-21T09:42:57.018", 18_000, True),
        ("2026-11-21 09:42:57,018204", 18_204, False),
        ("2026-11-21 09:42:57.018204999", 18_204, False),
    ],
)
def test_times(time: str, at_us: int, whole_ms: bool) -> None:
    """With a comma or a dot, none to nine digits, a T or a blank."""
    found = LineReader(UTC).read(line(time))
    assert found is not None
    assert found[1:] == (AT_S * 1_000_000 + at_us, whole_ms)


def test_times_are_local() -> None:
    """Summer and winter."""
    reader = LineReader(ZoneInfo("Europe/Berlin"))
    winter, summer = (reader.read(line(f"2026-{day} 12:00:00,000")) for day in ("01-15", "07-15"))
    assert winter is not None
    assert summer is not None
    assert (summer[1] - winter[1]) // 1_000_000 == 181 * 86_400 - 3600


@pytest.mark.parametrize(
    ("zone", "hours"),
    [("Z", 0), ("+02:00", -2), ("-0330", 3.5), ("+02", -2), ("-1", 0), ("+99:00", 0), ("-123", 0)],
)
def test_a_zone_behind_the_time_counts(zone: str, hours: float) -> None:
    """Whatever zone the broker is said to have; what is none says nothing."""
    reader = LineReader(ZoneInfo("Asia/Tokyo" if hours or zone == "Z" else "UTC"))
    for fraction in ("", ",018"):
        for _ in range(2):
            found = reader.read(line(f"2026-11-21 09:42:57{fraction}{zone}"))
            assert found is not None
            assert found[1] // 1_000_000 == AT_S + 3600 * hours


def test_lines_of_other_loggers_are_none() -> None:
    """Whatever has no brace."""
    assert LineReader(UTC).read(b"[2026-11-21 09:42:57,018] INFO [KafkaServer id=1] started") is None


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (
            b"Completed request:{}",
            "no time before the request, expected a time such as 2026-11-21 09:27:02,682",
        ),
        (line()[:300], "the request is not a complete JSON object in UTF-8"),
        (line()[:60], "the request is incomplete: no closing brace"),
        (line().replace(b"orders", b"\xff"), "the request is not a complete JSON object in UTF-8"),
        (line("2026-13-21 09:42:57,018"), "the time is not valid"),
        (line("2026-11-21 25:42:57,018"), "the time is not valid"),
        (
            line(principal=7),
            "not a request as a broker logs it: Expected 'str', got 'int' - at '$.principal'",
        ),
        (
            b"[2026-11-21 09:42:57,018] {}",
            "not a request as a broker logs it: Object missing required field 'requestHeader'",
        ),
    ],
)
def test_what_is_wrong_is_said_without_a_word_of_the_line(bad: bytes, reason: str) -> None:
    """It may hold secrets."""
    with pytest.raises(LineError) as caught:
        LineReader(UTC).read(bad)
    assert str(caught.value) == reason


OLD_TEXT = (
    b"[2020-11-21 09:42:57,018] DEBUG Completed request:RequestHeader(apiKey=PRODUCE, apiVersion=8, clientId=app, "
    b"correlationId=4) -- {acks=-1,timeout=30000,partitionSizes=[orders-0=100]},response:{responses=[]} from "
    b"connection 127.0.0.1:9092-127.0.0.1:59798-0;totalTime:8.0,principal:User:alice (kafka.request.logger)"
)
OLDER_TEXT = (
    b"[2015-11-21 09:42:57,018] DEBUG Completed request:Name: ProducerRequest; Version: 0; TopicAndPartition: [t,0] -> "
    b"{} from connection 127.0.0.1:9092-127.0.0.1:59798;totalTime:8 (kafka.request.logger)"
)
LAYOUT = json.dumps({"level": "DEBUG", "message": line().decode().partition("DEBUG ")[2].rstrip()}).encode()
COLLECTED = json.dumps(
    {"log": line().decode(), "stream": "stdout", "time": "2026-11-21T09:42:57.018Z"}
).encode()


@pytest.mark.parametrize(
    ("other", "name"), [(OLD_TEXT, "text"), (OLDER_TEXT, "text"), (LAYOUT, "json"), (COLLECTED, "json")]
)
def test_other_formats_of_requests_are_named(other: bytes, name: str) -> None:
    """The text of Kafka before 2.8, and a line inside a JSON object of log4j or of a collector."""
    with pytest.raises(OtherFormatError) as caught:
        LineReader(UTC).read(other)
    assert caught.value.name == name


def test_braces_of_other_loggers_are_no_request() -> None:
    """A directory of Kafka's logs has them in most files."""
    text = (
        b"[2026-11-21 09:42:57,018] INFO [LogLoader partition=t-0] Loaded {a=1, b=[2]} (kafka.log.LogLoader)"
    )
    assert LineReader(UTC).read(text) is None
