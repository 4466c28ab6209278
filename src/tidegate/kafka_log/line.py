"""One line of the request log: the request in it, or the reason why it cannot be read.

    [2026-11-21 09:42:57,018] DEBUG Completed request:{…one JSON object…} (kafka.request.logger)

Only the time before the first brace and the object up to the last one are looked at, so the pattern of the rest does
not matter. The time is the broker's local time, unless the zone stands right behind it (`Z`, `+02:00`).

Older brokers write other names of fields than Kafka 4.3 (`with_current_names`), compared over all messages of 2.8.2,
3.3.2, 3.6.2, 3.9.1, 4.0.0 and 4.3.1 (`scripts/KafkaSchemas.java` prints them). Fields of fixed size are left out where
the importer does not read them.
"""

import re
from collections.abc import Mapping
from datetime import datetime, timedelta, tzinfo
from typing import Annotated, Any

import msgspec

from tidegate.api_keys import (
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_LOG_DIRS,
    ELECT_LEADERS,
    FETCH,
    LIST_CONFIG_RESOURCES,
)
from tidegate.errors import TidegateError
from tidegate.usage.segment import NAME_BYTES_MAX
from tidegate.wire.definitions import Direction

__all__ = [
    "LineError",
    "LineReader",
    "LoggedRequest",
    "OtherFormatError",
    "has_fractions",
    "with_current_names",
]

_TIME = re.compile(
    rb"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d):(\d\d)(?:[,.](\d{1,9}))?"
    rb"(?:(Z|[+-](?:0\d|1[0-8])(?::?[0-5]\d)?)(?!\d))?"
)
_HEADER = b'"requestHeader"'
"""Stands in every request; a line without it is of another logger."""
_OTHER_FORMATS = {
    "text": re.compile(rb"Completed request:(?:RequestHeader\(|Name:)"),
    "json": re.compile(rb'Completed request:\{\\"'),
}
"""text: Kafka before 2.8 (KIP-673); json: the line is a string in an object of log4j or of a log collector."""
_PREFIX_BYTES_MAX = 4096  # of a line, in which its time is looked for
_EPOCH = datetime(1970, 1, 1)
_YEARS = range(1971, 2200)
"""Years of times that a broker may have written; `seq`, which has 64 bits, contains the time."""
_SECOND = timedelta(seconds=1)


_Int16 = Annotated[int, msgspec.Meta(ge=-(2**15), lt=2**15)]
_Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]
_ThrottleMs = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
_Ms = Annotated[float, msgspec.Meta(ge=0, le=1e10)]  # a third of a year
_Name = Annotated[str, msgspec.Meta(max_length=NAME_BYTES_MAX)]  # as long as a length in the protocol can say
_OLDER: Mapping[tuple[int, Direction], Mapping[str, str]] = {
    # up to 2.8
    (FETCH, "response"): {
        "responses.partitionResponses": "partitions",
        "responses.partitionResponses.partition": "partitionIndex",
        "responses.partitionResponses.recordSetSizeInBytes": "recordsSizeInBytes",
    },
    (DESCRIBE_LOG_DIRS, "request"): {"topics.partitionIndex": "partitions"},
    (ELECT_LEADERS, "request"): {"topicPartitions.partitionId": "partitions"},
    # up to 3.4 (KIP-890 added version 4)
    (ADD_PARTITIONS_TO_TXN, "request"): {
        "transactionalId": "v3AndBelowTransactionalId",
        "topics": "v3AndBelowTopics",
    },
    (ADD_PARTITIONS_TO_TXN, "response"): {
        "results": "resultsByTopicV3AndBelow",
        "results.results": "resultsByPartition",
    },
    # up to 4.0 (KIP-1142)
    (LIST_CONFIG_RESOURCES, "response"): {
        "clientMetricsResources": "configResources",
        "clientMetricsResources.name": "resourceName",
    },
}
"""Path of a field, in older names, to its name in Kafka 4.3."""


class LineError(TidegateError):
    """Raise when a line is no request: in a few words, none of them from the line, which may hold secrets."""


