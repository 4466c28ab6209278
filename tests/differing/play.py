"""Play sequences to two brokers and find where one answers, throttles, mutes or keeps otherwise."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.differing.requests import (
    ANONYMOUS,
    CONTROL,
    GROUPS,
    NODE,
    NODE_SETTINGS,
    OWN,
    OWN_ENDING,
    TOPIC,
    Made,
)
from tests.differing.sequences import create_topics, is_sharing
from tests.differing.sides import CLOSED, Reply, Side, ask_both, exchange, is_unanswered
from tests.differing.timing import heard, throttled_alike
from tests.e2e.lateness import Lateness

from tidegate.api_keys import (
    ALTER_CLIENT_QUOTAS,
    ALTER_CONFIGS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_CLIENT_QUOTAS,
    DESCRIBE_CONFIGS,
    DESCRIBE_GROUPS,
    DESCRIBE_LOG_DIRS,
    ELECT_LEADERS,
    FETCH,
    INCREMENTAL_ALTER_CONFIGS,
    LIST_GROUPS,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FETCH,
)
from tidegate.error_codes import UNKNOWN_SERVER_ERROR

__all__ = ["Difference", "Player"]

UNKNOWN_TOPIC = 3
SETTLED_WITHIN_S = 3.0
"""How long Kafka may take until a change that was answered can be seen: some ms, on a busy machine more."""
_CONTROLLER_BACK_WITHIN_S = 15.0
_IN_FORCE_S = 0.01  # from when Kafka shows a quota until it is in force
_ENDS_ALIKE_S = 0.1
_KAFKA_CLOSES_WITHIN_S = 0.5
"""How long a parked connection may wait in Kafka after its end: the acceptor looks so often (row C9)."""
_FORGOTTEN_AFTER_S = 12.0
"""After so long no sample of a rate is left (B§1.3)."""
_HERE = {"entity_type": "ip", "entity_name": "127.0.0.1"}
_UNLIMITED = float(2**31 - 1)
"""The rate of connections that stands for none (B§6.9)."""


def _control(api_key: int, version: int, **message: Any) -> Made:
    return Made(api_key=api_key, version=version, message=message, client=CONTROL)


ALL_TOPICS = _control(
    METADATA, 9, topics=None, allow_auto_topic_creation=False, include_cluster_authorized_operations=False,
    include_topic_authorized_operations=False,
)  # fmt: skip
ALL_ELECTIONS = _control(ELECT_LEADERS, 0, topic_partitions=None, timeout_ms=30_000)
"""Changes nothing: no election is needed. Kafka's controller answers with the topics that it knows."""
ALL_QUOTAS = _control(DESCRIBE_CLIENT_QUOTAS, 1, components=[], strict=False)
NODE_RESOURCES = ("1", "")
ALL_SETTINGS = _control(
    DESCRIBE_CONFIGS,
    4,
    resources=[
        {"resource_type": NODE, "resource_name": name, "configuration_keys": list(NODE_SETTINGS)}
        for name in NODE_RESOURCES
    ],
    include_synonyms=True,
    include_documentation=False,
)
RESET_SETTINGS = _control(
    INCREMENTAL_ALTER_CONFIGS,
    1,
    resources=[
        {
            "resource_type": NODE,
            "resource_name": name,
            "configs": [{"name": key, "config_operation": 1, "value": None} for key in NODE_SETTINGS],
        }
        for name in NODE_RESOURCES
    ],
    validate_only=False,
)
LATE = (OFFSET_FETCH, DESCRIBE_LOG_DIRS)
"""What Kafka may still show for a moment of topics that were deleted: positions in them, and their logs."""
ALTERATIONS = (INCREMENTAL_ALTER_CONFIGS, ALTER_CONFIGS)
_SHOWS = {
    METADATA: ALL_TOPICS,
    CREATE_TOPICS: ALL_TOPICS,
    DELETE_TOPICS: ALL_TOPICS,
    CREATE_PARTITIONS: ALL_TOPICS,
    ALTER_CLIENT_QUOTAS: ALL_QUOTAS,
    **dict.fromkeys(ALTERATIONS, ALL_SETTINGS),
}
"""What shows that a change by these APIs has arrived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A request after which two brokers differ: in its answer, its throttle time, its mute, or what they hold."""

    number: int
    """The sequence."""
    place: int
    """The request in it."""
    made: Made
    """What was asked: the request, or what shows what the brokers hold."""
    what: str
    kafka: Any
    tidegate: Any
    before: Sequence[Made] = ()
    """The requests of the sequence before it."""


