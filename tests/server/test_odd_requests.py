"""Every API in every version, asked for the unknown, the empty, the null, the long and what is no UTF-8.

Each request is answered with what can be read, or its connection is closed in one line: no traceback and no silence.
"""

import asyncio
import logging

import pytest
from tests.server.whole_node import tracebacks, whole_node
from tests.wire.messages import response_body_at
from tests.wire.odd_messages import odd_frames

from tidegate.in_slices import run_at_once
from tidegate.wire import API_BY_KEY, read_response

API_VERSIONS, DESCRIBE_QUOTAS, ALTER_QUOTAS = 18, 48, 49
SERVED = sorted(
    {0, 1, 2, 3, 8, 9, 10, 19, 20, 22, 32, 37, 60, 75, API_VERSIONS, DESCRIBE_QUOTAS, ALTER_QUOTAS}
)
PAIRS = [
    (key, version)
    for key in SERVED
    for version in range(API_BY_KEY[key].min_version, API_BY_KEY[key].max_version + 1)
]
NO_ANSWER = "acks=zero"  # no answer, and where it fails the end of the connection
LONG_POLL = "max_wait_ms=most"  # an answer in 24 days


@pytest.mark.parametrize("api_key", SERVED, ids=lambda key: API_BY_KEY[key].name)
def test_odd_requests_are_answered_or_closed_in_one_line(tmp_path, caplog, api_key):
    """All odd requests of all versions of one API, one after another, on a node with one topic."""

    async def main():
        async with whole_node(tmp_path) as node:
            run_at_once(node.storage.topics.create_in_slices("x", 1, {}))
            answered = 0
            for version in range(API_BY_KEY[api_key].min_version, API_BY_KEY[api_key].max_version + 1):
                for what, frame in odd_frames(api_key, version):
                    if NO_ANSWER in what or LONG_POLL in what:
                        continue
                    caplog.clear()
                    answer = await node.client.ask(frame)
                    about = f"v{version} {what}"
                    assert not tracebacks(caplog.records), about
                    if answer is None:
                        assert len(caplog.records) == 1, about
                        assert "\n" not in caplog.records[0].getMessage(), about
                    else:
                        answered += 1
                        read_response(api_key, version, answer, response_body_at(api_key, version))
            assert answered

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
