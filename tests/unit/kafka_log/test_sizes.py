"""Sizes of messages, added up from the JSON of the request log."""

from collections import defaultdict
from pathlib import Path

import pytest
from tests.unit.kafka_log.samples import QUICK, THROTTLED, all_lines, truth

from tidegate.kafka_log.sizes import body_size, request_size, response_size
from tidegate.wire import API_BY_KEY


@pytest.mark.parametrize("path", [QUICK, THROTTLED], ids=["quick", "throttled"])
def test_sums_are_what_the_broker_counted(path: Path) -> None:
    """To the byte for every API, over as many requests as the broker had counted when its metrics were read."""
    known = truth(path)
    totals = known["broker_totals"]
    sizes: dict[str, list[int]] = defaultdict(list, AddPartitionsToTxn=[])
    for logged in all_lines(path):
        header = logged["requestHeader"]
        key, version = header["requestApiKey"], header["requestApiVersion"]
        if key in API_BY_KEY:
            sizes[API_BY_KEY[key].name].append(body_size(key, version, "request")(logged["request"]))
    del sizes["AddPartitionsToTxn"]  # the broker counts its own ones apart
    counted = {name: totals["requests"].get(name, 0) for name in sizes}
    found = {name: sum(sizes[name][:count]) for name, count in counted.items() if count <= len(sizes[name])}
    assert {"Produce", "Fetch", "Metadata", "CreateTopics", "JoinGroup"} <= set(found)
    assert found == {name: totals["request_body_bytes"].get(name, 0) for name in found}


def test_headers_are_added() -> None:
    """Of a request with its client id in UTF-8, of a flexible one with the number of its tags; of a response too."""
    body = {"topics": [], "allowAutoTopicCreation": True}
    assert request_size(3, 4, "é", body) == 10 + 2 + 4 + 1
    flexible = {
        **body,
        "includeClusterAuthorizedOperations": False,
        "includeTopicAuthorizedOperations": False,
    }
    assert request_size(3, 9, "é", flexible) == 10 + 2 + 1 + 1 + 1 + 1 + 1 + 1
    assert response_size(19, 4, {"throttleTimeMs": 0, "topics": []}) == 4 + 4 + 4
    assert response_size(19, 5, {"throttleTimeMs": 0, "topics": []}) == 4 + 1 + 4 + 1 + 1
