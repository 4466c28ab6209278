"""The administrator's client: error 89 of a controller mutation quota, and answers that do not fit the question."""

import asyncio
import os
import signal
import threading
import time

import pytest
from tests.client.scripted_broker import (
    CLOSE,
    SILENCE,
    ScriptedBroker,
    brokers_of,
    run,
    settings_for,
    versions,
)

from tidegate.api_keys import (
    ALTER_USER_SCRAM_CREDENTIALS,
    API_VERSIONS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_CONFIGS,
    DESCRIBE_GROUPS,
    FIND_COORDINATOR,
    METADATA,
)
from tidegate.client import (
    Address,
    Admin,
    ClientError,
    ClientSettings,
    ConnectionLostError,
    NewTopic,
    RequestTimeoutError,
    ScramChange,
    run_as_admin,
)
from tidegate.client import ThrottlingQuotaExceededError as Throttled
from tidegate.wire import ZERO_ID

TOPICS = [NewTopic(name=name, partitions=1) for name in "abc"]


def answer(request, codes, *, throttle_time_ms=0, key="topics"):
    """Return an answer about the topics of a request; codes: by name, 0 by default."""
    names = [topic["name"] for topic in request.message["topics"]]
    results = [result(name, codes.get(name, 0)) for name in names]
    return {"throttle_time_ms": throttle_time_ms, key: results}


def result(name, code=0):
    """Return what CreateTopics, CreatePartitions and DeleteTopics answer about one topic."""
    return {
        "name": name, "error_code": code, "error_message": None, "topic_id": ZERO_ID,
        "topic_config_error_code": 0, "num_partitions": 1, "replication_factor": 1, "configs": [],
    }  # fmt: skip


def mutating(*rounds, api_key=CREATE_TOPICS, key="topics"):
    """Return a script that answers each request about topics with the next of (codes, throttle time in ms)."""
    left = list(rounds)

    def script(request):
        if request.api_key != api_key:
            return None
        codes, throttle_time_ms = left.pop(0) if len(left) > 1 else left[0]
        return answer(request, codes, throttle_time_ms=throttle_time_ms, key=key)

    return script


def create(script, *, topics=TOPICS, call=None, **options):
    """Return the results of a call, and what the broker was asked."""
    changed = {key: options.pop(key) for key in list(options) if key.endswith("_s")}

    async def work():
        async with ScriptedBroker(script) as broker, Admin(settings_for(broker, **changed)) as admin:
            if call is None:
                return await admin.create_topics(topics, **options), broker
            return await call(admin), broker

    return run(work)


def test_refused_topics_are_tried_again_when_the_throttle_time_is_over():
    """The others are not sent again; there is no pause beside the throttle time of the response."""
    results, broker = create(mutating(({"b": 89, "c": 36}, 120), ({}, 0)), retry_backoff_s=60.0)
    assert (results["a"], results["b"], results["c"].code) == (None, None, 36)
    first, second = broker.asked(CREATE_TOPICS)
    assert [topic["name"] for topic in second.message["topics"]] == ["b"]
    assert second.at_s - first.at_s >= 0.12
    assert second.message["timeout_ms"] <= first.message["timeout_ms"] - 119  # the same deadline


def test_a_topic_that_is_refused_until_the_timeout_has_the_rest_of_the_throttle_time():
    """The rest is what the last response asked for, less what has passed since; the text is the general one."""
    timeout_s, throttle_s, slack_s = 0.5, 9.0, 0.25
    begun_s = time.monotonic()
    results, broker = create(mutating(({"b": 89}, 9000)), api_timeout_s=timeout_s)
    ended_s, answered_s = time.monotonic(), broker.answered_s[-1]
    assert len(broker.asked(CREATE_TOPICS)) == 1
    assert (results["a"], results["c"]) == (None, None)
    assert isinstance(results["b"], Throttled)
    rest_s = results["b"].throttle_time_ms / 1000
    assert rest_s >= answered_s + throttle_s - ended_s - 0.002
    assert rest_s <= answered_s + throttle_s - (begun_s + timeout_s) + slack_s
    assert "THROTTLING_QUOTA_EXCEEDED" in str(results["b"])


