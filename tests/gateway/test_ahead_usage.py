"""The usage record of clients that send many Produce requests together: complete, and replayed as decided."""

import contextlib
import json
import random
import signal
import socket
import struct
import threading
import time
from collections import Counter

import pytest
from tests.e2e.plain_client import receive_frame
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.holding_broker import HoldingBroker, connected, ids_of, produce
from tests.gateway.test_usage import requests_of
from tests.waiting import wait_until

from tidegate.api_keys import PRODUCE
from tidegate.cli.main import main

LEAVING, STAYING = ("leaves-0", "leaves-1"), ("stays-0", "stays-1")
CLIENTS = LEAVING + STAYING
SECONDS = 4.0
MOST_REQUESTS, SIZES = 80, range(50, 2_000)
RESET = struct.pack("ii", 1, 0)


def quotas(rate: float) -> str:
    """Return quotas of bytes and of time for every client."""
    return "quotas:\n" + "".join(
        f"  - client-id: {{name: {name}}}\n    producer_byte_rate: {rate}\n    request_percentage: 0.5\n"
        for name in CLIENTS
    )


class Client:
    """Sends Produce requests, many together, until `ends_s`, and leaves now and then. sent: how many it has sent."""

    def __init__(self, gateway: GatewayProcess, name: str, seed: int, ends_s: float) -> None:
        self.sent = 0
        self._gateway, self._name, self._random, self._ends_s = gateway, name, random.Random(seed), ends_s
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while time.monotonic() < self._ends_s:
            with connected(self._gateway) as sock, contextlib.suppress(ConnectionError):
                for _ in range(self._random.randint(1, 3)):
                    self._send_and_receive(sock)

    def _send_and_receive(self, sock: socket.socket) -> None:
        count = self._random.randint(1, MOST_REQUESTS)
        sizes = self._random.choices(SIZES, k=count)
        self.sent += count
        sock.sendall(b"".join(produce(number, self._name, size) for number, size in enumerate(sizes)))
        leaves = self._name in LEAVING and self._random.random() < 0.5
        for number in range(self._random.randint(0, count) if leaves else count):
            assert int.from_bytes(receive_frame(sock)[:4], "big") == number
        if leaves:
            if self._random.random() < 0.7:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            raise ConnectionError("this client leaves")


@pytest.mark.parametrize("observe", ["none", "all"])
def test_replay_decides_as_the_gateway_did(tmp_path, observe, capsys: pytest.CaptureFixture[str]):
    """All that the broker was sent is in the record, once, also of clients that leave, while quotas change."""
    broker, file, seed = HoldingBroker(), tmp_path / "quotas.yaml", random.randrange(1 << 30)
    print(f"seed {seed}")
    file.write_text(quotas(20_000))
    gateway = GatewayProcess(
        tmp_path,
        broker.address,
        (
            *("--quotas", str(file), "--override", "tidegate.quota.throttle.max.ms=30"),
            *("--override", f"tidegate.quota.observe={observe}"),
        ),
    ).start()
    try:
        ends_s = time.monotonic() + SECONDS
        clients = {name: Client(gateway, name, seed + number, ends_s) for number, name in enumerate(CLIENTS)}
        changed = f"{len(CLIENTS)} quotas changed"
        for number, rate in enumerate((40_000, 10_000), 1):
            time.sleep(SECONDS / 4)
            file.write_text(quotas(rate))
            gateway.process.send_signal(signal.SIGHUP)
            wait_until(lambda number=number: gateway.log.count(changed) == number, told=lambda: gateway.log)
        for client in clients.values():
            client.thread.join(60)
            assert not client.thread.is_alive()
        assert gateway.stop() == 0
        assert gateway.log.count(changed) == 2
        assert "Traceback" not in gateway.log
    finally:
        gateway.close()
        broker.close()
    recorded = Counter(client for client, *_ in requests_of(gateway.usage_dir, PRODUCE))
    for name, client in clients.items():
        assert len(ids_of(broker, name)) <= recorded[name] <= client.sent
        if name in STAYING:
            assert recorded[name] == client.sent
    capsys.readouterr()
    assert main(["replay", str(gateway.usage_dir), "--in-force", "--json"]) == 0
    found = {
        (each["client_id"], each["quota_type"]): each["plans"][0]
        for each in json.loads(capsys.readouterr().out)["entities"]
    }
    for name in CLIENTS:
        for quota_type in ("Produce", "Request"):
            of_type = found[name, quota_type]
            assert (of_type["recorded_throttled_requests"] > 3) is (observe == "none"), (name, of_type)
            assert of_type["throttle_ms"] == of_type["recorded_throttle_ms"]
            assert of_type["different_decisions"] == of_type["approximate_requests"] == 0
