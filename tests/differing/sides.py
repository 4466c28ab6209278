"""The two brokers that are asked the same: connections, names and ids of each, what is sent and when it is answered."""

import contextlib
import select
import socket
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.batches import renew_crc
from tests.differing.comparable import Given, comparable
from tests.differing.requests import (
    CONTROL,
    OWN,
    OWN_ENDING,
    OWN_IP,
    OWN_LENGTH,
    UNKNOWN_ID,
    Batch,
    Made,
    Session,
    probe,
)
from tests.e2e.plain_client import receive_frame

from tidegate.api_keys import FIND_COORDINATOR, INIT_PRODUCER_ID, OFFSET_FETCH, PRODUCE
from tidegate.error_codes import MEMBER_ID_REQUIRED, NONE
from tidegate.wire import API_BY_KEY, ProtocolError, UnsupportedVersionError, encode_request, read_response

__all__ = [
    "CLOSED", "SILENT", "Reply", "Side", "ask_both", "exchange", "has_null_records", "is_unanswered",
    "own_ip", "own_names",
]  # fmt: skip

TIMEOUT_S = 15.0
BEHIND_S = 8.0  # by how much one side may answer later than the other
HANGING_S = 1.0  # for what Kafka is known to leave without an answer (see `declared.py`)
LOADING = (14, 15, 16)  # the error codes of a coordinator that is not ready yet
COORDINATORS = 50  # partitions of the topic that holds groups' positions
CLOSED = "closed"
SILENT = "no answer"
NO_SUCH_SESSION = 77
_ANY_PRODUCER = 43  # where a batch has its producer's id
_HEADER_AT = 4  # behind the length: api key, version, correlation id, client id


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What came of one request: the answer as it can be compared, and the moments (monotonic seconds)."""

    answer: Any
    throttle_ms: int = 0
    sent_at: float = 0.0
    answered_at: float = 0.0


@dataclass
class Side:
    """One broker: what it is called, where it listens, and what it has of its own in the sequence that is played."""

    name: str
    host: str
    port: int
    given: Given = field(default_factory=Given)
    socks: dict[str, socket.socket] = field(default_factory=dict)
    """Connections, by client id."""

    def begin(self, number: int) -> None:
        """Begin a sequence with names that no other has."""
        self.given = Given(own=own_names(number), own_ip=own_ip(number))
        self.hang_up()

    def ask(self, made: Made, *, timeout_s: float = TIMEOUT_S) -> Any:
        """Send a request to this side alone and return the answer's message, `CLOSED`, or `SILENT`."""
        return _receive_all([self], made, [self.send(made)], timeout_s)[0].answer

    def send(self, made: Made) -> float:
        """Send a request and return when; a connection that cannot be written to is closed."""
        frame = self.frame(made)
        sent_at = time.monotonic()
        with contextlib.suppress(OSError):  # reading it says so as well, behind what was answered before
            self.sock(made.client).sendall(frame)
        return sent_at

    def sock(self, client: str) -> socket.socket:
        """Return the connection of a client id."""
        if client not in self.socks:
            own_ip = self.given.own_ip if client != CONTROL and self.host.startswith("127.") else ""
            source = (own_ip, 0) if own_ip else None
            sock = socket.create_connection((self.host, self.port), timeout=TIMEOUT_S, source_address=source)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.socks[client] = sock
        return self.socks[client]

    def frame(self, made: Made) -> bytes:
        """Return what is sent for a request, with its length; wrong where it has to be."""
        client = made.client.replace(OWN, self.given.own)
        frame = bytearray(encode_request(made.api_key, made.version, 1, client, self._sent(made.message)))
        if made.wrong is None:
            return bytes(frame)
        what, number = made.wrong
        body_at = _HEADER_AT + 10 + len(client.encode())
        if what == "version":
            frame[6:8] = (number % (1 << 16)).to_bytes(2)
        elif what == "more":
            frame += bytes(number)
        elif what == "cut":
            del frame[max(len(frame) - number, body_at) :]
        elif what == "client id":
            length = b"\xff\xff" if number else b"\x00\x02\xff\xfe"
            frame[12:body_at] = length
        elif what == "byte" and len(frame) > body_at:
            frame[body_at + number % (len(frame) - body_at)] ^= 1 + (number >> 10) % 255
        frame[:4] = (len(frame) - 4).to_bytes(4)
        if what == "length":
            frame[:4] = (number % (1 << 32)).to_bytes(4)
        return bytes(frame)

    def received(self, made: Made, sent_at: float, answered_at: float) -> Reply:
        """Return the answer to a request, which has begun to arrive."""
        try:
            frame = receive_frame(self.sock(made.client))
        except OSError:
            self.hang_up(made.client)
            return Reply(answer=CLOSED, sent_at=sent_at, answered_at=answered_at)
        answer = _decoded(made, frame)
        throttle_ms = answer.get("throttle_time_ms", 0) if isinstance(answer, dict) else 0
        self._learn(answer)
        return Reply(
            answer=comparable(answer, self.given),
            throttle_ms=throttle_ms,
            sent_at=sent_at,
            answered_at=answered_at,
        )

    def hang_up(self, client: str | None = None) -> None:
        """Close the connection of a client id, or all of them; the next request has another."""
        for name in list(self.socks) if client is None else [client]:
            if name in self.socks:
                self.socks.pop(name).close()

    def await_coordinators(self) -> None:
        """Wait until every group's coordinator has loaded and there are producer ids: Kafka begins without."""
        message: dict[str, Any] = {"transactional_id": None, "transaction_timeout_ms": 60_000}
        asked = [(INIT_PRODUCER_ID, 1, message), (FIND_COORDINATOR, 3, {"key": "t", "key_type": 1})]
        for number in range(6 * COORDINATORS):  # whose names are as good as sure to fall into each of them
            group_id = f"g{number}"
            asked.append((FIND_COORDINATOR, 3, {"key": group_id, "key_type": 0}))
            asked.append((OFFSET_FETCH, 7, {"group_id": group_id, "topics": [], "require_stable": False}))
        for api_key, version, message in asked:
            made = Made(api_key=api_key, version=version, message=message, client=CONTROL)
            while self.ask(made)["error_code"] in LOADING:
                time.sleep(0.05)

    def _sent(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._sent(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._sent(item) for item in value]
        if isinstance(value, Batch):
            return self._produced(value)
        if isinstance(value, Session):
            return (
                self.given.sessions[value.number]
                if value.number < len(self.given.sessions)
                else NO_SUCH_SESSION
            )
        if not isinstance(value, str):
            return value
        if value.startswith("id:"):
            return self.given.ids.get(value[3:], UNKNOWN_ID)
        if value.startswith("member:"):
            number = int(value[7:])
            return self.given.members[number] if number < len(self.given.members) else "nobody"
        return value.replace(OWN_IP, self.given.own_ip).replace(OWN, self.given.own)

    def _produced(self, batch: Batch) -> bytes:
        content = bytearray(batch.content)
        if batch.producer < len(self.given.producers):
            content[_ANY_PRODUCER : _ANY_PRODUCER + 8] = self.given.producers[batch.producer].to_bytes(8)
        renew_crc(content)
        return bytes(content)

    def _learn(self, value: Any) -> None:
        """Keep the topic ids, producer ids, member ids and sessions of an answer."""
        if isinstance(value, list):
            for item in value:
                self._learn(item)
        if not isinstance(value, dict):
            return
        if value.get("producer_id", -1) >= 0 and "producer_epoch" in value:
            self.given.producers.append(value["producer_id"])
        is_of_member = "generation_id" in value and value["error_code"] in (NONE, MEMBER_ID_REQUIRED)
        if is_of_member and value["member_id"] not in self.given.members:
            self.given.members.append(value["member_id"])
        if value.get("session_id") and value["session_id"] not in self.given.sessions:
            self.given.sessions.append(value["session_id"])
        name, topic_id = value.get("name"), value.get("topic_id", "")
        if isinstance(name, str) and topic_id.strip("0-") and not value.get("error_code"):
            name = name.replace(self.given.own, OWN)
            self.given.ids[name] = topic_id
            self.given.names[topic_id] = name
        for item in value.values():
            if isinstance(item, list) and item and isinstance(item[0], dict):
                self._learn(item)


def own_names(number: int) -> str:
    """Return what makes the names of the sequence with this number its own."""
    return f"-{number:08x}{OWN_ENDING}"


assert len(own_names(0)) == OWN_LENGTH


def own_ip(number: int) -> str:
    """Return the address of this machine that the connections of the sequence with this number come from."""
    return f"127.{1 + (number >> 16) % 200}.{(number >> 8) % 256}.{number % 256}"


def ask_both(sides: Sequence[Side], made: Made) -> list[Reply]:
    """Send a request to all sides at once and return what came of it."""
    timeout_s = HANGING_S if has_null_records(made) or is_unanswered(made) else TIMEOUT_S
    sent = [side.send(made) for side in sides]
    if is_unanswered(made):
        # The next answer says that it was handled, whether the connection lives, and how long it was deaf.
        made = probe(made.client)
        for side in sides:
            side.send(made)
    return _receive_all(sides, made, sent, timeout_s)


def _receive_all(sides: Sequence[Side], made: Made, sent: Sequence[float], timeout_s: float) -> list[Reply]:
    replies = [Reply(answer=SILENT, sent_at=at) for at in sent]
    waiting = {side.sock(made.client): place for place, side in enumerate(sides)}
    give_up_at = time.monotonic() + timeout_s
    while waiting:
        ready = select.select(list(waiting), [], [], max(give_up_at - time.monotonic(), 0))[0]
        now = time.monotonic()
        if not ready:
            break
        for sock in ready:
            place = waiting.pop(sock)
            replies[place] = sides[place].received(made, sent[place], now)
            give_up_at = min(give_up_at, now + BEHIND_S)
    for place in waiting.values():
        sides[place].hang_up(made.client)
    return replies


def _decoded(made: Made, frame: bytes) -> Any:
    """Return the message of an answer; its bytes where nothing says how to read them."""
    api, version = API_BY_KEY[made.api_key], made.version
    if made.wrong is not None and made.wrong[0] == "version":
        version = made.wrong[1]
        if not api.min_version <= version <= api.max_version:
            version = 0  # so is an unknown version of ApiVersions answered; of others it is not
    at = 4 + api.has_tagged_response_header(version)
    try:
        return read_response(made.api_key, version, frame, at)
    except (ProtocolError, UnsupportedVersionError):
        return bytes(frame)


def has_null_records(made: Made) -> bool:
    """Return whether this is a Produce request in which a partition's records are null."""
    return made.api_key == PRODUCE and any(
        part["records"] is None for topic in made.message["topic_data"] for part in topic["partition_data"]
    )


def is_unanswered(made: Made) -> bool:
    """Return whether a request has no answer."""
    return made.api_key == PRODUCE and made.message["acks"] == 0 and made.wrong is None


def exchange(sides: Iterable[Side], made: Made) -> list[Any]:
    """Ask each side on a connection of its own and return the answers; a throttled connection is not used again."""
    found = []
    for side in sides:
        reply = ask_both([side], made)[0]
        if reply.throttle_ms:
            side.hang_up(made.client)
        found.append(reply.answer)
    return found