def test_no_rest_is_negative():
    """A retry that is not answered: the throttle time is over when the call ends."""
    rounds = [({"a": 89}, 50)]

    def script(request):
        if request.api_key != CREATE_TOPICS:
            return None
        return answer(request, rounds.pop()[0], throttle_time_ms=50) if rounds else SILENCE

    results, _ = create(script, topics=TOPICS[:1], api_timeout_s=0.3)
    assert results["a"].throttle_time_ms == 0


def test_without_retry_the_error_comes_at_once():
    """It has the throttle time of the response and the broker's text."""

    def script(request):
        if request.api_key != CREATE_TOPICS:
            return None
        message = answer(request, {"a": 89}, throttle_time_ms=7000)
        message["topics"][0]["error_message"] = "not now"
        return message

    results, broker = create(script, retry_on_quota_violation=False)
    assert len(broker.asked(CREATE_TOPICS)) == 1
    assert results["a"].throttle_time_ms == 7000
    assert str(results["a"]) == "not now (THROTTLING_QUOTA_EXCEEDED)"
    assert (results["b"], results["c"]) == (None, None)


def test_partitions_and_deletions_are_tried_again_too():
    """CreatePartitions and DeleteTopics honour the throttle time as CreateTopics does."""
    for api_key, key, call in (
        (CREATE_PARTITIONS, "results", lambda admin: admin.create_partitions({"a": 3, "b": 3})),
        (DELETE_TOPICS, "responses", lambda admin: admin.delete_topics(["a", "b"])),
    ):
        script = mutating(({"a": 89}, 60), ({}, 0), api_key=api_key, key=key)
        results, broker = create(script, call=call)
        assert results == {"a": None, "b": None}
        first, second = broker.asked(api_key)
        assert second.at_s - first.at_s >= 0.06


def test_error_89_without_a_throttle_time_is_not_asked_without_pause():
    """A broker that refuses and asks for no wait gets a request for each pause, until the timeout."""
    results, broker = create(
        mutating(({"a": 89}, 0)), topics=TOPICS[:1], api_timeout_s=1.0, retry_backoff_s=0.05
    )
    assert isinstance(results["a"], Throttled)
    assert 2 <= len(broker.asked(CREATE_TOPICS)) <= 21


def test_topics_are_asked_again_of_another_controller():
    """Error 41 finds the controller anew; a refusal beside it keeps its own result."""
    results, broker = create(mutating(({"a": 41, "b": 89}, 30), ({}, 0)))
    assert results == {"a": None, "b": None, "c": None}
    assert len(broker.asked(METADATA)) == 2


def test_a_mixture_that_never_ends_has_a_result_per_topic():
    """At the timeout each topic has the last error that a broker gave it."""
    results, _ = create(mutating(({"a": 41, "b": 89}, 0)), api_timeout_s=0.5, retry_backoff_s=0.02)
    assert results["a"].code == 41
    assert isinstance(results["b"], Throttled)
    assert results["c"] is None


def test_a_lost_connection_is_tried_again():
    """The broker closes the connection instead of an answer, once."""
    asked = []

    def script(request):
        if request.api_key != CREATE_TOPICS:
            return None
        asked.append(request)
        return answer(request, {}) if len(asked) > 1 else CLOSE

    assert create(script)[0] == {"a": None, "b": None, "c": None}


def test_a_broker_that_never_answers_is_a_timeout():
    """Without any answer about topics the call fails as a whole."""
    with pytest.raises(RequestTimeoutError):
        create(lambda request: SILENCE if request.api_key == CREATE_TOPICS else None, api_timeout_s=0.2)


