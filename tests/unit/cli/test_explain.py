"""The text of `tidegate explain`."""

from tidegate.cli.explain import explanation_lines
from tidegate.cli.main import main


def level(limit, reason, **names):
    """Return a level of a document."""
    entity = {name.replace("_", "-"): text for name, text in names.items()}
    return {"entity": entity, "limit": limit, "applies": reason == "applies", "reason": reason}


def quota(**values):
    """Return a quota of a document, with these values."""
    usual = {
        "quota_type": "Produce", "quota_key": "producer_byte_rate", "unit": "bytes per second",
        "entity": {"client-id": None}, "by_callback": False, "shared_by": {"client-id": "c1"}, "rate": 2048.0,
        "utilization": 2.0, "throttle_time_ms": 0, "throttled_connections": 0, "throttled_until_ms": None,
        "reason": None, "limit": 1024.0, "levels": [level(1024.0, "applies", client_id=None)],
    }  # fmt: skip
    return {**usual, **values}


def text_of(**values):
    """Return the explanation of one quota."""
    document = {"node_id": 1, "time_ms": 0, "user": "a\x1b", "client_id": "c1", "quotas": [quota(**values)]}
    return "\n".join(explanation_lines(document))


def test_a_quota_of_the_default_entity():
    """What applies has a mark; no name writes to the terminal."""
    assert text_of() == (
        "user='a\\x1b', client-id='c1', node 1\n\n"
        "Produce (producer_byte_rate): limit 1.0 KiB/s of client-id=<default>\n"
        "  shared by all clients with client-id='c1'\n"
        "  rate 2.0 KiB/s, 200 % of the limit\n"
        "  not throttled\n"
        "  * client-id=<default>: 1.0 KiB/s, applies"
    )


def test_throttles_are_told():
    """Of connections that are muted now, and of the next request."""
    muted = text_of(throttled_connections=2, throttled_until_ms=1250, reason="produce quota exceeded")
    assert "\n  throttled: 2 connections for another 1.2 s, until " in muted
    assert ", produce quota exceeded\n" in muted
    assert "a request now is throttled for at least 1,500 ms" in text_of(throttle_time_ms=1500)


def test_the_place_of_a_rate_is_told():
    """A cluster-wide quota has the rate of all brokers; of mutations that gateways share, a gateway has its own."""
    assert "\n  rate 2.0 KiB/s over all brokers, 200 % of the limit\n" in text_of(scope="cluster")
    mutations = text_of(scope="cluster", quota_type="ControllerMutation", unit="mutations per second")
    assert "rate 2048/s through this gateway, 200 % of the limit of all gateways\n" in mutations


def test_an_observed_client_is_not_throttled():
    """Neither is it said to be: only what its throttle time would be."""
    over = text_of(throttle_time_ms=1500, observed=True)
    assert "\n  observed: a request now would be throttled for at least 1,500 ms, but is not\n" in over
    assert "\n  observed: not throttled\n" in text_of(observed=True)


def test_no_quota_is_one_line():
    """Eight levels without a quota need no eight lines."""
    levels = [
        level(None, "no quota is defined", user="a"),
        level(None, "no quota is defined", client_id=None),
    ]
    text = text_of(limit=None, entity=None, levels=levels)
    assert "Produce (producer_byte_rate): no limit\n" in text
    assert text.endswith("no quota is defined at any of the eight levels")


def test_a_callback_is_named():
    """It has no levels."""
    assert "limit 1.0 KiB/s from the quota callback\n" in text_of(by_callback=True, entity=None, levels=[])


def test_a_client_is_needed(capsys):
    """An error, before anything is asked for."""
    assert main(["explain"]) == 2
    assert "no client is named" in capsys.readouterr().err
