"""What the comparison itself is made of, without a broker: sequences, what time explains, shrinking."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.differing.comparable import Given, comparable
from tests.differing.declared import declared
from tests.differing.play import Difference
from tests.differing.requests import ANONYMOUS, COMPARED, OWN_IP, Made, is_changed_by_both, make
from tests.differing.sequences import is_sharing, make_sequence, produce
from tests.differing.shrink import shrunk
from tests.differing.sides import CLOSED, SILENT, Reply, Side, own_ip
from tests.differing.timing import throttled_alike

from tidegate.api_keys import (
    ALTER_CLIENT_QUOTAS,
    CREATE_TOPICS,
    DESCRIBE_CLIENT_QUOTAS,
    FIND_COORDINATOR,
    INCREMENTAL_ALTER_CONFIGS,
    PRODUCE,
)
from tidegate.wire import API_BY_KEY
from tidegate.wire.header import decode_request_header

MADE = produce({("one@", 0): b""})


def _reply(throttle_ms: int, at_s: float, *, took_s: float = 0.001) -> Reply:
    return Reply(answer=None, throttle_ms=throttle_ms, sent_at=at_s, answered_at=at_s + took_s)


def test_a_seed_gives_the_same_sequence_again() -> None:
    """So that a difference can be looked at again."""
    for number in range(20):
        assert make_sequence(7, number) == make_sequence(7, number)


@pytest.mark.parametrize("api_key", COMPARED)
def test_what_is_made_can_be_sent(api_key: int) -> None:
    """Whatever is made of an API, its frame is one of it, but where that is what is wrong."""
    rng = random.Random(api_key)
    side = Side("none", "127.0.0.1", 0)
    side.begin(1)
    for _ in range(200):
        made = make(api_key, rng)
        frame = side.frame(made)
        if made.wrong is None:
            header = decode_request_header(frame[4:])
            assert (header.api_key, header.api_version) == (api_key, made.version)
            assert API_BY_KEY[api_key].min_version <= made.version <= API_BY_KEY[api_key].max_version


@pytest.mark.parametrize("api_key", COMPARED)
def test_every_version_is_made(api_key: int) -> None:
    """Of each API all versions that are served."""
    rng = random.Random(f"versions-{api_key}")
    api = API_BY_KEY[api_key]
    made = {make(api_key, rng).version for _ in range(400)}
    assert made == set(range(api.min_version, api.max_version + 1))


def test_throttles_differ_by_what_the_clocks_explain() -> None:
    """Two ms of age are two ms of throttle; ten ms more are not."""
    begun = (MADE, _reply(0, 10.0), _reply(0, 10.0))
    assert throttled_alike([begun, (MADE, _reply(500, 10.5), _reply(498, 10.502))])
    assert not throttled_alike([begun, (MADE, _reply(500, 10.5), _reply(485, 10.502))])
    assert not throttled_alike([begun, (MADE, _reply(500, 10.5), _reply(0, 10.502))])


def test_a_whole_window_is_a_thousand_ms() -> None:
    """At the end of a window the throttle jumps up (B§1.4), which one side may have seen and the other not yet."""
    begun = (MADE, _reply(0, 10.0), _reply(0, 10.0))
    around = (MADE, _reply(500, 10.9995), _reply(1499, 11.0005))
    assert throttled_alike([begun, around])
    assert not throttled_alike([begun, (MADE, _reply(500, 10.5), _reply(1500, 10.5))])


def test_tokens_know_no_windows() -> None:
    """A bucket fills evenly (B§1.6)."""
    made = Made(api_key=CREATE_TOPICS, version=7, message={})
    begun = (made, _reply(0, 10.0), _reply(0, 10.0))
    assert throttled_alike([begun, (made, _reply(500, 10.9995), _reply(499, 11.0005))])
    assert not throttled_alike([begun, (made, _reply(500, 10.9995), _reply(1499, 11.0005))])


def test_a_sequence_is_made_small() -> None:
    """What is left is what makes the difference: one request of two, one topic of three."""
    guilty = produce({("one@", 0): b"", ("three@", 0): b"", ("missing@", 0): b""})

    def find(sequence: Sequence[Made]) -> Difference | None:
        for place, made in enumerate(sequence):
            if made.api_key == PRODUCE and "'three@'" in repr(made.message):
                return Difference(number=1, place=place, made=made, what="answer", kafka=1, tidegate=2)
        return None

    sequence = [*make_sequence(7, 1)[:0], Made(api_key=CREATE_TOPICS, version=7, message={}), guilty]
    found = shrunk(sequence, find, within_s=10)
    assert found is not None
    (made,) = found.sequence
    assert [topic["name"] for topic in made.message["topic_data"]] == ["three@"]


def test_what_is_not_seen_again_is_not_made_small() -> None:
    """Time may have decided; it is told apart."""
    assert shrunk([MADE], lambda _: None, within_s=1) is None


def test_ids_and_names_of_one_broker_are_not_compared() -> None:
    """Topic ids, producer ids and the endings of names stand for the same on both sides."""
    given = Given(own="-1-d", names={"ab-1": "one@"}, producers=[4000])
    answer = {"topics": [{"name": "one-1-d", "topic_id": "ab-1"}], "producer_id": 4000, "throttle_time_ms": 3}
    assert comparable(answer, given) == {
        "topics": [{"name": "one@", "topic_id": "id:one@"}], "producer_id": 0,
    }  # fmt: skip


def test_an_address_is_the_sequences_own() -> None:
    """What limits the connections of an address limits those of one sequence; it stands for the same on both sides."""
    assert own_ip(1) != own_ip(2) != own_ip(70_000) != own_ip(258)
    given = Given(own="-1-d", own_ip="127.1.0.9")
    assert comparable({"entity": [{"entity_name": "127.1.0.9"}]}, given) == {
        "entity": [{"entity_name": OWN_IP}],
    }  # fmt: skip


def test_what_users_share_is_known() -> None:
    """Before a sequence in which all clients share a quota, what earlier ones were charged is forgotten."""
    entity = [{"entity_type": "user", "entity_name": ANONYMOUS}]
    entry = {"entity": entity, "ops": [{"key": "producer_byte_rate", "value": 1.0, "remove": False}]}
    message = {"entries": [entry], "validate_only": False}
    altered = Made(api_key=ALTER_CLIENT_QUOTAS, version=1, message=message)
    assert is_sharing([MADE, altered])
    assert not is_sharing([MADE, replace(altered, message={**message, "validate_only": True})])
    entity.append({"entity_type": "client-id", "entity_name": "c@"})
    assert not is_sharing([MADE, altered])


def test_nobody_is_kept_out_by_what_is_made() -> None:
    """Settings that Kafka alone would change, or that would refuse connections, are asked for without effect."""
    rng = random.Random(1)
    for _ in range(300):
        message = make(INCREMENTAL_ALTER_CONFIGS, rng).message
        if not message["validate_only"]:
            assert all(map(is_changed_by_both, message["resources"]))


@pytest.mark.parametrize(("letter", "times"), [("x", 32_700), ("é", 16_350)])
def test_a_text_that_was_cut_is_known_by_its_bytes(letter: str, times: int) -> None:
    """Letters of two bytes are half as many in it (row W4)."""
    made = Made(api_key=DESCRIBE_CLIENT_QUOTAS, version=0, message={})
    text = f"Unsupported entity type {letter * times}"
    difference = Difference(
        number=1, place=1, made=made, what="answer", kafka=SILENT, tidegate={"error_message": text}
    )
    found = declared(difference)
    assert found is not None
    assert found.row == "W4"


def test_a_long_text_that_is_not_utf_8_closes_the_connection() -> None:
    """Kafka reads it, as long as it need not send it back (row W3)."""
    made = Made(api_key=FIND_COORDINATOR, version=1, message={"key": "a" * 32_767}, wrong=("byte", 1))
    difference = Difference(number=1, place=1, made=made, what="answer", kafka={}, tidegate=CLOSED)
    found = declared(difference)
    assert found is not None
    assert found.row == "W3"
    assert declared(replace(difference, made=replace(made, message={"key": "a"}))) is None