class OtherFormatError(TidegateError):
    """Raise when a line is a request in a format that is not read. name: "text" or "json" (`_OTHER_FORMATS`)."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Header(msgspec.Struct, rename="camel"):
    """The header of a request."""

    request_api_key: _Int16
    request_api_version: _Int16
    correlation_id: _Int32
    client_id: _Name | None = ""


class ClientInformation(msgspec.Struct, rename="camel"):
    """Whose software it is, as far as the broker knows it."""

    software_name: _Name = "unknown"
    software_version: _Name = "unknown"


class LoggedRequest(msgspec.Struct, rename="camel"):
    """The object of a line, with Kafka's names in snake case; times in ms.

    `request` is "" where it came before the logger was switched on, `response` where there was none.
    """

    request_header: Header
    request: dict[str, Any] | str
    response: dict[str, Any] | str
    connection: _Name
    local_time_ms: _Ms
    remote_time_ms: _Ms
    response_queue_time_ms: _Ms
    send_time_ms: _Ms
    throttle_time_ms: _ThrottleMs
    listener: _Name
    principal: _Name
    is_forwarded: bool = False
    client_information: ClientInformation = msgspec.field(default_factory=ClientInformation)


class LineReader:
    """Reads the lines of one broker. zone: the broker's; it has no time that exists twice or not at all."""

    def __init__(self, zone: tzinfo) -> None:
        self._zone = zone
        self._decode = msgspec.json.Decoder(LoggedRequest).decode
        self._minute = b""
        self._minute_s = 0

    def read(self, line: bytes) -> tuple[LoggedRequest, int, bool] | None:
        """Return a request, its time in us since the epoch, and whether it is of whole ms; None: another kind of line.

        Raises `LineError` for a request that cannot be read, `OtherFormatError` for one in another format.
        """
        first, end = line.find(b"{"), line.rfind(b"}") + 1
        if first < 0:
            _check_format(line)
            return None
        match = _TIME.search(line, 0, min(first, _PREFIX_BYTES_MAX))
        if match is None:
            _check_format(line)
            raise LineError("no time before the request, expected a time such as 2026-11-21 09:27:02,682")
        if end <= first:
            raise LineError("the request is incomplete: no closing brace")
        try:
            request = self._decode(line[first:end])
        except msgspec.ValidationError as error:
            _check_format(line)
            # msgspec quotes types and paths, and of values none.
            reason = str(error).replace("`", "'")
            raise LineError(f"not a request as a broker logs it: {reason}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            _check_format(line)
            if _HEADER not in line:
                return None
            raise LineError("the request is not a complete JSON object in UTF-8") from None
        day, minute, second, fraction, offset = match.groups()
        if (key := day + minute + (offset or b"")) != self._minute:
            self._minute_s = self._seconds(day, minute, offset)
            self._minute = key
        fraction = fraction or b""
        microseconds = int(fraction[:6].ljust(6, b"0")) if fraction else 0
        return request, (self._minute_s + int(second)) * 1_000_000 + microseconds, len(fraction) <= 3

    def _seconds(self, day: bytes, minute: bytes, written: bytes | None) -> int:
        """Return a minute in seconds since the epoch. written: how far it is from UTC, where the line says so."""
        try:
            local = datetime.strptime(f"{day.decode()} {minute.decode()}", "%Y-%m-%d %H:%M")
            zone = self._zone if written is None else _written_zone(written.decode())
            offset = local.replace(tzinfo=zone).utcoffset() or timedelta()
        except (ValueError, OverflowError):
            raise LineError("the time is not valid") from None
        if local.year not in _YEARS:
            raise LineError(f"the year is not from {_YEARS[0]} to {_YEARS[-1]}")
        return (local - offset - _EPOCH) // _SECOND


def _check_format(line: bytes) -> None:
    """Raise `OtherFormatError` where a line is a request in a format that is not read."""
    for name, pattern in _OTHER_FORMATS.items():
        if pattern.search(line):
            raise OtherFormatError(name)


def _written_zone(written: str) -> tzinfo | None:
    """Return the zone of `Z`, `+02`, `+0200` or `+02:00`."""
    return datetime.strptime(written + "00" * (len(written) == len("+02")), "%z").tzinfo


def has_fractions(line: bytes) -> bool:
    """Return whether the time of a line has fractions of a second; True also for a line without a time."""
    match = _TIME.search(line, 0, _PREFIX_BYTES_MAX)
    return match is None or match[4] is not None


def with_current_names(api_key: int, direction: Direction, message: Any) -> Any:
    """Return a message of the log with the names of Kafka 4.3; the same object where its API has no older ones.

    >>> with_current_names(43, "request", {"topicPartitions": [{"topic": "t", "partitionId": [0]}]})
    {'topicPartitions': [{'topic': 't', 'partitions': [0]}]}
    """
    older = _OLDER.get((api_key, direction))
    return message if older is None else _renamed(message, older, "")


def _renamed(value: Any, older: Mapping[str, str], path: str) -> Any:
    if isinstance(value, list):
        return [_renamed(each, older, path) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        older.get(path + name, name): _renamed(each, older, f"{path}{name}.") for name, each in value.items()
    }
