"""The benchmark against Apache Kafka runs: every frame is answered without error, and its numbers are numbers."""

import dataclasses
import socket

import pytest
from bench.ladder import rungs
from bench.ladder.__main__ import main
from bench.ladder.brokers import TidegateBench
from bench.ladder.costs import cost_of
from bench.ladder.secure import LISTENER, make_key, secure_settings
from bench.ports import free_port

from tidegate.wire import API_BY_KEY, read_response


@pytest.fixture
def bench_broker(tmp_path):
    """Return our broker as the ladder starts it, with all that the rungs need but the data to read."""
    broker = TidegateBench("tidegate", tmp_path / "broker")
    broker.start()
    try:
        rungs.set_up(broker, tmp_path)
        yield broker
    finally:
        broker.stop()


def test_a_broker_that_has_ended_by_itself_is_reported_with_its_log(tmp_path):
    """Stopping it is an error, once: what was measured or tested with it is not true."""
    broker = TidegateBench("tidegate", tmp_path / "broker").start()
    broker.check_running()
    broker.process.terminate()
    broker.process.wait()
    with pytest.raises(RuntimeError, match=r"(?s)tidegate has ended with exit code 0:.*Ctrl-C stops it"):
        broker.stop()
    broker.stop()


def test_frames_are_answered_without_error(bench_broker):
    """A frame that is refused would measure how fast it is refused."""
    with socket.create_connection(("127.0.0.1", bench_broker.port), timeout=10) as sock:
        for name, frame in rungs.frames().items():
            sock.sendall(frame)
            answer = sock.recv(int.from_bytes(sock.recv(4, socket.MSG_WAITALL), "big"), socket.MSG_WAITALL)
            key, version = int.from_bytes(frame[4:6], "big"), int.from_bytes(frame[6:8], "big")
            is_tagged = API_BY_KEY[key].has_tagged_response_header(version)
            message = read_response(key, version, answer, 5 if is_tagged else 4)
            assert _error_codes(message) <= {0}, name


def _error_codes(message):
    if isinstance(message, dict):
        own = {message["error_code"]} if "error_code" in message else set()
        return own.union(*map(_error_codes, message.values()))
    return set().union(*map(_error_codes, message)) if isinstance(message, list) else set()


@pytest.mark.parametrize(("mode", "connections"), [("request", 4), ("connect", 2)])
def test_the_loader_measures(bench_broker, tmp_path, monkeypatch, mode, connections):
    """Rate, and CPU of both sides for each request, are there and sensible; a topic can be made anew between runs."""
    monkeypatch.setattr(rungs, "WARMUP_S", 0.2)
    rungs.make_anew(bench_broker, "small")
    rungs.define_quotas(bench_broker, remove=True)
    result, sample = rungs.drive(bench_broker, tmp_path, mode, "produce100", connections, 0.5)
    assert result["requests"] > 0
    assert result["bytes_in"] >= result["requests"] * 20
    assert all(value > 0 for value in dataclasses.astuple(sample))


def test_the_secure_listener_is_measured(tmp_path):
    """Records go over SASL_SSL, and handshakes are counted."""
    make_key(tmp_path)
    further = (f"{LISTENER}://127.0.0.1:{free_port()}",)
    broker = TidegateBench(
        "tidegate", tmp_path / "broker", overrides=secure_settings(tmp_path), further=further
    )
    broker.start()
    try:
        sample = rungs._confluent(broker, "produce", "records", 1024, 16_384, 2, tmp_path)
        assert all(value > 0 for value in dataclasses.astuple(sample))
        assert rungs.handshakes(broker, tmp_path, 1).value > 10
    finally:
        broker.stop()


def test_a_cost_is_the_mean_of_the_pairs(capsys):
    """Ten percent more in every pair is a cost of ten percent, without spread."""
    calls = []

    def measure(with_it):
        calls.append(with_it)
        return 11.0 if with_it else 10.0

    cost = cost_of("nothing", measure, 4)
    assert (cost.share, cost.low, cost.high) == pytest.approx((0.1, 0.1, 0.1))
    assert calls[2:] == [True, False, False, True] * 2


def test_help_says_how_it_is_run(capsys):
    """`--help` names the options."""
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert all(name in text for name in ("--rounds", "--pairs", "--only"))
