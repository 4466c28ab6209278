"""Reading and writing bodies: what a message looks like, and how errors say where."""

import struct

import pytest

from tidegate.in_slices import run_at_once
from tidegate.wire import (
    EncodedElements,
    MessageError,
    PlainRows,
    ProtocolError,
    compile_ahead,
    encode_response_in_slices,
    read_request,
    read_request_with_rows,
    read_response,
    write_request,
    write_response,
)
from tidegate.wire.codecs import reader, writer

PRODUCE = {
    "transactional_id": None,
    "acks": -1,
    "timeout_ms": 30000,
    "topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": b"abc"}]}],
}


def test_message_is_a_plain_dict():
    """A request is read into dicts, lists, ints and texts."""
    body = write_request(
        48, 1, {"components": [{"entity_type": "user", "match_type": 0, "match": "ä"}], "strict": True}
    )
    assert read_request(48, 1, body) == {
        "components": [{"entity_type": "user", "match_type": 0, "match": "ä"}],
        "strict": True,
    }


def test_records_are_slices_of_the_buffer():
    """Records are not copied: a change in the buffer shows in them."""
    buffer = bytearray(write_request(0, 9, PRODUCE))
    records = read_request(0, 9, buffer)["topic_data"][0]["partition_data"][0]["records"]
    assert isinstance(records, memoryview)
    buffer[buffer.index(b"abc")] = ord("X")
    assert bytes(records) == b"Xbc"
    records[0] = ord("Y")
    assert b"Ybc" in buffer


def test_bytes_are_copies():
    """A field of bytes outlives the buffer."""
    buffer = bytearray(write_request(36, 2, {"auth_bytes": b"secret"}))
    message = read_request(36, 2, buffer)
    buffer[:] = bytes(len(buffer))
    assert message == {"auth_bytes": b"secret"}
    assert type(message["auth_bytes"]) is bytes


def test_absent_tagged_fields_have_their_default():
    """A tagged field that is not there is an ordinary key all the same, and its default is not written."""
    message = read_response(18, 3, write_response(18, 3, {"error_code": 0, "api_keys": []}))
    assert message == {
        "error_code": 0,
        "api_keys": [],
        "throttle_time_ms": 0,
        "supported_features": [],
        "finalized_features_epoch": -1,
        "finalized_features": [],
        "zk_migration_ready": False,
    }
    assert len(write_response(18, 3, message)) == 2 + 1 + 4 + 1


def test_defaults_are_not_shared():
    """A default structure or list belongs to its message."""
    body = write_response(18, 3, {"error_code": 0, "api_keys": []})
    read_response(18, 3, body)["supported_features"].append("mine")
    assert read_response(18, 3, body)["supported_features"] == []


def test_unknown_tags_come_back():
    """Tagged fields that nobody knows are kept, structure by structure, and written again in order."""
    message = {**PRODUCE, "_unknown_tags": {7: b"\1\2"}}
    message["topic_data"] = [{**PRODUCE["topic_data"][0], "_unknown_tags": {200: b"", 3: b"x"}}]
    body = write_request(0, 9, message)
    found = read_request(0, 9, body)
    assert found["_unknown_tags"] == {7: b"\1\2"}
    assert found["topic_data"][0]["_unknown_tags"] == {3: b"x", 200: b""}
    assert write_request(0, 9, found) == body


def test_unknown_error_codes_are_kept():
    """An error code is a number, known or not."""
    assert read_response(12, 1, write_response(12, 1, {"error_code": 32000}))["error_code"] == 32000


def test_text_that_is_not_utf8_is_replaced():
    """Wrong bytes of a string are replaced, in copied and in sliced messages."""
    body = write_request(0, 9, PRODUCE).replace(b"\x02t", b"\x02\xff")
    assert read_request(0, 9, body)["topic_data"][0]["name"] == "\ufffd"
    body = write_request(12, 0, {"group_id": "g", "generation_id": 1, "member_id": "m"}).replace(
        b"g", b"\xfe", 1
    )
    assert read_request(12, 0, body)["group_id"] == "\ufffd"


