"""The player holds a broker to what was recorded, in time as in content: a few scripted answers show each rule."""

import socket
import struct
import threading
import time
from contextlib import suppress

import pytest
from tests.e2e.plain_client import receive_frame
from tests.vectors.wire_player import Player, StepDiffersError

from tidegate.wire import encode_request, encode_response, read_request
from tidegate.wire.header import decode_request_header

INIT_PRODUCER_ID, VERSION = 22, 1
RENEW_DELEGATION_TOKEN = 39
REQUEST = {"transactional_id": None, "transaction_timeout_ms": 1000}


class ScriptedBroker:
    """Answers each frame of one connection with the next of its answers, after so many ms; None closes."""

    def __init__(self, *answers: tuple[int, bytes | None]) -> None:
        self.frames: list[bytes] = []
        self._answers = answers
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> "ScriptedBroker":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._thread.join(10)

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()

    def _serve(self) -> None:
        with suppress(ConnectionError), self._listener.accept()[0] as sock:  # a player that leaves may reset
            for delay_ms, answer in self._answers:
                self.frames.append(receive_frame(sock))
                time.sleep(delay_ms / 1000)
                if answer is None:
                    return
                sock.sendall(answer)
            sock.recv(1)


def answer(**fields: object) -> bytes:
    """Return an encoded answer to InitProducerId, with its length."""
    body = {"throttle_time_ms": 0, "error_code": 0, "producer_id": 7, "producer_epoch": 0, **fields}
    return b"".join(encode_response(INIT_PRODUCER_ID, VERSION, 1, body).buffers)


def step(**rules: object) -> dict:
    """Return a recorded step that asks InitProducerId, with rules of its own."""
    frame = encode_request(INIT_PRODUCER_ID, VERSION, 1, "c", REQUEST)[4:]
    decoded = {"throttle_time_ms": 0, "error_code": 0, "producer_id": 7, "producer_epoch": 0}
    return {
        "op": "request", "api": "InitProducerId", "api_key": INIT_PRODUCER_ID, "version": VERSION, "client_id": "c",
        "correlation_id": 1, "request_hex": frame.hex(), "outcome": "response", "answered_after_ms": 1.0,
        "decoded": decoded, **rules,
    }  # fmt: skip


def difference(broker: ScriptedBroker, *steps: dict) -> str:
    """Play the steps and return what differs, or nothing."""
    with broker:
        try:
            Player(broker.address).play({"name": "s", "steps": list(steps)})
        except StepDiffersError as error:
            return str(error)
    return ""


@pytest.mark.parametrize(
    ("within", "said"),
    [
        ([150, 5000], ""),
        ([0, 199], "step 0 (InitProducerId v1): answered_within_ms: expected 0 to 199, got "),
        ([4000, 5000], "step 0 (InitProducerId v1): answered_within_ms: expected 4000 to 5000, got "),
    ],
)
def test_an_answer_may_be_neither_early_nor_late(within, said) -> None:
    """Bounds of a mute are strict on both sides."""
    found = difference(ScriptedBroker((200, answer())), step(answered_within_ms=within))
    assert found.startswith(said) if said else not found
    if said:
        assert float(found.rpartition(" ")[2]) >= 200


@pytest.mark.parametrize(
    ("recorded", "bounds", "delay_ms", "got", "fits"),
    [
        (9000, [5000, 10_000], 0, 6000, True),
        (9000, [5000, 10_000], 0, 300, False),  # has shrunk, though hardly any time has passed
        (9000, [5000, 10_000], 400, 4700, True),
        (9000, [5000, 10_000], 400, 10_001, False),
        (9000, [1, 10_000], 100, 0, False),
        (300, [1, 1000], 400, 0, True),
    ],
)
def test_a_throttle_time_may_shrink_by_the_time_that_has_passed(
    recorded, bounds, delay_ms, got, fits
) -> None:
    """What a run is behind the recording is off the lower bound, and off nothing else."""
    recorded_step = step(bounds={"throttle_time_ms": bounds})
    recorded_step["decoded"]["throttle_time_ms"] = recorded
    found = difference(ScriptedBroker((delay_ms, answer(throttle_time_ms=got))), recorded_step)
    assert (not found) == fits, found


