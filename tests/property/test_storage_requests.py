"""Handlers under hostile requests: recorded frames with changed bytes never fail otherwise than by `ProtocolError`."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.broker.node import CONNECTION, Node

from tidegate.server.requests.handler import Deferred, Request
from tidegate.wire import ProtocolError, decode_request_header

VECTORS = Path(__file__).parents[1] / "vectors" / "wire"
APIS = {0, 1, 2, 3, 8, 9, 10, 19, 20, 22, 32, 37, 60, 75}


def recorded_frames() -> list[bytes]:
    """Return one recorded frame per API, version and length."""
    frames: dict[tuple[int, int, int], bytes] = {}
    for scenario in json.loads((VECTORS / "apis.json").read_text())["scenarios"]:
        for step in scenario["steps"]:
            if step["op"] == "request" and step["api_key"] in APIS:
                frame = bytes.fromhex(step["request_hex"])
                frames.setdefault((step["api_key"], step["version"], len(frame)), frame)
    return list(frames.values())


FRAMES = recorded_frames()


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """Return a node that all examples share: what one leaves behind is there for the next."""
    directory = Path(tempfile.mkdtemp(prefix="tidegate-hostile-"))
    node = Node(directory)
    yield node
    node.storage.close()
    shutil.rmtree(directory)


@given(
    frame=st.sampled_from(FRAMES),
    changes=st.lists(st.tuples(st.integers(8, 2000), st.integers(0, 255)), max_size=6),
    cut=st.integers(0, 400) | st.none(),
)
@settings(max_examples=400)
def test_only_protocol_errors(
    node: Node, frame: bytes, changes: list[tuple[int, int]], cut: int | None
) -> None:
    """Whatever the bytes after the API and version, a handler answers, waits, or raises `ProtocolError`."""
    data = bytearray(frame[: len(frame) if cut is None else max(cut, 8)])
    for at, value in changes:
        if at < len(data):
            data[at] = value
    node.permits.mutations = 3
    try:
        header = decode_request_header(data)
        result = node.handle(Request(header, memoryview(data), CONNECTION, node.permits, node.clock.now_ms()))
    except ProtocolError:
        return
    if isinstance(result, Deferred):
        result.cancel()
