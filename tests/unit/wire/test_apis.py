"""The table of APIs holds what Kafka 4.3.1's classes say."""

import json
from pathlib import Path

import pytest

from tidegate.wire.apis import API_BY_KEY, spoken_pairs

FACTS = json.loads((Path(__file__).parents[2] / "vectors" / "api-versions.json").read_text())["apis"]
BROKER_FACTS = [facts for facts in FACTS if "broker" in facts["listeners"]]


def test_every_api_of_a_broker_is_there():
    """77 APIs are spoken, in 277 versions that are stable."""
    assert list(API_BY_KEY) == [facts["key"] for facts in BROKER_FACTS]
    assert len(API_BY_KEY) == 77
    assert len(list(spoken_pairs())) == 277


@pytest.mark.parametrize("facts", BROKER_FACTS, ids=lambda facts: facts["name"])
def test_facts_are_kafkas(facts):
    """Names, versions, framing and flags are those of Kafka's classes."""
    api = API_BY_KEY[facts["key"]]
    assert (api.name, api.min_version, api.max_version) == (
        facts["name"],
        facts["min_version"],
        facts["max_stable_version"] if facts["unstable_versions"] else facts["max_version"],
    )
    assert (api.cluster_action, api.forwardable) == (facts["cluster_action"], facts["forwardable"])
    assert list(api.listeners) == facts["listeners"]
    for version in range(api.min_version, api.max_version + 1):
        request, response = facts["header_versions"][str(version)]
        assert api.speaks(version)
        assert api.is_flexible(version) == (request == 2)
        assert api.has_tagged_response_header(version) == (response == 1)
        assert api.throttle_time_ms_since == facts["throttle_time_ms_since"]


def test_versions_outside_are_not_spoken():
    """Produce is spoken from version 3, InitProducerId not in its unstable version 6."""
    assert not API_BY_KEY[0].speaks(2)
    assert not API_BY_KEY[22].speaks(6)
    assert not API_BY_KEY[18].speaks(-1)
