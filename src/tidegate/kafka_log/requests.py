"""Requests of the log as columns: what each client was charged, and when.

    taken = RequestColumns(zone)
    for number, line in enumerate(lines):
        taken.add(number, line)
    taken.table()

The time of a decision is not in the log, but what came after it is: the response waited for a network thread, was sent,
and the line was made. A fetch that was throttled was answered empty, and what it would have brought is not in the log:
its bytes are unknown here (`UNKNOWN_BYTES`) and estimated when the whole connection is known (`merge`).

Follows: B§6.2-6.4 for what is charged.
"""

import re
from collections import Counter
from datetime import tzinfo
from hashlib import blake2b
from ipaddress import ip_address
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa

from tidegate.api_keys import (
    ALTER_CLIENT_QUOTAS,
    API_VERSIONS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_TOPIC_PARTITIONS,
    FETCH,
    METADATA,
    PRODUCE,
)
from tidegate.error_codes import UNSUPPORTED_VERSION
from tidegate.kafka_log.line import LineError, LineReader, LoggedRequest, OtherFormatError, with_current_names
from tidegate.kafka_log.sizes import request_size, response_size
from tidegate.topic_sizes import TopicSizes
from tidegate.usage.arrow import numbers_array, texts_array
from tidegate.wire import API_BY_KEY, field_since

__all__ = [
    "KEPT_APIS",
    "NO_BYTES",
    "NO_LAG",
    "NO_TOPICS",
    "UNKNOWN_BYTES",
    "LoggedExchange",
    "RequestColumns",
]

NO_BYTES = -1
"""Nothing is charged to this quota."""
UNKNOWN_BYTES = -2
"""Bytes are charged, and the log does not say how many."""

NO_LAG = -1
"""A line does not say where it reads, or where the end is."""

NO_TOPICS = -1
"""A line is not of a Produce or Fetch, or does not show what was fetched."""

MAKING_A_LINE_US = 150
"""Between the end of sending and the time of the line (0.1 to 0.2 ms, measured)."""
HALF_A_MS_US = 500
"""Mean error of a time of whole milliseconds."""

SIZE_MAX = 2**31 - 1
"""Largest size of a message; its length is an INT32."""

_MOST_RECORDS = 2**53
"""Largest lag and largest sum of offsets; no log comes near."""

_MUTATIONS = frozenset({CREATE_TOPICS, CREATE_PARTITIONS, DELETE_TOPICS})
_FROM_ZOOKEEPER_CONTROLLERS = frozenset({4, 5, 6})
"""LeaderAndIsr, StopReplica, UpdateMetadata: only a broker of a cluster with ZooKeeper receives them."""
KEPT_APIS = _MUTATIONS | {ALTER_CLIENT_QUOTAS, METADATA, DESCRIBE_TOPIC_PARTITIONS}
"""Those whose bodies say more than a size: partitions of topics, quotas."""

_CONNECTION = re.compile(r".+:\d+-(.+):\d+-\d+(?:-\d+)?")
"""Addresses and ports of both ends, the processor's number (since 4.0), and a number that makes the id unique."""
_UNKNOWN = "unknown"
_SOFTWARE_SINCE = field_since(API_VERSIONS, "request", "client_software_name")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
"""A topic's name as Kafka allows it, or its id. Other names belong to requests for topics that do not exist."""
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
_TEXTS = ("listener", "user", "client_id", "client_host", "client_software", "client_software_version")
_READ = ("lag", "offsets", "partitions")
_NUMBERS = {
    "decided_us": pa.int64(),
    "line": pa.int64(),
    "connection_id": pa.int64(),
    "api_key": pa.int16(),
    "api_version": pa.int16(),
    "request_bytes": pa.int64(),
    "response_bytes": pa.int64(),
    "produce_bytes": pa.int64(),
    "fetch_bytes": pa.int64(),
    "handler_ns": pa.int64(),
    "throttle_ms": pa.int64(),
    "mutation_throttle_ms": pa.int64(),
    "record_bytes": pa.int64(),
    "other_topics": pa.int64(),
    "exempt": pa.bool_(),
}


