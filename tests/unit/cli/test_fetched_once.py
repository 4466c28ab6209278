"""A throttled fetch is answered empty, and its client asks again: the bytes count once, in every command."""

import json

import pytest
from tests.replaying.files import write_events
from tests.replaying.logs import START_MS
from tests.replaying.node import RecordingNode

from tidegate.cli.main import main
from tidegate.quota import QuotaRecord

_SIZE = 8000
_PLAN = "version: 1\nquotas:\n  - user: {name: etl}\n    consumer_byte_rate: 1GB\n"


@pytest.fixture
def usage(tmp_path):
    """A consumer with 2 kB/s that asks again every 300 ms until it is answered; returns the record's directory."""
    node = RecordingNode()
    quota = QuotaRecord(entity=(("user", "etl"),), key="consumer_byte_rate", value=2000.0)
    node.start(START_MS, records=(quota,))
    for attempt in range(200):
        node.fetch("etl", "e", _SIZE, START_MS + 300 * attempt)
    write_events(tmp_path / "usage", node.events)
    return tmp_path / "usage"


def _json(capsys, *arguments):
    code = main([*map(str, arguments), "--json"])
    assert code in (0, 1)
    return json.loads(capsys.readouterr().out)


def _fetched(document):
    (entity,) = [entity for entity in document["entities"] if entity["quota_type"] == "Fetch"]
    return entity


def test_the_bytes_of_a_throttled_fetch_count_once(usage, tmp_path, capsys):
    """Usage, limits and replays in both loops agree, and no more than all of it was delayed."""
    (group,) = _json(capsys, "usage", usage)["groups"]
    delivered = group["fetch_bytes"]
    assert group["throttled_requests"] > 100
    assert 10 * _SIZE <= delivered <= 20 * _SIZE
    (tmp_path / "plan.yaml").write_text(_PLAN)
    plan = ("--quotas", tmp_path / "plan.yaml")
    for options in (("--in-force",), (*plan, "--loop", "open"), plan):
        (outcome,) = _fetched(_json(capsys, "replay", usage, *options))["plans"]
        assert outcome["recorded_bytes"] == delivered, options
        still_asked_for = _SIZE if options == plan else 0
        assert delivered <= outcome["bytes"] <= delivered + still_asked_for, options
        assert 0 < outcome["recorded_delayed_bytes"] <= delivered
    limits = _fetched(_json(capsys, "limits", usage, "--by", "user"))
    assert limits["bytes"] == delivered
    assert limits["never_throttled_bytes_per_second"] <= 2000
