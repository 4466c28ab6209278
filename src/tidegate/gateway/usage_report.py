"""Reports of usage as records of the topic through which gateway processes share cluster-wide quotas.

    key    process, a random name
    value  {"nodes": 1, "number": 7, "omitted": [], "usage": {"4GmhzT9Unx2h8qLb": [rate, demand, claim]},
            "gateway": "f00d", "mutations": {"wNQs5lqHZmKYZrZq": [permits, tokens, since]}}

Quotas are named by a digest (`cluster_key`): a record has about 60 bytes a quota, and no names of clients. Whatever a
client writes to the topic is a valid report, or is skipped with a warning. The last two fields are there only if they
say something; gateways before 0.3 neither write nor read them.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tidegate.gateway.shares import Usage
from tidegate.quota import UNLIMITED
from tidegate.wire.records import NO_TIMESTAMP, Record

__all__ = [
    "MAX_FOLLOWED",
    "MAX_OMITTED",
    "USAGE_TOPIC",
    "Charges",
    "UsageReport",
    "decode_report",
    "encode_report",
]

_log = logging.getLogger("tidegate.gateway")

USAGE_TOPIC = "__tidegate_usage"
MAX_FOLLOWED = 1000
"""Quotas whose usage a report may have."""
MAX_OMITTED = 1000
"""Quotas that a report may name as omitted."""
_MAX_NAME_CHARS = 64
_MAX_NODES = 1000
_MAX_SHOWN = 80
_MAX_BYTES = 200 * MAX_FOLLOWED
_DECIMALS = 3


class Charges(NamedTuple):
    """The use of a mutation bucket. permits: charged since the report `since`. tokens: left; below 0: a debt."""

    permits: float
    tokens: float
    since: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageReport:
    """The usage of one process, by the key of the quota. nodes: the brokers that it serves; 0: it has stopped.

    number: of the report, among those of the process. omitted: the quotas that have a fair share of their limit,
    because the process has no room for their usage. gateway: the name that the processes of a gateway have in common;
    "": it has one process. mutations: the use of its buckets.
    """

    process: str
    nodes: int
    usage: Mapping[str, Usage]
    number: int = 0
    omitted: frozenset[str] = frozenset()
    gateway: str = ""
    mutations: Mapping[str, Charges] = field(default_factory=dict)


def encode_report(report: UsageReport) -> Record:
    """Return a report as a record of the topic, without the time: brokers refuse one of a clock that is ahead."""
    usage = {
        key: [round(use.rate, _DECIMALS), round(use.demand, _DECIMALS), round(use.claim, _DECIMALS)]
        for key, use in report.usage.items()
    }
    value: dict[str, Any] = {
        "nodes": report.nodes,
        "number": report.number,
        "omitted": sorted(report.omitted),
        "usage": usage,
    }
    if report.gateway:
        value["gateway"] = report.gateway
    if report.mutations:
        value["mutations"] = {
            key: [round(use.permits, _DECIMALS), round(use.tokens, _DECIMALS), use.since]
            for key, use in report.mutations.items()
        }
    text = json.dumps(value, separators=(",", ":"))
    return Record(key=report.process.encode(), value=text.encode(), timestamp_ms=NO_TIMESTAMP)


def decode_report(record: Record) -> UsageReport | None:
    """Return the report in a record of the topic; None, with a warning, if it is not valid.

    >>> report = UsageReport(process="p", nodes=1, usage={"k": Usage(rate=1.0, demand=2.0, claim=3.5)})
    >>> decode_report(encode_report(report)) == report
    True
    """
    try:
        process = (record.key or b"").decode()
        text = record.value or b""
        if len(text) > _MAX_BYTES:
            raise ValueError(f"{len(text)} bytes, expected at most {_MAX_BYTES}")
        value = json.loads(text)
        nodes, number, omitted, usage = value["nodes"], value["number"], value["omitted"], value["usage"]
        if not 0 < len(process) <= _MAX_NAME_CHARS:
            raise ValueError("the name of the process is empty or too long")
        if type(nodes) is not int or not 0 <= nodes <= _MAX_NODES or type(number) is not int:
            raise ValueError("nodes or number has a wrong value")
        if type(omitted) is not list or not all(type(key) is str for key in omitted):
            raise ValueError("omitted is not a list of names")
        gateway, mutations = value.get("gateway", ""), value.get("mutations", {})
        if type(gateway) is not str or len(gateway) > _MAX_NAME_CHARS:
            raise ValueError("gateway is not a name, or too long")
        if len(mutations) > MAX_FOLLOWED:
            raise ValueError(f"{len(mutations)} buckets, expected at most {MAX_FOLLOWED}")
        if len(usage) > MAX_FOLLOWED or len(omitted) > MAX_OMITTED:
            raise ValueError(
                f"{len(usage)} and {len(omitted)} quotas, expected at most {MAX_FOLLOWED} of each"
            )
        return UsageReport(
            process=process,
            nodes=nodes,
            number=number,
            omitted=frozenset(omitted),
            usage={key: _usage(numbers) for key, numbers in usage.items()},
            gateway=gateway,
            mutations={key: _charges(numbers) for key, numbers in mutations.items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        _log.warning(
            "skipped record %d of topic %s: not a usage report: %s",
            record.offset,
            USAGE_TOPIC,
            str(error)[:_MAX_SHOWN],
            extra={"repeats": f"record of {USAGE_TOPIC}"},
        )
        return None


def _usage(numbers: Any) -> Usage:
    if type(numbers) is not list or not all(
        type(number) in (int, float) and 0 <= number <= UNLIMITED for number in numbers
    ):
        raise ValueError(f"usage is {numbers!r}, expected three numbers from 0 to 2**63")
    rate, demand, claim = map(float, numbers)
    return Usage(rate=rate, demand=demand, claim=claim)


def _charges(numbers: Any) -> Charges:
    if (
        type(numbers) is not list
        or [type(number) in (int, float) for number in numbers] != [True] * 3
        or not (0 <= numbers[0] <= UNLIMITED and abs(numbers[1]) <= UNLIMITED and type(numbers[2]) is int)
    ):
        raise ValueError(
            f"the use of a bucket is {numbers!r}, expected permits, tokens and a report's number"
        )
    return Charges(permits=float(numbers[0]), tokens=float(numbers[1]), since=numbers[2])