class LoggedExchange:
    """The topics or quotas in one request and its response, with its place among the requests.

    asked_us: when permits were asked for: before the change was written to the metadata log, which answers wait for;
    handler_us: how long the handler took before that.
    client: the columns that identify the client; key: matches the line of a broker with the line of its controller.
    """

    __slots__ = (
        "api_key", "api_version", "asked_us", "client", "decided_us", "forwarded", "handler_us", "key", "line",
        "request", "response",
    )  # fmt: skip

    def __init__(self, decided_us: int, line: int, logged: LoggedRequest, client: dict[str, Any]) -> None:
        header = logged.request_header
        self.decided_us = decided_us
        self.asked_us = decided_us - round(logged.remote_time_ms * 1000)
        self.handler_us = round(logged.local_time_ms * 1000)
        self.line = line
        self.forwarded = logged.is_forwarded
        self.api_key, self.api_version = header.request_api_key, header.request_api_version
        self.key = self.api_key, self.api_version, header.correlation_id, header.client_id, logged.principal
        self.request = logged.request if isinstance(logged.request, dict) else {}
        self.response = logged.response if isinstance(logged.response, dict) else {}
        self.client = {**client, "api_key": self.api_key, "api_version": self.api_version}


class RequestColumns:
    """Takes lines of one broker, in any order, and keeps columns of them; bodies of `KEPT_APIS` alone, in `exchanges`.

    bad: the number of each line that could not be read, and why; at most `BAD_KEPT` of them, `bad_lines` counts all.
    skipped: how many lines were left out, by reason. exchanges: requests and responses that state more than a row
    has room for. has_zookeeper: the broker uses ZooKeeper. topic_names: names by id, of topics that answers describe.
    """

    BAD_KEPT = 1000

    def __init__(self, zone: tzinfo) -> None:
        self.requests = self.bad_lines = 0
        self.bad: list[tuple[int, str]] = []
        self.skipped: Counter[str] = Counter()
        self.exchanges: list[LoggedExchange] = []
        self._read = LineReader(zone).read
        self._rows: list[tuple[Any, ...]] = []
        self._read_from: list[tuple[int, int, int, int]] = []
        self._client_numbers: dict[tuple[str, ...], int] = {}
        self._connections: dict[str, tuple[int, str]] = {}
        self._topics: dict[str, int] = {}
        self._topic_numbers: dict[str | None, int] = {None: 0}
        self.topic_names: dict[str, str] = {}
        self.has_zookeeper = False

    def add_line(self, number: int, line: bytes) -> None:
        """Add the request of a line. Count lines without a client request as skipped, and reject unreadable lines."""
        try:
            found = self._read(line)
            if found is None:
                if line.strip():
                    self.skipped["no request"] += 1
                return
            self._add_of_any_version(number, *found)
        except OtherFormatError as error:
            self.skipped[error.name] += 1
        except LineError as error:
            self._reject(number, str(error))

    def _add_of_any_version(self, number: int, logged: LoggedRequest, line_us: int, whole_ms: bool) -> None:
        """Add a request; where a field is missing, look for the name that older brokers gave it.

        Raises `LineError` where its fields are not those of any version.
        """
        api_key = logged.request_header.request_api_key
        try:
            try:
                self._add(number, logged, line_us, whole_ms)
            except KeyError:
                logged.request = with_current_names(api_key, "request", logged.request)
                logged.response = with_current_names(api_key, "response", logged.response)
                self._add(number, logged, line_us, whole_ms)
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
            version = logged.request_header.request_api_version
            raise LineError(
                f"fields do not match api key {api_key} version {version} of Kafka 2.8 to 4.3"
            ) from None

    def _reject(self, number: int, reason: str) -> None:
        self.bad_lines += 1
        if len(self.bad) < self.BAD_KEPT:
            self.bad.append((number, reason))

    def table(self) -> pa.Table:
        """Return one row a request, in the order of the lines; names are dictionary-encoded.

        lag: in records, of a Fetch, or `NO_LAG`; offsets: the sum of where it reads; partitions: a number for those it
        reads. By these two the next Fetch of the same partitions tells how many records this one brought.
        topic: by name or id, of a Produce or Fetch, that with the most bytes of records; other_topics: the number of
        others, or `NO_TOPICS`.
        """
        values = list(zip(*self._rows, strict=True)) or [()] * (len(_NUMBERS) + 2)
        columns: dict[str, pa.Array] = {
            name: numbers_array(np.array(column, type_.to_pandas_dtype()), type_)
            for (name, type_), column in zip(_NUMBERS.items(), values[:-2], strict=True)
        }
        columns |= self._throttles(columns)
        where = np.array(self._read_from, np.int64).reshape(-1, 4)
        for name, some in zip(_READ, where.T[1:], strict=True):
            column = np.full(len(self._rows), NO_LAG)
            column[where[:, 0]] = some
            columns[name] = numbers_array(column, pa.int64())
        clients = numbers_array(np.array(values[-1], np.int32), pa.int32())
        for place, name in enumerate(_TEXTS):
            encoded = texts_array([client[place] for client in self._client_numbers]).dictionary_encode()
            indices = encoded.indices.take(clients)
            columns[name] = pa.DictionaryArray.from_arrays(indices, encoded.dictionary)
        topics = pa.array(list(self._topic_numbers), pa.string())
        numbers = np.array(values[-2], np.int32)
        indices = numbers_array(numbers, pa.int32(), numbers == 0)
        columns["topic"] = pa.DictionaryArray.from_arrays(indices, topics.fill_null(""))
        return pa.table(columns)

    def _throttles(self, columns: dict[str, pa.Array]) -> dict[str, pa.Array]:
        """Return throttle times of mutations apart from those of request time.

        With ZooKeeper the broker imposes both and logs the longer one twice. With KRaft it logs its own, of request
        time, and in the response the longer of that and the controller's.
        """
        own, stated = (columns[name].to_numpy() for name in ("throttle_ms", "mutation_throttle_ms"))
        if self.has_zookeeper:
            return {"throttle_ms": pa.array(np.where(stated > 0, 0, own))}
        return {"mutation_throttle_ms": pa.array(np.where(stated > own, stated, 0))}

    def _add(self, number: int, logged: LoggedRequest, line_us: int, whole_ms: bool) -> None:
        body, response = logged.request, logged.response
        if not isinstance(body, dict):
            if body:
                raise LineError("the request is a string, expected an object")
            self.skipped["begun before"] += 1
            return
        after_us = MAKING_A_LINE_US + round((logged.send_time_ms + logged.response_queue_time_ms) * 1000)
        decided_us = line_us - after_us + (HALF_A_MS_US if whole_ms else 0)
        if logged.is_forwarded:  # its broker has a line of it too; when permits were asked for, this one says
            self.skipped["forwarded"] += 1
            if logged.request_header.request_api_key in _MUTATIONS:
                self.exchanges.append(LoggedExchange(decided_us, number, logged, {}))
            return
        header = logged.request_header
        api_key, api_version, client_id = (
            header.request_api_key,
            header.request_api_version,
            header.client_id or "",
        )
        self.has_zookeeper |= api_key in _FROM_ZOOKEEPER_CONTROLLERS
        request_bytes, response_bytes = _sizes(api_key, api_version, client_id, body, response)
        produce_bytes = request_bytes if api_key == PRODUCE else NO_BYTES
        fetch_bytes, record_bytes, exempt, read_from = NO_BYTES, 0, False, None
        topic, other_topics = None, NO_TOPICS
        if api_key == FETCH:
            if not isinstance(response, dict):
                raise LineError("the Fetch has no response")
            topic, other_topics = _fetched_topics(response)
            # A follower's fetch is exempt. A throttled fetch is answered empty, so the log has no size for it.
            # Otherwise the quota is charged 4 bytes and the body, without the header (B§6.3).
            if is_follower(body):
                exempt = True
            elif logged.throttle_time_ms > 0 and not response["responses"]:
                fetch_bytes, other_topics = UNKNOWN_BYTES, NO_TOPICS
            else:
                header_bytes = 5 if API_BY_KEY[FETCH].has_tagged_response_header(api_version) else 4
                fetch_bytes = response_bytes - header_bytes + 4
                record_bytes = _record_bytes(response)
                read_from = _read_from(body["topics"], response["responses"])
        elif api_key == PRODUCE:
            # With acks=0 there is no answer, and the request is exempt (B§6.2).
            exempt = response == ""
            topic, other_topics = _produced_topics(body, response)
        else:
            api = API_BY_KEY.get(api_key)
            exempt = api is None or api.cluster_action
        mutation_ms = 0
        if api_key in _MUTATIONS and isinstance(response, dict):
            mutation_ms = _throttle_ms(response)
        software = logged.client_information
        names = software.software_name, software.software_version
        if api_key == API_VERSIONS and api_version >= _SOFTWARE_SINCE and names == (_UNKNOWN, _UNKNOWN):
            names = body.get("clientSoftwareName") or _UNKNOWN, body.get("clientSoftwareVersion") or _UNKNOWN
        connection_id, host = self._connections.get(logged.connection) or self._connection(logged.connection)
        # The user is the name of the principal, whatever its type (B§6.1).
        client = logged.listener, logged.principal.partition(":")[2], client_id, host, *names
        client_number = self._client_numbers.get(client)
        if client_number is None:
            client_number = self._client_numbers[client] = len(self._client_numbers)
        if api_key in KEPT_APIS and isinstance(response, dict):
            self._tell(
                decided_us,
                number,
                logged,
                dict(zip(_TEXTS, client, strict=True)) | {"connection_id": connection_id},
            )
        self._rows.append((
            decided_us, number, connection_id, api_key, api_version, request_bytes, response_bytes, produce_bytes,
            fetch_bytes, round(logged.local_time_ms * 1e6), logged.throttle_time_ms, mutation_ms, record_bytes,
            other_topics, exempt, self._topic_numbers.setdefault(topic, len(self._topic_numbers)), client_number,
        ))  # fmt: skip
        if read_from is not None:
            self._read_from.append((len(self._rows) - 1, *read_from))
        self.requests += 1

    def _tell(self, decided_us: int, number: int, logged: LoggedRequest, client: dict[str, Any]) -> None:
        """Store what an exchange states, of topics only what differs from what was last seen here."""
        assert isinstance(logged.response, dict)
        self.topic_names |= _names_by_id(logged.response)
        if logged.request_header.request_api_key in (METADATA, DESCRIBE_TOPIC_PARTITIONS):
            partitions = partitions_of(logged.response)
            if all(self._topics.get(name) == count for name, count in partitions.items()):
                return
            self._topics.update(partitions)
            logged.request, logged.response = {}, {"partitions": partitions}
        else:
            self._topics.clear()
            if logged.request_header.request_api_key == CREATE_TOPICS:
                logged.request, logged.response = (
                    _without_configs(logged.request),
                    _without_configs(logged.response),
                )
        self.exchanges.append(LoggedExchange(decided_us, number, logged, client))

    def _connection(self, text: str) -> tuple[int, str]:
        """Return the id of a connection, the same wherever it is met, and the address of its client."""
        match = _CONNECTION.fullmatch(text)
        if match is None:
            raise LineError(
                "the connection id is not valid, expected LOCAL-REMOTE-INDEX or LOCAL-REMOTE-PROCESSOR-INDEX"
            )
        # Shifted to 63 bits: `connection_id` is a signed 64-bit column.
        number = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
        found = self._connections[text] = number, _address(match[1])
        return found


