"""Requests of the log as columns: what each client was charged, and when.

    taken = RequestColumns(zone)
    for number, line in enumerate(lines):
        taken.add(number, line)
    taken.table()

The log does not contain the time of a decision, only what came after it: the response waited for a network thread and
was sent, and the line was made. A throttled fetch was answered empty, and the log does not contain its size: its bytes
are unknown here (`UNKNOWN_BYTES`) and estimated when the whole connection is known (`merge`).

Follows: B§6.2-6.4 for what is charged.
"""

import re
from collections import Counter
from datetime import tzinfo
from hashlib import blake2b
from ipaddress import ip_address
from typing import Any

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
from tidegate.kafka_log.line import LineError, LineReader, LoggedRequest, OtherFormatError, with_current_names
from tidegate.kafka_log.messages import (
    NO_LAG,
    bytes_of_records,
    fetch_positions,
    fetched_topics,
    is_follower,
    message_sizes,
    names_by_id,
    partitions_of,
    produced_topics,
    stated_throttle_ms,
    without_configs,
)
from tidegate.usage.arrow import numbers_array, texts_array
from tidegate.wire import API_BY_KEY, field_since

__all__ = [
    "KEPT_APIS",
    "NO_BYTES",
    "NO_TOPICS",
    "UNKNOWN",
    "UNKNOWN_BYTES",
    "LoggedExchange",
    "RequestColumns",
]

NO_BYTES = -1
"""Nothing is charged to this quota."""
UNKNOWN_BYTES = -2
"""Bytes are charged, and the log does not say how many."""

NO_TOPICS = -1
"""A line is not of a Produce or Fetch, or does not show what was fetched."""

MAKING_A_LINE_US = 150
"""Between the end of sending and the time of the line (0.1 to 0.2 ms, measured)."""
HALF_A_MS_US = 500
"""Mean error of a time of whole milliseconds."""

_MUTATIONS = frozenset({CREATE_TOPICS, CREATE_PARTITIONS, DELETE_TOPICS})
_FROM_ZOOKEEPER_CONTROLLERS = frozenset({4, 5, 6})
"""LeaderAndIsr, StopReplica, UpdateMetadata: only a broker of a cluster with ZooKeeper receives them."""
KEPT_APIS = _MUTATIONS | {ALTER_CLIENT_QUOTAS, METADATA, DESCRIBE_TOPIC_PARTITIONS}
"""Those whose bodies say more than a size: partitions of topics, quotas."""