@dataclass
class Player:
    """Plays sequences to Kafka and Tidegate, each with names that no other has."""

    kafka: Side
    tidegate: Side
    lateness: Lateness
    played: int = 0
    _exchanges: list[tuple[Made, Reply, Reply]] = field(default_factory=list)
    _settings_changed: bool = True
    _shared_until: float = 0.0
    """When the last sequence ended whose quotas are not its own alone."""

    @property
    def sides(self) -> tuple[Side, Side]:
        """Return both sides."""
        return self.kafka, self.tidegate

    def prepare(self) -> None:
        """Wait until both are ready, and delete what an earlier run has left."""
        for side in self.sides:
            side.await_coordinators()
            side.begin(0)
        self._clean()
        # What is set for every address leaves the one alone that `CONTROL` comes from.
        self._change(_quota([_HERE], "connection_creation_rate", _UNLIMITED))

    def play(self, number: int, sequence: Sequence[Made]) -> Iterator[Difference]:
        """Play a sequence and yield where the brokers differ; what it has made is deleted afterwards."""
        self.played += 1
        for side in self.sides:
            side.begin(self.played)
        self._exchanges.clear()
        shares = is_sharing(sequence)
        if shares:
            self._await_forgotten()
        try:
            for place, made in enumerate(sequence):
                for what, asked, kafka, tidegate in self._ask(made):
                    yield Difference(
                        number=number,
                        place=place,
                        made=asked,
                        what=what,
                        kafka=kafka,
                        tidegate=tidegate,
                        before=sequence[:place],
                    )
            for what, asked, kafka, tidegate in self._kept():
                yield Difference(
                    number=number,
                    place=len(sequence),
                    made=asked,
                    what=what,
                    kafka=kafka,
                    tidegate=tidegate,
                    before=sequence,
                )
        finally:
            self._clean()
            if shares:
                self._shared_until = time.monotonic()

    def _await_forgotten(self) -> None:
        """Wait until nothing is left of what all clients together were charged; fill the bucket of the user."""
        time.sleep(max(self._shared_until + _FORGOTTEN_AFTER_S - time.monotonic(), 0))
        user = [{"entity_type": "user", "entity_name": ANONYMOUS}]
        key = "controller_mutation_rate"
        self._change(_quota(user, key, 1e6))
        touching = create_topics({"touched@": 1}, validate_only=True)
        exchange(self.sides, replace(touching, client=CONTROL))
        self._change(_quota(user, key, None))

    def _change(self, made: Made) -> None:
        """Have both change quotas, and wait for it."""
        exchange(self.sides, made)
        for _ in self._settle(ALL_QUOTAS):
            pass

    def _ask(self, made: Made) -> Iterator[tuple[str, Made, Any, Any]]:
        kafka, tidegate = replies = ask_both(self.sides, made)
        if made.api_key in ALTERATIONS and _has_code(kafka.answer, UNKNOWN_SERVER_ERROR):
            self._await_controller()
        if made.api_key in ALTERATIONS:
            self._settings_changed |= any(_may_change(made, reply.answer) for reply in replies)
        if kafka.answer != tidegate.answer and made.api_key in LATE:
            kafka = self._later(made, tidegate.answer)
        if kafka.answer != tidegate.answer:
            yield "answer", made, kafka.answer, tidegate.answer
        self._exchanges.append((made, kafka, tidegate))
        if kafka.answer == tidegate.answer == CLOSED:
            yield from self._compare_ends("closed after", made, kafka, tidegate)
        if is_unanswered(made):
            yield from self._compare_ends("mute without answer", made, kafka, tidegate)
        elif made.api_key == ALTER_CLIENT_QUOTAS:
            for side in self.sides:
                side.hang_up(made.client)  # whether what it alters is in force for itself, time decides
        elif kafka.throttle_ms or tidegate.throttle_ms:
            yield from self._compare_throttles(made, replies)
        if made.api_key in _SHOWS and _may_change(made, kafka.answer):
            yield from self._settle(_SHOWS[made.api_key])
            topics = _settings_of_topics(made)
            if topics is not None:
                yield from self._settle(topics)

    def _await_controller(self) -> None:
        """Wait until Kafka's controller, which a failed alteration makes start anew, knows its topics (row D4)."""
        give_up_at = time.monotonic() + _CONTROLLER_BACK_WITHIN_S
        (shown,) = exchange([self.kafka], ALL_TOPICS)
        names = {topic["name"] for topic in shown["topics"]}
        while time.monotonic() < give_up_at:
            (answer,) = exchange([self.kafka], ALL_ELECTIONS)
            if {result["topic"] for result in answer["replica_election_results"]} == names:
                return
            time.sleep(0.02)

    def _later(self, made: Made, expected: Any) -> Reply:
        """Ask Kafka until it answers as expected."""
        give_up_at = time.monotonic() + SETTLED_WITHIN_S
        while (reply := ask_both([self.kafka], made)[0]).answer != expected and time.monotonic() < give_up_at:
            time.sleep(0.01)
        return reply

    def _compare_ends(
        self, what: str, made: Made, kafka: Reply, tidegate: Reply
    ) -> Iterator[tuple[str, Made, Any, Any]]:
        """Compare how long a connection was deaf behind a request without an answer, or until it was closed."""
        deaf = [reply.answered_at - reply.sent_at for reply in (kafka, tidegate)]
        slack_s = _ENDS_ALIKE_S + self._kept_waiting_s(kafka.sent_at)
        kafka_slack_s = slack_s + (_KAFKA_CLOSES_WITHIN_S if kafka.answer == CLOSED else 0)
        is_alike = -slack_s <= deaf[0] - deaf[1] <= kafka_slack_s
        if kafka.answered_at and tidegate.answered_at and not is_alike:
            yield what, made, f"{1000 * deaf[0]:.0f} ms", f"{1000 * deaf[1]:.0f} ms"

    def _compare_throttles(
        self, made: Made, replies: Sequence[Reply]
    ) -> Iterator[tuple[str, Made, Any, Any]]:
        if not throttled_alike(self._exchanges):
            yield "throttle", made, replies[0].throttle_ms, replies[1].throttle_ms
        kafka, tidegate = heard(self.sides, made, replies, self.lateness)
        if kafka != tidegate:
            yield "mute", made, kafka, tidegate

    def _settle(self, shown: Made) -> Iterator[tuple[str, Made, Any, Any]]:
        """Wait until both show the same; what they never do is a difference."""
        begun = time.monotonic()
        give_up_at = begun + SETTLED_WITHIN_S
        (expected,) = exchange([self.tidegate], shown)
        while (found := exchange([self.kafka], shown)[0]) != expected:
            if time.monotonic() > give_up_at + self._kept_waiting_s(begun):
                yield "what is there", shown, found, expected
                return
            time.sleep(0.002)
        if shown != ALL_TOPICS:
            time.sleep(_IN_FORCE_S + self._kept_waiting_s(begun))
            return
        for asked in _offsets(_partitions(expected), (-1,)):
            while _is_not_ready(exchange([self.kafka], asked)[0]) and time.monotonic() < give_up_at:
                time.sleep(0.001)

    def _kept_waiting_s(self, since: float) -> float:
        """Return how long a busy machine has kept this process waiting, and Kafka probably too."""
        return self.lateness.ms_since(since) / 1000

    def _kept(self) -> Iterator[tuple[str, Made, Any, Any]]:
        """Compare what both hold: topics, offsets, their settings and the node's, groups' positions, quotas."""
        (topics,) = exchange([self.tidegate], ALL_TOPICS)
        for shown in (ALL_QUOTAS, ALL_TOPICS, ALL_SETTINGS, *_holding(_partitions(topics))):
            kafka, tidegate = exchange(self.sides, shown)
            if kafka != tidegate and shown.api_key in LATE:
                kafka = self._later(shown, tidegate).answer
            if kafka != tidegate:
                yield "what is there", shown, kafka, tidegate

    def _clean(self) -> None:
        """Remove all quotas, delete the topics of sequences, and wait until they are gone; end fetch sessions."""
        for side in self.sides:
            for session_id in side.given.sessions:
                exchange([side], _end_of_session(session_id))
        for side in self.sides:
            side.hang_up()
        quotas = [answer["entries"] for answer in exchange(self.sides, ALL_QUOTAS)]
        for side, entries in zip(self.sides, quotas, strict=True):
            if entries:
                exchange([side], _removal(entries))
        if any(quotas):
            for _ in self._settle(ALL_QUOTAS):
                pass
        if self._settings_changed:
            exchange(self.sides, RESET_SETTINGS)
            for _ in self._settle(ALL_SETTINGS):
                pass
            self._settings_changed = False
        for side in self.sides:
            side.hang_up(CONTROL)
            (topics,) = exchange([side], ALL_TOPICS)
            made = [topic["name"] for topic in topics["topics"] if topic["name"].endswith((OWN, OWN_ENDING))]
            if made:
                exchange([side], _control(DELETE_TOPICS, 4, topic_names=made, timeout_ms=30_000))
        for _ in self._settle(ALL_TOPICS):
            pass


