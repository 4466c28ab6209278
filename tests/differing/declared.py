"""Differences that are meant: what shows each, and the row of docs/kafka-differences.md that says why."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.differing.play import ALTERATIONS, Difference
from tests.differing.requests import NODE, ZERO_ID, Made, is_changed_by_both, says_compressed
from tests.differing.sides import CLOSED, SILENT, has_null_records

from tidegate.api_keys import (
    DELETE_GROUPS,
    DESCRIBE_CONFIGS,
    DESCRIBE_GROUPS,
    FETCH,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    JOIN_GROUP,
    LIST_GROUPS,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    PRODUCE,
)
from tidegate.error_codes import INCONSISTENT_GROUP_PROTOCOL, NONE
from tidegate.groups.settings import MAX_PROTOCOLS

TRANSACTION = 1
LOGGERS, NOT_OF_BROKERS = 8, (2, 16, 32)
UNKNOWN_SERVER_ERROR = -1
OVERRIDES = "max.connections.per.ip.overrides"
UNKNOWN_MEMBER_ID, UNKNOWN_GROUP = 25, (22, 69)
GROUP_NOT_FOUND = 69
JOINING = ("PreparingRebalance", "CompletingRebalance")
"""States of a group that nothing is written of in Kafka before a SyncGroup."""
STARTED_WITH = {
    "advertised.listeners", "controller.listener.names", "group.coordinator.rebalance.protocols", "listeners",
    "log.dirs", "log.segment.delete.delay.ms", "node.id", "queued.max.request.bytes", "socket.listen.backlog.size",
}  # fmt: skip
"""Settings that each broker is started with, or has another default of (rows S8, S9)."""
_OURS = re.compile(r"tidegate\.|quota\.(producer|consumer)\.")
_CUT_AT = 30_000  # bytes; a text may have a few more
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
    is_of_groups = difference.made.api_key in (DESCRIBE_GROUPS, LIST_GROUPS)
    if difference.what != "answer" and not (difference.what == "what is there" and is_of_groups):
        return None
    return next((one for one in DECLARED if one.explains(difference)), None)


def _is_fetched(answer: Any) -> bool:
    return isinstance(answer, dict) and "session_id" in answer


def _is_fetch_of_id_zero(difference: Difference) -> bool:
    """Return whether Kafka fails as a whole over a topic id of zero, or says nothing; we fail its partitions alone."""
    made, kafka, tidegate = difference.made, difference.kafka, difference.tidegate
    return (
        made.api_key == FETCH
        and made.version >= 13
        and any(topic["topic_id"] == ZERO_ID for topic in made.message["topics"])
        and (kafka == SILENT or (_is_fetched(kafka) and kafka["error_code"] == UNKNOWN_SERVER_ERROR))
        and _is_fetched(tidegate)
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


def _is_group_of_refused_commit(difference: Difference) -> bool:
    """Return whether the answers are the same but for groups that never had members and have no position."""
    if difference.made.api_key not in (DESCRIBE_GROUPS, LIST_GROUPS, DELETE_GROUPS, OFFSET_DELETE):
        return False
    if not isinstance(difference.kafka, dict):
        return False
    if difference.made.api_key == OFFSET_DELETE:
        return difference.kafka["error_code"] == NONE and difference.tidegate["error_code"] == GROUP_NOT_FOUND
    key = "results" if difference.made.api_key == DELETE_GROUPS else "groups"
    kafka = {group["group_id"]: group for group in difference.kafka[key]}
    tidegate = {group["group_id"]: group for group in difference.tidegate[key]}
    differing = [name for name in kafka.keys() | tidegate.keys() if kafka.get(name) != tidegate.get(name)]
    return all(
        _was_only_refused(kafka.get(name), tidegate.get(name))
        or _began_with_commit(name, kafka.get(name), tidegate.get(name), difference.before)
        for name in differing
    )


def _began_with_commit(
    name: str, kafka: dict[str, Any] | None, tidegate: dict[str, Any] | None, before: Sequence[Made]
) -> bool:
    """Return whether Kafka does not show a group yet whose members joined after a commit without a generation.

    Where that commit was refused, Kafka has written nothing of the group, and shows what was written.
    """
    if tidegate is None or tidegate.get("group_state") not in JOINING:
        return False
    if kafka is not None and kafka.get("group_state") != "Dead":
        return False
    asked = [made for made in before if made.message.get("group_id") == name]
    first = next((made for made in asked if made.api_key in (OFFSET_COMMIT, JOIN_GROUP)), None)
    is_commit = first is not None and first.api_key == OFFSET_COMMIT
    return is_commit and first.message["generation_id_or_member_epoch"] < 0


def _was_only_refused(one: dict[str, Any] | None, other: dict[str, Any] | None) -> bool:
    """Return whether a group is not known to one broker, and to the other without members, now and ever."""

    def is_unknown(group: dict[str, Any] | None) -> bool:
        return (
            group is None or group.get("group_state") == "Dead" or group.get("error_code") == GROUP_NOT_FOUND
        )

    known = [group for group in (one, other) if group is not None and not is_unknown(group)]
    return len(known) == 1 and (
        known[0].get("group_state", "Empty") == "Empty" and not known[0].get("protocol_type")
    )


def _joins_group_that_is_forgotten(difference: Difference) -> bool:
    """Return whether a member that there is not, without protocols, asks for a group that only Kafka still knows."""
    made = difference.made
    if made.api_key != JOIN_GROUP or (made.message["protocol_type"] and made.message["protocols"]):
        return False
    codes = [answer.get("error_code") for answer in (difference.kafka, difference.tidegate)]
    return codes == [INCONSISTENT_GROUP_PROTOCOL, UNKNOWN_MEMBER_ID]


def _has_odd_protocols(difference: Difference) -> bool:
    """Return whether a member has too many protocols, or one of them twice."""
    if difference.made.api_key != JOIN_GROUP:
        return False
    names = [protocol["name"] for protocol in difference.made.message["protocols"]]
    return len(names) > MAX_PROTOCOLS or len(set(names)) < len(names)


def _is_of_node(difference: Difference) -> bool:
    """Return whether the answers are the same but for settings of the node that one side alone has, and its loggers."""
    if difference.made.api_key != DESCRIBE_CONFIGS or not isinstance(difference.kafka, dict):
        return False
    kafka, tidegate = difference.kafka["results"], difference.tidegate["results"]
    names = [
        {
            config["name"]
            for result in results
            if result["resource_type"] == NODE
            for config in result["configs"]
        }
        for results in (kafka, tidegate)
    ]
    if any(not _OURS.match(name) for name in names[1] - names[0]):
        return False
    of_both = (names[0] & names[1]) - STARTED_WITH
    return _of_these(kafka, of_both) == _of_these(tidegate, of_both)


def _of_these(results: list[dict[str, Any]], names: set[str]) -> list[dict[str, Any]]:
    """Return what is described, of nodes only settings with these names, of loggers none."""
    shown: dict[int, set[str]] = {NODE: names, LOGGERS: set()}
    return sorted(
        (
            {
                **result,
                "configs": [
                    config
                    for config in result["configs"]
                    if config["name"] in shown.get(result["resource_type"], {config["name"]})
                ],
            }
            for result in results
        ),
        key=repr,
    )


def _is_of_setting_not_changed_here(difference: Difference) -> bool:
    """Return whether the answers are the same but where Kafka changes, or looks at, what we refuse to change."""
    if difference.made.api_key not in ALTERATIONS or not isinstance(difference.kafka, dict):
        return False
    refused = {
        (resource["resource_type"], resource["resource_name"])
        for resource in difference.made.message["resources"]
        if not is_changed_by_both(resource)
    }
    kafka, tidegate = (
        {(one["resource_type"], one["resource_name"]): one for one in answer["responses"]}
        for answer in (difference.kafka, difference.tidegate)
    )
    differing = {key for key in kafka.keys() | tidegate.keys() if kafka.get(key) != tidegate.get(key)}
    unknown = _with_unknown_operations(difference.made.message["resources"])
    return all(
        (key in refused and tidegate[key]["error_code"] != NONE)
        or (unknown and kafka[key]["error_code"] == UNKNOWN_SERVER_ERROR)
        or (key in unknown and kafka[key]["error_code"] != NONE)  # over what it looked at before
        for key in differing
    )


def _gives_up_on_all(difference: Difference) -> bool:
    """Return whether Kafka leaves what we change over an operation that there is not in another resource."""
    return _is_of_setting_not_changed_here(difference) and any(
        one["error_code"] == NONE for one in difference.tidegate["responses"]
    )


def _with_unknown_operations(resources: list[dict[str, Any]]) -> set[tuple[int, str]]:
    """Return the resources with operations that there are not: over one Kafka's controller gives up on all of them."""
    return {
        (resource["resource_type"], resource["resource_name"])
        for resource in resources
        if resource["resource_type"] in NOT_OF_BROKERS
        if any(config.get("config_operation", 0) not in range(4) for config in resource["configs"])
    }