def test_answers_that_do_not_fit_the_question():
    """Topics without a result have an error, results of other topics are left out."""

    def script(request):
        if request.api_key != CREATE_TOPICS:
            return None
        results = [result(name) for name in ("a", "a", "evil", "")]
        return {"throttle_time_ms": 0, "topics": results}

    results, _ = create(script)
    assert sorted(results) == ["a", "b", "c"]
    assert results["a"] is None
    assert "gave no result of topic 'b'" in str(results["b"])


@pytest.mark.parametrize("count", [0, 2])
def test_another_number_of_results_is_an_error(count):
    """A description of no resource, or of two, is not taken for that of one."""
    result = {
        "error_code": 0, "error_message": None, "resource_type": 4, "resource_name": "1", "configs": [],
    }  # fmt: skip
    message = {"throttle_time_ms": 0, "results": [result] * count}
    with pytest.raises(ClientError, match=f"{count} results, expected 1"):
        create(
            lambda request: message if request.api_key == DESCRIBE_CONFIGS else None,
            call=lambda admin: admin.describe_configs(4, "1"),
        )


def test_a_cluster_with_too_many_brokers_is_an_error():
    """The table of brokers has a bound."""

    def script(request):
        if request.api_key != METADATA:
            return None
        message = brokers_of()
        broker = {"host": "h", "port": 1, "rack": None}
        return {**message, "brokers": [{**broker, "node_id": at} for at in range(10_001)]}

    with pytest.raises(ClientError, match="10001 brokers, expected at most 10000"):
        create(script)


@pytest.mark.parametrize(
    ("api", "call", "hint"),
    [
        ("AlterClientQuotas", lambda admin: admin.alter_client_quotas([]), "Kafka 2.6 or later"),
        ("AlterUserScramCredentials", lambda admin: admin.alter_scram_users([]), "with KRaft 3.5 or later"),
        ("Metadata", lambda admin: admin.list_topics(), "not of a KRaft controller"),
    ],
)
def test_an_api_that_the_broker_does_not_have(api, call, hint):
    """The error names broker and API, the hint what has it."""
    with pytest.raises(ClientError, match=f"broker 127.0.0.1:[0-9]+ does not support {api}$") as caught:
        create(
            lambda request: versions(**{api: (0, -1)}) if request.api_key == API_VERSIONS else None,
            call=call,
        )
    assert hint in caught.value.hint


def test_a_listener_that_closes_new_connections_is_given_up():
    """A listener with SASL treats clients without a login so: after five connections that is the error, with a hint."""
    seen = []

    def script(request):
        if request.api_key == METADATA:
            seen.append(request.connection)
            return CLOSE
        return None

    with pytest.raises(ConnectionLostError, match="closed the connection") as caught:
        create(script, call=lambda admin: admin.list_topics())
    assert "SASL" in caught.value.hint
    assert len(set(seen)) == 5


def test_the_last_error_is_named_when_the_time_is_over():
    """A broker that closes connections after it has answered is asked again; then the error says what happened."""
    with pytest.raises(
        RequestTimeoutError, match=r"no answer within 0\.5 s; last error: .* closed the"
    ) as caught:
        create(
            lambda request: CLOSE if request.api_key == DESCRIBE_CONFIGS else None,
            call=lambda admin: admin.describe_configs(2, "t"),
            api_timeout_s=0.5,
        )
    assert caught.value.hint == "raise default.api.timeout.ms"