def _end_of_session(session_id: int) -> Made:
    """Return what ends a fetch session."""
    return _control(
        FETCH,
        7,
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=0,
        isolation_level=0,
        session_id=session_id,
        session_epoch=-1,
        topics=[],
        forgotten_topics_data=[],
    )


def _settings_of_topics(made: Made) -> Made | None:
    """Return what shows the settings of the topics that a request changes, None where it changes none."""
    names = {
        resource["resource_name"]
        for resource in made.message.get("resources", ())
        if resource["resource_type"] == TOPIC
    }
    resources = [
        {"resource_type": TOPIC, "resource_name": name, "configuration_keys": None} for name in sorted(names)
    ]
    if not resources:
        return None
    return _control(
        DESCRIBE_CONFIGS, 4, resources=resources, include_synonyms=False, include_documentation=False
    )


def _may_change(made: Made, answer: Any) -> bool:
    """Return whether a request may have changed what is there."""
    message = made.message
    if made.api_key == METADATA:
        return message.get("allow_auto_topic_creation") is not False and _has_code(answer, UNKNOWN_TOPIC)
    return not message.get("validate_only") and _has_code(answer, 0)


def _has_code(value: Any, code: int) -> bool:
    """Return whether some part of an answer has this error code."""
    if isinstance(value, list):
        return any(_has_code(item, code) for item in value)
    if not isinstance(value, dict):
        return False
    return value.get("error_code") == code or any(_has_code(item, code) for item in value.values())