_CONNECTION = re.compile(r".+:\d+-(.+):\d+-\d+(?:-\d+)?")
"""Addresses and ports of both ends, the processor's number (since 4.0), and a number that makes the id unique."""
UNKNOWN = "unknown"
_SOFTWARE_SINCE = field_since(API_VERSIONS, "request", "client_software_name")
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

    asked_us: time at which permits were requested, before the change was written to the metadata log, for which answers
    wait; handler_us: how long the handler took before that.
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
    """Columns of the lines of one broker, added in any order. Bodies are kept only for `KEPT_APIS`, in `exchanges`.

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
            self.bad_lines += 1
            if len(self.bad) < self.BAD_KEPT:
                self.bad.append((number, str(error)))

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

    def table(self) -> pa.Table:
        """Return one row a request, in the order of the lines; names are dictionary-encoded.

        lag: of a Fetch, in records, or `NO_LAG`; offsets: the sum of the offsets that it reads from; partitions: a
        number that identifies the partitions it reads. The next Fetch of the same partitions shows, by its offsets, how
        many records this one brought. topic: the topic of a Produce or Fetch with the most bytes of records, by name or
        id; other_topics: the number of others, or `NO_TOPICS`.
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
        """Return the throttle times of mutations and of request time, separated.

        With ZooKeeper the broker applies both, and logs the longer one twice. With KRaft it logs its own, for request
        time, and the response contains the longer of that and the controller's.
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
        if logged.is_forwarded:  # the broker's log has it too; this line only gives the time of the permits
            self.skipped["forwarded"] += 1
            if logged.request_header.request_api_key in _MUTATIONS:
                self.exchanges.append(LoggedExchange(decided_us, number, logged, {}))
            return
        header = logged.request_header
        api_key, api_version = header.request_api_key, header.request_api_version
        client_id = header.client_id or ""
        self.has_zookeeper |= api_key in _FROM_ZOOKEEPER_CONTROLLERS
        request_bytes, response_bytes = message_sizes(api_key, api_version, client_id, body, response)
        produce_bytes = request_bytes if api_key == PRODUCE else NO_BYTES
        fetch_bytes, record_bytes, exempt, read_from = NO_BYTES, 0, False, None
        topic, other_topics = None, NO_TOPICS
        if api_key == FETCH:
            if not isinstance(response, dict):
                raise LineError("the Fetch has no response")
            topic, other_topics = fetched_topics(response)
            # A follower's fetch is exempt. A throttled fetch is answered empty, so the log has no size for it.
            # Otherwise the quota is charged 4 bytes and the body, without the header (B§6.3).
            if is_follower(body):
                exempt = True
            elif logged.throttle_time_ms > 0 and not response["responses"]:
                fetch_bytes, other_topics = UNKNOWN_BYTES, NO_TOPICS
            else:
                header_bytes = 5 if API_BY_KEY[FETCH].has_tagged_response_header(api_version) else 4
                fetch_bytes = response_bytes - header_bytes + 4
                record_bytes = bytes_of_records(response)
                read_from = fetch_positions(body["topics"], response["responses"])
        elif api_key == PRODUCE:
            # With acks=0 there is no answer, and the request is exempt (B§6.2).
            exempt = response == ""
            topic, other_topics = produced_topics(body, response)
        else:
            api = API_BY_KEY.get(api_key)
            exempt = api is None or api.cluster_action
        mutation_ms = 0
        if api_key in _MUTATIONS and isinstance(response, dict):
            mutation_ms = stated_throttle_ms(response)
        software = logged.client_information
        names = software.software_name, software.software_version
        if api_key == API_VERSIONS and api_version >= _SOFTWARE_SINCE and names == (UNKNOWN, UNKNOWN):
            names = body.get("clientSoftwareName") or UNKNOWN, body.get("clientSoftwareVersion") or UNKNOWN
        connection_id, host = self._connections.get(logged.connection) or self._connection(logged.connection)
        # The user is the name of the principal, whatever its type (B§6.1).
        client = logged.listener, logged.principal.partition(":")[2], client_id, host, *names
        client_number = self._client_numbers.get(client)
        if client_number is None:
            client_number = self._client_numbers[client] = len(self._client_numbers)
        if api_key in KEPT_APIS and isinstance(response, dict):
            self._store_exchange(
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

    def _store_exchange(
        self, decided_us: int, number: int, logged: LoggedRequest, client: dict[str, Any]
    ) -> None:
        """Store the topics or quotas of an exchange. Partition counts are stored only if they have changed here."""
        assert isinstance(logged.response, dict)
        self.topic_names |= names_by_id(logged.response)
        if logged.request_header.request_api_key in (METADATA, DESCRIBE_TOPIC_PARTITIONS):
            partitions = partitions_of(logged.response)
            if all(self._topics.get(name) == count for name, count in partitions.items()):
                return
            self._topics.update(partitions)
            logged.request, logged.response = {}, {"partitions": partitions}
        else:
            self._topics.clear()
            if logged.request_header.request_api_key == CREATE_TOPICS:
                logged.request = without_configs(logged.request)
                logged.response = without_configs(logged.response)
        self.exchanges.append(LoggedExchange(decided_us, number, logged, client))

    def _connection(self, text: str) -> tuple[int, str]:
        """Return the id of a connection, equal in all lines and files, and the address of its client."""
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