def _address(host: str) -> str:
    """Return the address of a client as Tidegate writes it: Java writes IPv6 in full.

    >>> _address("0:0:0:0:0:0:0:1")
    '::1'
    """
    if ":" not in host:
        return host
    try:
        return str(ip_address(host))
    except ValueError:
        return host


def _without_configs(message: Any) -> dict[str, Any]:
    """Return a message about topics without their settings, which are most of it."""
    topics = [{key: value for key, value in topic.items() if key != "configs"} for topic in message["topics"]]
    return {**message, "topics": topics}


def is_follower(request: dict[str, Any]) -> bool:
    """Return whether a Fetch request is one of a replica, not of a consumer."""
    state = request.get("replicaState")
    return bool((state["replicaId"] if state else request.get("replicaId", -1)) >= 0)


def partitions_of(response: dict[str, Any]) -> dict[str, int]:
    """Return how many partitions topics have, by name and by id, from an answer that describes them."""
    found: dict[str, int] = {}
    for topic in response.get("topics", ()):
        if topic.get("errorCode", 0) == 0:
            for key in (topic.get("name"), topic.get("topicId")):
                if key:
                    found[key] = len(topic["partitions"])
    return found


def _names_by_id(response: dict[str, Any]) -> dict[str, str]:
    """Return the names of topics by id, from an answer that describes topics or has created them."""
    topics = response.get("topics", ())
    pairs = ((topic.get("topicId"), topic.get("name")) for topic in topics)
    return {key: name for key, name in pairs if key and key != _NO_ID and name and _TOPIC.fullmatch(name)}