@pytest.mark.parametrize(
    ("key", "version", "raw"), [(3, 4, "fffffffe00"), (3, 12, "00000000"), (3, 12, "ffffffff0f000000")]
)
def test_negative_lengths_are_null(key, version, raw):
    """Every negative length of what may be null is null."""
    assert read_request(key, version, bytes.fromhex(raw))["topics"] is None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("ffff", "malformed Heartbeat request v0 at byte 2, group_id: string expected, got null"),
        (
            "000567",
            "malformed Heartbeat request v0 at byte 2, group_id: 5 bytes of string expected, 1 remain",
        ),
        (
            "0001670000",
            "malformed Heartbeat request v0 at byte 3, generation_id: more bytes expected, 2 remain",
        ),
        ("", "malformed Heartbeat request v0 at byte 0, group_id: more bytes expected, 0 remain"),
    ],
)
def test_errors_say_what_and_where(body, message):
    """A malformed body is told with the message, the byte, the field and what was expected."""
    with pytest.raises(ProtocolError) as caught:
        read_request(12, 0, bytes.fromhex(body))
    assert str(caught.value) == message


def test_error_inside_a_repeated_structure_has_the_whole_path():
    """A structure that occurs twice is read by a function of its own; the path goes through it."""
    topology = {
        "epoch": 0,
        "subtopologies": [
            {
                "subtopology_id": "s",
                "source_topics": [],
                "source_topic_regex": [],
                "state_changelog_topics": [
                    {
                        "name": "n",
                        "partitions": 1,
                        "replication_factor": 1,
                        "topic_configs": [{"key": "k", "value": "v"}],
                    }
                ],
                "repartition_sink_topics": [],
                "repartition_source_topics": [],
                "copartition_groups": [],
            }
        ],
    }
    message = {
        "group_id": "g",
        "member_id": "m",
        "member_epoch": 0,
        "endpoint_information_epoch": 0,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout_ms": 1,
        "topology": topology,
        "active_tasks": None,
        "standby_tasks": None,
        "warmup_tasks": None,
        "process_id": None,
        "user_endpoint": None,
        "client_tags": None,
        "task_offsets": None,
        "task_end_offsets": None,
        "shutdown_application": False,
    }
    body = write_request(88, 0, message)
    assert read_request(88, 0, body)["topology"] == topology
    with pytest.raises(ProtocolError) as caught:
        read_request(88, 0, body[: body.index(b"\x02k\x02v") + 3])
    assert caught.value.path == "topology.subtopologies[0].state_changelog_topics[0].topic_configs[0].value"


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({}, "cannot write Heartbeat response v1: error_code: 'error_code' is missing"),
        (
            {"error_code": 70000},
            "cannot write Heartbeat response v1: error_code: 'h' format requires -32768 <= number <= 32767, got 70000",
        ),
        (
            {"error_code": []},
            "cannot write Heartbeat response v1: error_code: required argument is not an integer, got []",
        ),
        (
            {"error_code": None},
            "cannot write Heartbeat response v1: error_code: required argument is not an integer",
        ),
    ],
)
def test_messages_that_cannot_be_written(message, error):
    """A message of our own with a field missing or out of range is refused with the field."""
    with pytest.raises(MessageError) as caught:
        write_response(12, 1, message)
    assert str(caught.value) == error
    assert caught.value.path == "error_code"


def test_path_of_an_unwritable_element():
    """The path of what cannot be written tells the element."""
    topics = [{"name": "a", "partition_indexes": []}, {"name": None, "partition_indexes": []}]
    with pytest.raises(MessageError) as caught:
        write_request(9, 1, {"group_id": "g", "topics": topics})
    assert caught.value.path == "topics[1].name"


def test_string_too_long_is_refused():
    """No string of more than 32767 bytes is written, in either form of lengths."""
    for version in (1, 4):
        with pytest.raises(MessageError):
            write_response(
                10,
                version,
                {"error_code": 0, "node_id": 1, "host": "x" * 32768, "port": 1, "coordinators": "x"},
            )


