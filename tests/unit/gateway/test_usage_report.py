"""Reports of usage as records of the topic, which any client with the right to write may write."""

import json
import random

import pytest

from tidegate.gateway.shares import Usage
from tidegate.gateway.usage_report import (
    MAX_FOLLOWED,
    MAX_OMITTED,
    Charges,
    UsageReport,
    decode_report,
    encode_report,
)
from tidegate.quota import UNLIMITED
from tidegate.wire.records import Record

GOOD = {"nodes": 1, "number": 7, "omitted": ["l"], "usage": {"k": [1.0, 2.0, 3.0]}}
LARGEST = UsageReport(
    process="p" * 64,
    nodes=1000,
    usage={
        f"{number:016}": Usage(rate=UNLIMITED, demand=UNLIMITED, claim=0.9 * UNLIMITED)
        for number in range(MAX_FOLLOWED)
    },
    number=2**40,
    omitted=frozenset(f"{number:016}" for number in range(MAX_OMITTED)),
    gateway="g" * 64,
    mutations={
        f"{number:016}": Charges(permits=1e9 + number, tokens=-1e9, since=2**40)
        for number in range(MAX_FOLLOWED)
    },
)


def record(value: object, key: bytes | None = b"p") -> Record:
    """Return a record with a value as JSON."""
    return Record(key=key, value=json.dumps(value).encode())


@pytest.mark.parametrize("report", [LARGEST, UsageReport(process="p", nodes=0, usage={})])
def test_the_largest_and_the_smallest_report_are_read_as_written(report: UsageReport) -> None:
    """A report at its bounds is valid."""
    assert decode_report(encode_report(report)) == report


@pytest.mark.parametrize(
    "malformed",
    [
        Record(key=None, value=None),
        Record(key=b"p", value=b""),
        Record(key=b"p", value=b"\xff\xfe"),
        Record(key=b"p", value=b"[" * 100_000),
        Record(
            key=b"p", value=b'{"nodes":1,"number":1,"omitted":[],"usage":{"k":[1' + b"0" * 10_000 + b",1,1]}}"
        ),
        Record(key=b"p", value=b'{"nodes":' + b"9" * 10_000 + b',"number":1,"omitted":[],"usage":{}}'),
        record(GOOD, key=b"\xff"),
        record(GOOD, key=b""),
        record(GOOD, key=b"p" * 65),
        record([]),
        record(None),
        record({**GOOD, "nodes": -1}),
        record({**GOOD, "nodes": 1001}),
        record({**GOOD, "nodes": True}),
        record({**GOOD, "number": "1"}),
        record({**GOOD, "number": None}),
        record({**GOOD, "omitted": None}),
        record({**GOOD, "omitted": "text"}),
        record({**GOOD, "omitted": [1]}),
        record({**GOOD, "omitted": {"k": 1}}),
        record({**GOOD, "omitted": [str(number) for number in range(MAX_OMITTED + 1)]}),
        record({**GOOD, "usage": None}),
        record({**GOOD, "usage": [1]}),
        record({**GOOD, "usage": "text"}),
        record({**GOOD, "usage": {"k": [1.0, 2.0]}}),
        record({**GOOD, "usage": {"k": [1.0, 2.0, 3.0, 4.0]}}),
        record({**GOOD, "usage": {"k": [1.0, 2.0, -1.0]}}),
        record({**GOOD, "usage": {"k": [1.0, 2.0, float("nan")]}}),
        record({**GOOD, "usage": {"k": [1.0, 2.0, float("inf")]}}),
        record({**GOOD, "usage": {"k": [1.0, 2.0, 1e300]}}),
        record({**GOOD, "usage": {"k": [1.0, 2.0, 10**400]}}),
        record({**GOOD, "usage": {"k": [-(10**400), 2.0, 3.0]}}),
        record({**GOOD, "usage": {"k": [1.0, 9.3e18, 3.0]}}),
        record({**GOOD, "usage": {"k": [1.7e308, 1.7e308, 1.7e308]}}),
        record({**GOOD, "usage": {"k": ["1", "2", "3"]}}),
        record({**GOOD, "usage": {"k": "123"}}),
        record({**GOOD, "usage": {"k": [True, False, True]}}),
        record({**GOOD, "usage": {"k": {"1": 1, "2": 1, "3": 1}}}),
        record({**GOOD, "usage": {"k": None}}),
        record({**GOOD, "usage": {"x" * 1_000_000: [1, 1, 1]}}),
        record({**GOOD, "nodes": 10**400}),
        record({**GOOD, "nodes": 1.0}),
        record({**GOOD, "more": "x" * 1_000_000}),
        record(GOOD, key=b"p" * 1_000_000),
        Record(key=b"p", value=b'{"nodes":1,"number":1,"omitted":[],"usage":{"k":[1,1,1e999]}}'),
        Record(
            key=b"p",
            value=b'{"nodes":1,"number":1,"omitted":[],"usage":{"k":' + b"[" * 50_000 + b"]" * 50_000,
        ),
        Record(key=b"p", value=b'{"a":' * 40_000),
        record({**GOOD, "usage": {"k": {"a": 1, "b": 2, "c": 3}}}),
        record({**GOOD, "usage": {str(number): [1, 1, 1] for number in range(MAX_FOLLOWED + 1)}}),
        record({**GOOD, "gateway": 1}),
        record({**GOOD, "gateway": "g" * 65}),
        record({**GOOD, "mutations": None}),
        record({**GOOD, "mutations": [1]}),
        record({**GOOD, "mutations": {"k": None}}),
        record({**GOOD, "mutations": {"k": [1.0, 2.0]}}),
        record({**GOOD, "mutations": {"k": [1.0, 2.0, 3, 4]}}),
        record({**GOOD, "mutations": {"k": [-1.0, 2.0, 3]}}),
        record({**GOOD, "mutations": {"k": [float("nan"), 2.0, 3]}}),
        record({**GOOD, "mutations": {"k": [1.0, float("nan"), 3]}}),
        record({**GOOD, "mutations": {"k": [1.0, float("-inf"), 3]}}),
        record({**GOOD, "mutations": {"k": [10**400, 2.0, 3]}}),
        record({**GOOD, "mutations": {"k": [1.0, -(10**400), 3]}}),
        record({**GOOD, "mutations": {"k": [1.0, 2.0, 3.0]}}),
        record({**GOOD, "mutations": {"k": [1.0, 2.0, True]}}),
        record({**GOOD, "mutations": {"k": ["1", "2", "3"]}}),
        record({**GOOD, "mutations": {str(number): [1, 1, 1] for number in range(MAX_FOLLOWED + 1)}}),
    ],
)
def test_a_malformed_record_is_skipped(malformed: Record, caplog: pytest.LogCaptureFixture) -> None:
    """It has no effect but one short line in the log."""
    assert decode_report(malformed) is None
    (line,) = caplog.messages
    assert line.startswith("skipped record -1 of topic __tidegate_usage: not a usage report: ")
    assert len(line) < 200


