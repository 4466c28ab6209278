"""A storage with its handlers, driven by real encoded requests without sockets."""

from pathlib import Path
from typing import Any

from tests.unit.in_slices import whole
from tests.unit.storage.node import StorageNode

from tidegate.api_keys import FETCH
from tidegate.broker.cluster import ClusterView, Endpoints
from tidegate.broker.handlers import handler_table
from tidegate.broker.storage_settings import follow_settings
from tidegate.server.requests.handler import Answer, Connection, Deferred, Handler, Request, Work
from tidegate.server.settings.dynamic_settings import DynamicSettings
from tidegate.storage.topics.topic_defaults import TOPIC_DEFAULTS
from tidegate.wire import decode_request_header, encode_request, read_response

_TURNS = 10
CONNECTION = Connection(1, "PLAINTEXT", "127.0.0.1", "127.0.0.1", 9092)


class Permits:
    """A client's quotas: how many bytes a fetch may have, and how many mutations are left."""

    def __init__(self, *, mutations: int = 2**31, fetch_bytes: int = 2**31 - 1) -> None:
        self.mutations = mutations
        self.fetch_bytes = fetch_bytes
        self.charged: list[int] = []

    def fetch_limit_bytes(self) -> int:
        """Return the cap of a fetch."""
        return self.fetch_bytes

    def record_mutations(self, permits: int) -> bool:
        """Admit while nothing is owed, like a strict quota."""
        if self.mutations < 0:
            return False
        self.mutations -= permits
        self.charged.append(permits)
        return True


class Node(StorageNode):
    """A storage in a directory, and its handlers."""

    def __init__(
        self, directory: Path, *, node_id: int = 1, endpoints: Endpoints | None = None, **options: Any
    ) -> None:
        self.node_id = node_id
        self.endpoints = endpoints or {node_id: {}}
        self.permits = Permits()
        super().__init__(directory, **options)

    def start(self) -> None:
        """Make the handlers, and start what runs beside requests."""
        super().start()
        self.cluster = ClusterView(self.node_id, self.endpoints, self.storage.topics)
        config = self.storage.config
        self.settings = DynamicSettings(
            self.storage.store,
            {self.node_id: config.set_at_start()},
            exact=config.kafka_exact,
            defaults=TOPIC_DEFAULTS,
        )
        self.handlers: dict[int, Handler] = handler_table(
            self.storage, self.cluster, self.settings, self.scheduler
        )
        follow_settings(self.storage, self.settings, self.node_id)

    def ask(
        self,
        api_key: int,
        version: int,
        message: dict[str, Any],
        *,
        writable: bool = True,
        in_turn: bool = False,
    ) -> Answer | Deferred:
        """Send a request through its bytes; return what the handler gave. in_turn: it may put off what `turn` does."""
        frame: bytes | bytearray = encode_request(api_key, version, 7, "tester", message)[4:]
        if writable:
            frame = bytearray(frame)
        view = memoryview(frame)
        header = decode_request_header(view)
        turn = self.storage.turn if in_turn else None
        return self.handle(Request(header, view, CONNECTION, self.permits, self.clock.now_ms(), turn))

    def handle(self, request: Request) -> Answer | Deferred:
        """Return what the handler of a request gives, after all of its slices."""
        result = self.handlers[request.header.api_key](request)
        return result if isinstance(result, Answer | Deferred) else whole(result)

    def awaited(self, result: Answer | Deferred, *, wait_s: float = 0) -> Answer:
        """Return an answer, after as many turns as it takes and so long on the scheduler; the clock stands still."""
        if isinstance(result, Answer):
            return result
        answers: list[Answer] = []
        result.when_ready(lambda: answers.append(result.answer()))
        for _ in range(_TURNS):
            if answers:
                break
            self.round()
            self.scheduler.advance(wait_s)
        (answer,) = answers
        return answer

    def begin(self, frame: memoryview) -> Work:
        """Return the work in slices that the handler of a request, given by its bytes, begins."""
        header = decode_request_header(frame)
        work = self.handlers[header.api_key](
            Request(header, frame, CONNECTION, self.permits, self.clock.now_ms())
        )
        assert not isinstance(work, Answer | Deferred)
        return work

    def call(self, api_key: int, version: int, message: dict[str, Any], **options: Any) -> dict[str, Any]:
        """Send a request; return the answer, read back from its bytes. A Fetch is sent twice: the second is known."""
        answer = self.awaited(self.ask(api_key, version, message, **options))
        found = decoded(api_key, version, answer)
        if api_key == FETCH:
            again = self.ask(api_key, version, message, **options)
            assert isinstance(again, Answer)
            assert decoded(api_key, version, again) == found
            assert (again.charge, type(again)) == (answer.charge, type(answer))
        return found


def decoded(api_key: int, version: int, answer: Answer) -> dict[str, Any]:
    """Return an answer, read back from its bytes, records included."""
    assert answer.response is not None
    raw = b"".join(
        buffer if isinstance(buffer, bytes | bytearray | memoryview) else buffer.read()
        for buffer in answer.response.buffers
    )
    assert len(raw) - 4 == answer.response.size
    return read_response(api_key, version, raw, len(raw) - answer.response.body_size)