@pytest.mark.parametrize("version", [1, 3])
def test_texts_of_errors_are_cut_to_fit(version):
    """What an error quotes may be too long to be sent back: its text ends in dots."""
    for text, sent in (("é" * 20_000, "é" * 16_382 + "..."), ("x" * 32_767, "x" * 32_767), (None, None)):
        message = {"error_code": 1, "error_message": text, "node_id": 1, "host": "h", "port": 1}
        assert read_response(10, version, write_response(10, version, message))["error_message"] == sent


def test_unknown_messages_are_refused():
    """There is no codec for what is not in the table."""
    with pytest.raises(ProtocolError, match="no request is known for api_key=4, api_version=0"):
        read_request(4, 0, b"")


def test_compile_ahead_makes_what_a_server_needs():
    """After compiling ahead the request's reader and the response's writer are there."""
    compile_ahead([(12, 2), (12, 3)])
    assert reader(12, 3, "request") is reader(12, 3, "request")
    assert writer(12, 3, "response").text.startswith("def run(m, out, buffers):")


def test_records_that_are_not_bytes_cannot_be_joined():
    """A body as one piece of bytes needs bytes; only a list of buffers can hold other objects."""
    partition = {
        "partition_index": 0,
        "error_code": 0,
        "high_watermark": 0,
        "aborted_transactions": None,
        "records": range(5000),
    }
    with pytest.raises(MessageError, match="records of Fetch response v4 must be bytes-like"):
        write_response(1, 4, {"responses": [{"topic": "t", "partitions": [partition]}]})


@pytest.mark.parametrize("version", [7, 8])
def test_elements_that_are_encoded_already(version):
    """They are written as they are, in slices too, and give the bytes that dicts give."""
    results = [{"partition_index": index, "error_code": index % 3} for index in range(300)]
    code = "ihx" if version >= 8 else "ih"
    chunks = [struct.pack(f">{code}", result["partition_index"], result["error_code"]) for result in results]
    plain = {"throttle_time_ms": 0, "topics": [{"name": "t", "partitions": results}]}
    encoded = {"throttle_time_ms": 0, "topics": [{"name": "t", "partitions": EncodedElements(300, chunks)}]}
    expected = write_response(8, version, plain)
    assert write_response(8, version, encoded) == expected
    sliced = run_at_once(encode_response_in_slices(8, version, 1, encoded))
    assert b"".join(sliced.buffers)[-len(expected) :] == expected


@pytest.mark.parametrize("version", [2, 5, 6, 7, 8, 10])
@pytest.mark.parametrize("metadata", [("", ""), (None, ""), ("", "m"), ("m" * 255, ""), ("\x00\x00", "")])
def test_rows_are_what_the_elements_would_be(version, metadata):
    """Plain elements are read as rows; where a string is not empty all of them are read as dicts."""
    partitions = [
        {
            "partition_index": index,
            "committed_offset": 255 << 8 | index,
            "committed_leader_epoch": index,
            "committed_metadata": text,
        }
        for index, text in enumerate(metadata * 3)
    ]
    uuid = "00000000-0000-0000-0000-000000000001"
    message = {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": "t", "topic_id": uuid, "partitions": partitions}] * 2,
    }
    body = write_request(8, version, message)
    plain = read_request(8, version, body)
    with_rows = read_request_with_rows(8, version, body)
    is_plain = not any(metadata)
    for part in with_rows["topics"]:
        assert isinstance(part["partitions"], PlainRows) == is_plain
        if is_plain:
            assert len(part["partitions"]) == len(partitions)
            size = len(part["partitions"].data) // len(partitions)
            values = [
                int.from_bytes(part["partitions"].data[at : at + 4], "big") for at in range(0, 6 * size, size)
            ]
            assert values == list(range(6))
            part["partitions"] = plain["topics"][0]["partitions"]
    assert with_rows == plain
    for end in range(len(body)):
        errors = []
        for read in (read_request, read_request_with_rows):
            with pytest.raises(ProtocolError) as error:
                read(8, version, body[:end])
            errors.append(str(error.value))
        assert errors[0] == errors[1]