def test_a_report_without_mutations_is_that_of_an_earlier_version() -> None:
    """Earlier gateways write and read no more; they skip no record for the fields of mutations, which they ignore."""
    report = UsageReport(
        process="p",
        nodes=1,
        number=7,
        omitted=frozenset({"l"}),
        usage={"k": Usage(rate=1.0, demand=2.0, claim=3.0)},
    )
    assert encode_report(report).value == json.dumps(GOOD, separators=(",", ":")).encode()
    assert decode_report(record(GOOD)) == report
    assert decode_report(record({**GOOD, "unknown": {"k": 1}})) == report


def test_the_last_of_repeated_names_counts() -> None:
    """A name that occurs twice is not an error in JSON, and leaves one usage."""
    repeated = b'{"nodes":1,"nodes":2,"number":1,"omitted":[],"usage":{"k":[9,9,9],"k":[1,2,3]}}'
    expected = UsageReport(
        process="p", nodes=2, number=1, usage={"k": Usage(rate=1.0, demand=2.0, claim=3.0)}
    )
    assert decode_report(Record(key=b"p", value=repeated)) == expected


def test_a_changed_record_is_read_or_skipped(caplog: pytest.LogCaptureFixture) -> None:
    """No change of a few bytes raises an error, or leads to a number out of bounds."""
    seed = random.Random().randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    good = encode_report(UsageReport(process="p", nodes=2, usage={"k": Usage(rate=12.5), "l": Usage()}))
    assert good.value is not None
    outcomes = set()
    for _ in range(2000):
        value = bytearray(good.value)
        for _ in range(rng.randint(1, 3)):
            value[rng.randrange(len(value))] = rng.choice(b'0123456789eE+-."[]{},:x\x00\xff')
        report = decode_report(Record(key=b"p", value=bytes(value)))
        outcomes.add(report is None)
        for usage in {} if report is None else report.usage.values():
            assert all(0.0 <= number <= UNLIMITED for number in (usage.rate, usage.demand, usage.claim))
    assert outcomes == {True, False}