def _is_mistake_in_overrides(difference: Difference) -> bool:
    """Return whether the answers are the same but for the words about a mistake in the overrides of addresses."""
    if difference.made.api_key not in ALTERATIONS or not isinstance(difference.kafka, dict):
        return False
    words = {
        (one["resource_type"], one["resource_name"])
        for one in difference.tidegate["responses"]
        if OVERRIDES in (one["error_message"] or "")
    }
    kafka, tidegate = (
        [
            {**one, "error_message": None} if (one["resource_type"], one["resource_name"]) in words else one
            for one in answer["responses"]
        ]
        for answer in (difference.kafka, difference.tidegate)
    )
    return sorted(kafka, key=repr) == sorted(tidegate, key=repr)


def _is_override_without_host(difference: Difference) -> bool:
    """Return whether Kafka takes an override without a host, that of the loopback address, and we refuse it alone."""
    if difference.made.api_key not in ALTERATIONS or not isinstance(difference.kafka, dict):
        return False
    taken = {
        (resource["resource_type"], resource["resource_name"])
        for resource in difference.made.message["resources"]
        for config in resource["configs"]
        if config["name"] == OVERRIDES and re.search(r"(^|,)\s*:", config["value"] or "")
    }
    kafka, tidegate = (
        sorted(
            (one for one in answer["responses"] if (one["resource_type"], one["resource_name"]) not in taken),
            key=repr,
        )
        for answer in (difference.kafka, difference.tidegate)
    )
    return kafka == tidegate and all(
        OVERRIDES in (one["error_message"] or "")
        for one in difference.tidegate["responses"]
        if (one["resource_type"], one["resource_name"]) in taken
    )