def test_scram_users_are_changed_by_the_controller():
    """With ZooKeeper the other brokers answer error 41. The controller is found anew; a lost connection is no error."""

    def script(request):
        if request.api_key == METADATA:
            now = controller if len(other.asked(ALTER_USER_SCRAM_CREDENTIALS)) else other
            return {**brokers_of(other, controller), "controller_id": now.node_id}
        if request.api_key == ALTER_USER_SCRAM_CREDENTIALS:
            codes = [CLOSE, 0] if request in controller.received else [41]
            code = codes[min(len(controller.asked(request.api_key)), len(codes)) - 1]
            result = {"user": "a", "error_code": code, "error_message": None}
            return code if code is CLOSE else {"throttle_time_ms": 0, "results": [result]}
        return None

    other, controller = ScriptedBroker(script, node_id=1), ScriptedBroker(script, node_id=2)

    async def work():
        async with other, controller, Admin(settings_for(other, controller)) as admin:
            change = ScramChange(user="a", mechanism="SCRAM-SHA-256", password="b")
            assert await admin.alter_scram_users([change]) == {"a": None}

    run(work)
    asked = [len(each.asked(ALTER_USER_SCRAM_CREDENTIALS)) for each in (other, controller)]
    assert asked == [1, 2]


@pytest.mark.parametrize("codes", [(14, 15, 16, 0), (15,)])
def test_a_group_whose_coordinator_is_not_ready_is_asked_for_again(codes):
    """Until the coordinator answers, or until `default.api.timeout.ms` with the broker's error."""
    left = list(codes)

    def script(request):
        code = left.pop(0) if len(left) > 1 else left[0]
        if request.api_key == FIND_COORDINATOR:
            where = broker.address
            found = {"key": "g", "node_id": 0, "host": where.host, "port": where.port}
            coordinator = {**found, "error_code": code if code == 15 else 0, "error_message": None}
            return {"throttle_time_ms": 0, "coordinators": [coordinator]}
        if request.api_key == DESCRIBE_GROUPS:
            group = {
                "error_code": code, "error_message": None, "group_id": "g", "group_state": "Stable",
                "protocol_type": "", "protocol_data": "", "members": [], "authorized_operations": 0,
            }  # fmt: skip
            return {"throttle_time_ms": 0, "groups": [group]}
        return None

    broker = ScriptedBroker(script)

    async def work():
        async with (
            broker,
            Admin(settings_for(broker, api_timeout_s=10.0 if codes[-1] == 0 else 1.0)) as admin,
        ):
            return await admin.describe_group("g")

    if codes[-1] == 0:
        assert run(work)["group_state"] == "Stable"
        return
    with pytest.raises(ClientError, match="COORDINATOR_NOT_AVAILABLE"):
        run(work)
    assert len(broker.asked(FIND_COORDINATOR)) > 1


def test_an_unknown_broker_is_named():
    """A node id that the cluster does not have."""
    with pytest.raises(ClientError, match=r"no broker 7, it has \[0\]"):
        create(lambda request: None, call=lambda admin: admin.describe_configs(4, "7", node_id=7))


def test_a_password_is_not_shown():
    """Neither the change of a SCRAM user nor an error about it shows it."""
    change = ScramChange(user="u", mechanism="SCRAM-SHA-256", password="s3cret")
    assert "s3cret" not in repr(change)


async def _ask_nothing(_):
    await asyncio.sleep(0.02)
    return {}


def _ask_and_go_on(begin):
    begin()
    run_as_admin(ClientSettings(addresses=(Address("127.0.0.1", 1),)), _ask_nothing, in_thread=True)
    time.sleep(5)


@pytest.mark.parametrize("after_s", [0.0, 0.0005, 0.001, 0.002, 0.05])
def test_no_interrupt_is_lost(after_s):
    """Ctrl-C raises KeyboardInterrupt at any time, also while the client is created or deleted."""
    interrupt = threading.Timer(0.02 + after_s, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        _ask_and_go_on(interrupt.start)


def test_plain_code_can_ask_while_a_loop_runs():
    """In a thread of its own, an administrator also works where this thread has a running event loop."""

    async def ask():
        settings = ClientSettings(addresses=(Address("127.0.0.1", 1),))
        return run_as_admin(settings, _ask_nothing, in_thread=True)

    assert asyncio.run(ask()) == {}