def _partitions(topics: dict[str, Any]) -> dict[str, int]:
    """Return how many partitions each topic of a Metadata answer has."""
    return {topic["name"]: len(topic["partitions"]) for topic in topics["topics"]}


def _is_not_ready(offsets: dict[str, Any]) -> bool:
    """Return whether a partition is shown and does not answer yet."""
    return any(part["error_code"] for topic in offsets["topics"] for part in topic["partitions"])


def _offsets(partitions: dict[str, int], timestamps: Sequence[int]) -> Iterator[Made]:
    for timestamp in timestamps if partitions else ():
        topics = [
            {
                "name": name,
                "partitions": [
                    {"partition_index": index, "current_leader_epoch": -1, "timestamp": timestamp}
                    for index in range(count)
                ],
            }
            for name, count in partitions.items()
        ]
        yield _control(LIST_OFFSETS, 5, replica_id=-1, isolation_level=0, topics=topics)


def _holding(partitions: dict[str, int]) -> Iterator[Made]:
    """Yield what shows what is kept, for topics with so many partitions."""
    yield from _offsets(partitions, (-1, -2))
    resources = [
        {"resource_type": 2, "resource_name": name, "configuration_keys": None} for name in partitions
    ]
    if resources:
        yield _control(
            DESCRIBE_CONFIGS, 4, resources=resources, include_synonyms=False, include_documentation=False
        )
    for group_id in GROUPS:
        yield _control(OFFSET_FETCH, 7, group_id=group_id, topics=None, require_stable=False)
    yield _control(DESCRIBE_GROUPS, 5, groups=list(GROUPS), include_authorized_operations=False)
    yield _control(LIST_GROUPS, 4, states_filter=[])


def _quota(entity: list[dict[str, Any]], key: str, value: float | None) -> Made:
    """Return what sets a quota, or removes it."""
    op = {"key": key, "value": value or 0.0, "remove": value is None}
    return _control(ALTER_CLIENT_QUOTAS, 1, entries=[{"entity": entity, "ops": [op]}], validate_only=False)


def _removal(entries: list[dict[str, Any]]) -> Made:
    return _control(
        ALTER_CLIENT_QUOTAS,
        1,
        entries=[
            {
                "entity": entry["entity"],
                "ops": [{"key": value["key"], "value": 0.0, "remove": True} for value in entry["values"]],
            }
            for entry in entries
            if entry["entity"] != [_HERE]
        ],
        validate_only=False,
    )