def _produced_topics(request: dict[str, Any], response: dict[str, Any] | str) -> tuple[str | None, int]:
    """Return the topic with the most stored bytes of a Produce, and the number of others; without acks, of sent bytes.

    A partition with an error stores nothing.
    """
    refused = set()
    if isinstance(response, dict):
        refused = {
            (topic.get("topicId") or topic["name"], part["index"])
            for topic in response["responses"]
            for part in topic["partitionResponses"]
            if part["errorCode"]
        }
    sizes = TopicSizes()
    for topic in request["topicData"]:
        name = topic.get("topicId") or topic["name"]
        for part in topic["partitionData"]:
            if not refused or (name, part["index"]) not in refused:
                _add_size(sizes, name, part)
    return sizes.largest()


def _fetched_topics(response: dict[str, Any]) -> tuple[str | None, int]:
    """Return the topic with the most bytes of records in the answer to a Fetch, and the number of others."""
    sizes = TopicSizes()
    for topic in response["responses"]:
        for part in topic["partitions"]:
            _add_size(sizes, topic.get("topicId") or topic["topic"], part)
    return sizes.largest()


def _add_size(sizes: TopicSizes, topic: str, part: dict[str, Any]) -> None:
    size = part.get("recordsSizeInBytes")
    if size and _TOPIC.fullmatch(topic):
        sizes.add(topic, size)


