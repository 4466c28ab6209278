"""Fuzz targets of the protocol's parsers: recorded frames, mutated; only protocol errors may come out.

A run in the test suite is short. For a long one: `python -m tests.fuzz.test_wire_fuzz SECONDS [SEED]`.
"""

import random
import sys
import time

import pytest
from tests.batches import build_batch, check_produced, read_records
from tests.property.test_wire_roundtrip import finished, fixed
from tests.wire.messages import recorded, recorded_files, response_body_at

from tidegate.wire import (
    API_BY_KEY,
    ProtocolError,
    decode_request_header,
    encode_response,
    encode_response_in_slices,
    read_request,
    read_response,
    write_request,
    write_response,
)
from tidegate.wire.batch import batches, crc_matches
from tidegate.wire.codec_types import MALFORMED
from tidegate.wire.codecs import SLICED_REQUEST_READERS, protocol_error

SHORT_RUN_SECONDS = 1.0
HARMS = [
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\x80\x80\x80\x80\x80",
    b"\x00",
    b"\xff",
    b"\x01",
    b"\x80",
]


def steps():
    """Return the recorded steps in spoken versions, up to 4 kB."""
    found = [step for name in recorded_files() for step in recorded(name)]
    return [
        step for step in found if API_BY_KEY[step.api_key].speaks(step.version) and len(step.request) < 4096
    ]


def mutated(source, data):
    """Return `data` with a few random changes: bits, lengths, cuts, repeats."""
    data = bytearray(data)
    for _ in range(source.randrange(1, 4)):
        at = source.randrange(len(data) + 1)
        change = source.randrange(4)
        if change == 0 and at < len(data):
            data[at] ^= 1 << source.randrange(8)
        elif change == 1:
            harm = source.choice(HARMS)
            data[at : at + len(harm)] = harm
        elif change == 2:
            del data[at : at + source.randrange(1, 9)]
        else:
            data[at:at] = data[max(0, at - source.randrange(1, 64)) : at]
    return bytes(data)


def fuzz_request(source, material):
    """A mutated request frame is refused, or what was read of it can be written and read again."""
    frame = mutated(source, source.choice(material).request)
    try:
        header = decode_request_header(frame)
        message = read_request(header.api_key, header.api_version, frame, header.body_at)
    except ProtocolError:
        return
    body = write_request(header.api_key, header.api_version, message)
    again = write_request(
        header.api_key, header.api_version, read_request(header.api_key, header.api_version, body)
    )
    assert again == body


def fuzz_response(source, material):
    """A mutated response is refused, or what was read of it can be written and read again."""
    step = source.choice(material)
    at = response_body_at(step.api_key, step.version)
    frame = (step.response or bytes(at))[:at] + mutated(source, (step.response or b"")[at:])
    try:
        message = read_response(step.api_key, step.version, frame, at)
    except ProtocolError:
        return
    body = write_response(step.api_key, step.version, message)
    again = write_response(step.api_key, step.version, read_response(step.api_key, step.version, body))
    assert again == body


def read_whole_in_slices(key, version, frame, at):
    """Read a request in slices, however short it is."""
    program = SLICED_REQUEST_READERS[key, version]
    try:
        return finished(program.function(memoryview(frame), at))[0]
    except MALFORMED as error:
        raise protocol_error(program, error) from None


def told(read, *args):
    """Return what was read, as text (no NaN equals another), or why nothing was."""
    try:
        return repr(fixed(read(*args)))
    except ProtocolError as error:
        return str(error)


def fuzz_slices(source, material):
    """A mutated request is read, or refused, in slices as it is at once; a response read from it is written so too."""
    step = source.choice(material)
    frame = mutated(source, step.request)
    try:
        header = decode_request_header(frame)
    except ProtocolError:
        return
    key, version = header.api_key, header.api_version
    assert told(read_whole_in_slices, key, version, frame, header.body_at) == told(
        read_request, key, version, frame, header.body_at
    )
    at = response_body_at(step.api_key, step.version)
    if step.response is not None:
        message = read_response(step.api_key, step.version, step.response, at)
        sliced, _ = finished(encode_response_in_slices(step.api_key, step.version, 5, message))
        plain = encode_response(step.api_key, step.version, 5, message)
        assert b"".join(sliced.buffers) == b"".join(plain.buffers)


def fuzz_batches(source, material):
    """Mutated records are refused, or their batches lie inside of them, whole and in order."""
    count = source.randrange(1, 4)
    records = mutated(source, b"".join(build_batch([(b"k", b"v" * size)]) for size in range(count)))
    end = 0
    try:
        for batch in batches(records):
            assert batch.at == end
            assert batch.end_index <= len(records)
            crc_matches(records, batch)
            end = batch.end_index
    except ProtocolError:
        pass
    try:
        check_produced(records, api_version=9)
        list(read_records(records))
    except ProtocolError:
        pass


TARGETS = [fuzz_request, fuzz_response, fuzz_slices, fuzz_batches]


def run(target, seconds, seed):
    """Run one target for a time; return how many inputs it was given. A failure names its seed."""
    source, material, count = random.Random(seed), steps(), 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            target(source, material)
        except BaseException as error:
            error.add_note(f"{target.__name__}: seed {seed}, input {count}")
            raise
        count += 1
    return count


@pytest.mark.parametrize("target", TARGETS)
def test_short_run(target):
    """A second of mutated input brings nothing but protocol errors."""
    assert run(target, SHORT_RUN_SECONDS, random.randrange(2**32)) > 0


if __name__ == "__main__":
    first_seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(2**32)
    for one in TARGETS:
        print(one.__name__, "seed", first_seed, "inputs", run(one, float(sys.argv[1]), first_seed))