def test_what_was_answered_in_this_run_is_sent() -> None:
    """A bound value is put into the request, bytes as bytes."""
    renewed = encode_request(RENEW_DELEGATION_TOKEN, 1, 1, "c", {"hmac": b"old", "renew_period_ms": 5})[4:]
    broker = ScriptedBroker((0, answer(producer_id=99)), (0, None))
    bound = step(
        api="RenewDelegationToken", api_key=RENEW_DELEGATION_TOKEN, request_hex=renewed.hex(), outcome="closed",
        bind={"renew_period_ms": {"step": 0, "path": "producer_id"}},
    )  # fmt: skip
    assert not difference(broker, step(variable=["producer_id"]), bound)
    header = decode_request_header(broker.frames[1])
    sent = read_request(header.api_key, header.api_version, broker.frames[1], header.body_at)
    assert (bytes(sent["hmac"]), sent["renew_period_ms"]) == (b"old", 99)


@pytest.mark.parametrize(
    ("sent", "outcome", "said"),
    [
        (None, "closed", ""),
        (None, "response", "connection: expected an answer, got closed"),
        (answer(), "closed", "connection: expected closed, got an answer of 20 bytes"),
        (answer(), "silent", "connection: expected silence, got an answer"),
        (None, "silent", "connection: expected silence, got closed"),
        (struct.pack(">i", 2) + b"\0\0", "response", "correlation_id: expected 1, got 0"),
        (
            struct.pack(">i", 5) + b"\0\0\0\1\0",
            "response",
            "connection or answer: expected as recorded, got ",
        ),
        (struct.pack(">i", 0), "response", "correlation_id: expected 1, got 0"),
    ],
)
def test_outcomes(sent, outcome, said) -> None:
    """A broker that closes, answers, or answers what cannot be read, where something else was recorded, differs."""
    found = difference(ScriptedBroker((0, sent)), step(outcome=outcome, wait_ms=300))
    assert found.startswith(f"step 0 (InitProducerId v1): {said}") if said else not found


def test_a_broker_that_is_not_there() -> None:
    """Nobody at the address is a difference, not an end of the run."""
    broker = ScriptedBroker()
    broker.close()
    with pytest.raises(StepDiffersError, match="connection or answer: expected as recorded, got "):
        Player(broker.address).play({"name": "s", "steps": [step()]})


def test_time_to_load() -> None:
    """After a recorded answer of a coordinator that loads, the next request is sent half a second later."""
    begun = time.monotonic()
    loading = step()
    loading["decoded"]["error_code"] = 14
    assert not difference(ScriptedBroker((0, answer(error_code=14)), (0, answer())), loading, step())
    assert time.monotonic() - begun >= 0.5


@pytest.mark.parametrize(("before_ms", "waited_for"), [(10, True), (0, False), (1500, False)])
def test_a_change_may_take_its_time_to_arrive(before_ms, waited_for) -> None:
    """Where a recording waits for a change, the player waits until it is there, whatever time that takes."""
    seen: list[tuple] = []
    renewed = {"error_code": 0, "expiry_timestamp": 1, "throttle_time_ms": 0}
    change = step(api="RenewDelegationToken", api_key=RENEW_DELEGATION_TOKEN, decoded=renewed)
    done = b"".join(encode_response(RENEW_DELEGATION_TOKEN, VERSION, 1, renewed).buffers)
    with ScriptedBroker((0, done), (0, answer())) as broker:
        player = Player(broker.address, await_change=lambda asked, got: seen.append((asked, got)))
        player.play({"name": "s", "steps": [change, step(before_ms=before_ms)]})
    assert seen == ([(change, renewed)] if waited_for else [])