def _record_bytes(response: dict[str, Any]) -> int:
    """Return the bytes of records in the answer to a fetch."""
    topics = response["responses"]
    return sum([part.get("recordsSizeInBytes") or 0 for topic in topics for part in topic["partitions"]])


def _read_from(asked: list[dict[str, Any]], answered: list[dict[str, Any]]) -> tuple[int, int, int] | None:
    """Return lag, offsets and partitions of a Fetch (`RequestColumns.table`), of those in request and answer alike.

    In a fetch session a request names those alone whose offset has changed, and an answer those with something new.
    """
    if not asked or not answered:
        return None
    ends = {
        (topic.get("topicId") or topic["topic"], part["partitionIndex"]): part["highWatermark"]
        for topic in answered
        for part in topic["partitions"]
    }
    lag, offsets, partitions = NO_LAG, 0, 0
    for topic in asked:
        name = topic.get("topicId") or topic["topic"]
        for part in topic["partitions"]:
            index, offset = part["partition"], part["fetchOffset"]
            behind = ends.pop((name, index), -1) - offset
            if offset >= 0 <= behind:
                lag = behind if lag < 0 else lag + behind
                offsets += offset
                partitions += crc32(f"{name} {index}".encode("utf-8", "replace"))
    if type(lag + offsets) is not int or lag + offsets > _MOST_RECORDS:
        raise LineError("an offset of the Fetch is out of range")
    return (lag, offsets, partitions) if lag >= 0 else None


def _throttle_ms(response: dict[str, Any]) -> int:
    """Return the throttle time of a response: for a mutation, nothing else in the log states it."""
    throttle_ms = response.get("throttleTimeMs", 0)
    if type(throttle_ms) is not int or not 0 <= throttle_ms <= SIZE_MAX:
        raise LineError(f"throttleTimeMs of the response is not a whole number from 0 to {SIZE_MAX}")
    return throttle_ms


def _sizes(
    api_key: int, api_version: int, client_id: str, body: dict[str, Any], response: dict[str, Any] | str
) -> tuple[int, int]:
    """Return the bytes of request and response; 0 for what only controllers say to each other."""
    if api_key not in API_BY_KEY:
        return 0, 0
    if (
        api_key == API_VERSIONS
        and isinstance(response, dict)
        and response["errorCode"] == UNSUPPORTED_VERSION
    ):
        api_version, body = (
            0,
            {},
        )  # answered in version 0; the request is not read, its body is not in the log
    sizes = (
        request_size(api_key, api_version, client_id, body),
        response_size(api_key, api_version, response) if isinstance(response, dict) else 0,
    )
    if not 0 <= min(sizes) <= max(sizes) <= SIZE_MAX:
        raise LineError(f"{API_BY_KEY[api_key].name} is larger than a message can be, {SIZE_MAX} bytes")
    return sizes
