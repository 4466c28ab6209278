"""Differences that are meant: what shows each, and the row of docs/kafka-differences.md that says why."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.differing.play import Difference
from tests.differing.requests import ZERO_ID, says_compressed
from tests.differing.sides import SILENT, has_null_records

from tidegate.api_keys import (
    DESCRIBE_CONFIGS,
    FETCH,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    OFFSET_COMMIT,
    PRODUCE,
)

TRANSACTION = 1
NODE, LOGGERS = 4, 8
UNKNOWN_SERVER_ERROR = -1
UNKNOWN_MEMBER_ID, UNKNOWN_GROUP = 25, (22, 69)
_CODE = "'error_code': of an unknown group}"


@dataclass(frozen=True, slots=True)
class Declared:
    """A row of the differences, and whether it explains all of what differs."""

    row: str
    explains: Callable[[Difference], bool]
    parts: bool = False
    """Whether the brokers hold different things from then on."""


def declared(difference: Difference) -> Declared | None:
    """Return what explains a difference, None where it is not meant."""
    if difference.what != "answer":
        return None
    return next((one for one in DECLARED if one.explains(difference)), None)


def _is_without_sessions(difference: Difference) -> bool:
    """Return whether the answers are the same but for Kafka's session."""
    if difference.made.api_key != FETCH or not _is_fetched(difference.kafka):
        return False
    return (
        difference.kafka["session_id"] != 0 and {**difference.kafka, "session_id": 0} == difference.tidegate
    )


def _is_fetched(answer: Any) -> bool:
    return isinstance(answer, dict) and "session_id" in answer


def _is_fetch_of_id_zero(difference: Difference) -> bool:
    """Return whether Kafka fails as a whole over a topic id of zero, and we with 100 for its partitions alone."""
    made, kafka, tidegate = difference.made, difference.kafka, difference.tidegate
    return (
        made.api_key == FETCH
        and made.version >= 13
        and any(topic["topic_id"] == ZERO_ID for topic in made.message["topics"])
        and _is_fetched(kafka)
        and kafka["error_code"] == UNKNOWN_SERVER_ERROR
        and tidegate["error_code"] == 0
        and all(
            {part["error_code"] for part in topic["partitions"]} == {100}
            for topic in tidegate["responses"]
            if topic["topic_id"] == ZERO_ID
        )
    )


def _is_transaction(difference: Difference) -> bool:
    made, tidegate = difference.made, difference.tidegate
    if made.api_key == PRODUCE and made.message["transactional_id"] is not None:
        return _produced_codes(tidegate) == {53}
    if made.api_key == FIND_COORDINATOR and made.message.get("key_type") == TRANSACTION:
        return all(found["error_code"] == 53 for found in tidegate.get("coordinators", [tidegate]))
    return (
        made.api_key == INIT_PRODUCER_ID
        and bool(made.message["transactional_id"])
        and tidegate["error_code"] == 53
    )


def _is_of_refused_commit(difference: Difference) -> bool:
    """Return whether Kafka knows a group without positions: a commit was refused, or its topics are gone."""
    made = difference.made
    if made.api_key != OFFSET_COMMIT:
        return False
    if made.message["generation_id_or_member_epoch"] < 0 or not isinstance(difference.kafka, dict):
        return False
    answers = [repr(difference.tidegate).replace(f"'error_code': {code}}}", _CODE) for code in UNKNOWN_GROUP]
    return repr(difference.kafka).replace(f"'error_code': {UNKNOWN_MEMBER_ID}}}", _CODE) in answers


def _is_of_node(difference: Difference) -> bool:
    """Return whether the answers are the same but for what is described of the node and its loggers."""
    if difference.made.api_key != DESCRIBE_CONFIGS or not isinstance(difference.kafka, dict):
        return False
    kafka, tidegate = (_without_node(answer) for answer in (difference.kafka, difference.tidegate))
    return kafka == tidegate


def _without_node(answer: Any) -> Any:
    return sorted(
        (
            {**result, "configs": []} if result["resource_type"] in (NODE, LOGGERS) else result
            for result in answer["results"]
        ),
        key=repr,
    )


def _is_left_without_answer(difference: Difference) -> bool:
    """Return whether the request fails as a whole, with one error for all partitions."""
    codes = _produced_codes(difference.tidegate) if has_null_records(difference.made) else set()
    return difference.kafka == SILENT and len(codes) == 1 and codes != {0}


def _is_compressed_wrongly(difference: Difference) -> bool:
    """Return whether a batch is refused by Kafka that says it is compressed, and is stored by us unread."""
    if difference.made.api_key != PRODUCE or not isinstance(difference.kafka, dict):
        return False
    return any(
        says_compressed(part["records"])
        for topic in difference.made.message["topic_data"]
        for part in topic["partition_data"]
    ) and _produced_codes(difference.kafka) != _produced_codes(difference.tidegate)


def _quotes_too_much(difference: Difference) -> bool:
    """Return whether Kafka cannot write its answer, and ours has a text that is as long as one can be."""
    failed = difference.kafka == SILENT or set(_all_codes(difference.kafka)) == {UNKNOWN_SERVER_ERROR}
    return failed and re.search(r"(.)\1{30000}", str(difference.tidegate)) is not None


def _all_codes(value: Any) -> Iterator[int]:
    if isinstance(value, dict) and "error_code" in value:
        yield value["error_code"]
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _all_codes(item)


def _produced_codes(answer: Any) -> set[int]:
    if not isinstance(answer, dict):
        return set()
    return {part["error_code"] for topic in answer["responses"] for part in topic["partition_responses"]}


DECLARED = (
    Declared("L3", _is_without_sessions),
    Declared("L23", _is_fetch_of_id_zero),
    Declared("L6", _is_transaction, parts=True),
    Declared("L1", _is_compressed_wrongly, parts=True),
    Declared("W4", _quotes_too_much),
    Declared("L7", _is_of_refused_commit),
    Declared("D2", _is_of_node),
    Declared("L24", _is_left_without_answer),
)