_AROUND = re.compile(
    r"Invalid value org\.apache\.kafka\.common\.config\.ConfigException: (.*)"
    r" for configuration Invalid dynamic configuration"
)
_MISTAKE = re.compile(r"Invalid value .* for configuration \S+: |Can't (APPEND|SUBTRACT) to key \S+ because")


def _is_mistake_of_several(difference: Difference) -> bool:
    """Return whether answers are the same but for which mistake is named, and the class that Kafka puts around it."""
    made = difference.made
    if made.api_key not in ALTERATIONS or not isinstance(difference.kafka, dict):
        return False
    several = {
        (resource["resource_type"], resource["resource_name"])
        for resource in made.message["resources"]
        if len(resource["configs"]) > 1
    }
    kafka, tidegate = (
        sorted((_without_mistake(one, several) for one in answer["responses"]), key=repr)
        for answer in (difference.kafka, difference.tidegate)
    )
    return kafka == tidegate


def _without_mistake(one: dict[str, Any], several: set[tuple[int, str]]) -> dict[str, Any]:
    text = _AROUND.sub(r"\1", one["error_message"] or "")
    if (one["resource_type"], one["resource_name"]) in several and _MISTAKE.match(text):
        text = "a mistake"
    return {**one, "error_message": text}


def _is_meant_of_each_resource(difference: Difference) -> bool:
    """Return whether each resource is answered otherwise for a reason of its own."""
    if difference.made.api_key not in ALTERATIONS or not isinstance(difference.kafka, dict):
        return False
    message = difference.made.message
    kafka, tidegate = (
        {(one["resource_type"], one["resource_name"]): one for one in answer["responses"]}
        for answer in (difference.kafka, difference.tidegate)
    )
    asked = {(one["resource_type"], one["resource_name"]): one for one in message["resources"]}
    return asked.keys() == kafka.keys() == tidegate.keys() and all(
        any(explains(alone) for explains in _OF_ONE_RESOURCE)
        for alone in (
            replace(
                difference,
                made=replace(difference.made, message={**message, "resources": [resource]}),
                kafka={"responses": [kafka[key]]},
                tidegate={"responses": [tidegate[key]]},
            )
            for key, resource in asked.items()
            if kafka[key] != tidegate[key]
        )
    )


def _is_left_without_answer(difference: Difference) -> bool:
    """Return whether the request fails as a whole, with one error for all partitions, or an end for want of one."""
    if difference.kafka != SILENT or not has_null_records(difference.made):
        return False
    codes = _produced_codes(difference.tidegate)
    return difference.tidegate == CLOSED or (len(codes) == 1 and codes != {0})


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
    runs = re.finditer(r"(.)\1{7000,}", str(difference.tidegate))
    return failed and any(len(run[0].encode()) > _CUT_AT for run in runs)


def _could_not_be_sent_back(difference: Difference) -> bool:
    """Return whether a long text has a byte that is not UTF-8, and the connection is closed for it."""
    made = difference.made
    is_broken = made.wrong is not None and made.wrong[0] == "byte"
    return (
        difference.tidegate == CLOSED
        and is_broken
        and any(isinstance(value, str) and len(value.encode()) > _CUT_AT for value in made.message.values())
    )


def _all_codes(value: Any) -> Iterator[int]:
    if isinstance(value, dict) and "error_code" in value:
        yield value["error_code"]
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _all_codes(item)


def _produced_codes(answer: Any) -> set[int]:
    if not isinstance(answer, dict):
        return set()
    return {part["error_code"] for topic in answer["responses"] for part in topic["partition_responses"]}


_OF_ONE_RESOURCE = (
    _is_mistake_in_overrides,
    _is_mistake_of_several,
    _is_override_without_host,
    _is_of_setting_not_changed_here,
)
DECLARED = (
    Declared("L23", _is_fetch_of_id_zero, parts=True),  # a session may begin with ours
    Declared("L6", _is_transaction, parts=True),
    Declared("L1", _is_compressed_wrongly, parts=True),
    Declared("W3", _could_not_be_sent_back),
    Declared("W4", _quotes_too_much),
    Declared("L7", _is_of_refused_commit),
    Declared("L7", _is_group_of_refused_commit),
    Declared("L7", _joins_group_that_is_forgotten),
    Declared("L27", _has_odd_protocols, parts=True),
    Declared("D2", _is_of_node),
    Declared("D6", _is_mistake_in_overrides),
    Declared("D6", _is_mistake_of_several),
    Declared("D6", _is_override_without_host, parts=True),
    Declared("D4", _gives_up_on_all, parts=True),
    Declared("D4", _is_of_setting_not_changed_here),
    Declared("D6", _is_meant_of_each_resource, parts=True),
    Declared("L24", _is_left_without_answer),
)
