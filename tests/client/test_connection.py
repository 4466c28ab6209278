"""One connection: what a hostile or broken broker can do to it, and logins."""

import asyncio
import random
import struct
from dataclasses import replace

import pytest
from tests.client.scripted_broker import CLOSE, SILENCE, ScriptedBroker, run, settings_for, versions

from tidegate.api_keys import (
    API_VERSIONS,
    DESCRIBE_CLIENT_QUOTAS,
    METADATA,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
)
from tidegate.client import (
    BrokerError,
    ClientError,
    ConnectionLostError,
    LoginError,
    Node,
    RequestTimeoutError,
    UnreachableError,
    UnsupportedApiError,
)
from tidegate.client.connection import MAX_LOGIN_RESPONSE_BYTES, MAX_RESPONSE_BYTES
from tidegate.scram import SCRAM_MECHANISMS, ScramServer

QUESTION = {"components": [], "strict": False}
NOTHING = {"throttle_time_ms": 0, "error_code": 0, "error_message": None, "entries": []}
SECRET = "s3cret-of-alice"
LOGIN = {"user": "alice", "password": SECRET}


def ask(script, *, api_key=DESCRIBE_CLIENT_QUOTAS, message=QUESTION, **changed):
    """Return the answer, or the error, that a client gets of a scripted broker; no connection stays open."""

    async def work():
        async with ScriptedBroker(script) as broker:
            node = Node(broker.address, settings_for(broker, **changed))
            try:
                return (await node.ask(api_key, message)).message
            except ClientError as error:
                return error
            finally:
                await node.close()
                while broker.open_connections:
                    await asyncio.sleep(0.001)

    return run(work)


def quotas(answer):
    """Return a script that answers DescribeClientQuotas, and everything else as any broker."""
    return lambda request: answer(request) if request.api_key == DESCRIBE_CLIENT_QUOTAS else None


def assert_clear(error, *words):
    """Check that an error is one line, not long, contains `words`, and shows no secret."""
    text = f"{error} {error.hint}"
    assert "\n" not in text
    assert text.isprintable()
    assert len(str(error)) < 1300
    assert SECRET not in text + repr(error)
    for word in words:
        assert word in text


def test_an_answer_comes_back():
    """The usual case: versions are learnt, the request is sent in the newest, its answer is decoded."""
    assert ask(quotas(lambda request: NOTHING)) == NOTHING


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (struct.pack(">i", MAX_RESPONSE_BYTES + 1), f"a response of {MAX_RESPONSE_BYTES + 1} bytes"),
        (struct.pack(">i", 2**31 - 1), "a response of 2147483647 bytes"),
        (struct.pack(">i", -1), "a response of -1 bytes"),
        (b"\0\0\0\0", "4 bytes expected, got 0"),
        (b"\0\0\0\5\x7f\xff\xff\xff\0", "correlation id 2147483647"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "invalid response"),
    ],
    ids=["large", "largest", "negative", "empty", "other", "http"],
)
def test_what_is_no_response_ends_the_connection(frame, words):
    """Lengths, correlation ids and texts of another protocol are refused, and nothing is allocated for them."""
    error = ask(quotas(lambda request: frame))
    assert isinstance(error, ConnectionLostError)
    assert_clear(error, words)


def test_before_the_login_a_response_is_small():
    """A server that may be anything cannot make the client read megabytes."""
    error = ask(lambda request: struct.pack(">i", MAX_LOGIN_RESPONSE_BYTES + 1))
    assert isinstance(error, UnreachableError)
    assert_clear(error, "security.protocol")


def test_a_connection_that_ends_at_any_byte_is_noticed():
    """The broker closes after each number of bytes of the answer: always the same error, at once."""
    sizes = []

    async def ask_and_cut(cut):
        def script(request):
            if request.api_key != DESCRIBE_CLIENT_QUOTAS:
                return None
            whole = request.response(NOTHING)
            sizes.append(len(whole))
            asyncio.get_running_loop().call_soon(broker.hang_up)
            return whole[:cut]

        async with ScriptedBroker(script) as broker:
            node = Node(broker.address, settings_for(broker))
            with pytest.raises(ConnectionLostError, match="closed the connection"):
                await node.ask(DESCRIBE_CLIENT_QUOTAS, QUESTION)
            await node.close()

    async def work():
        cut = 0
        while not sizes or cut < sizes[0]:
            await ask_and_cut(cut)
            cut += 1

    run(work)
    assert len(sizes) == sizes[0] > 10


def test_garbage_is_an_error_of_the_client():
    """Any bytes in the place of an answer, with the right correlation id, end in an answer or a `ClientError`."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    randomly = random.Random(seed)

    def garbage(request):
        whole = bytearray(request.response(NOTHING)) + randomly.randbytes(randomly.randrange(40))
        for _ in range(randomly.randrange(4)):
            whole[randomly.randrange(8, len(whole))] = randomly.randrange(256)
        return struct.pack(">i", len(whole) - 4) + bytes(whole[4:])

    async def work():
        async with ScriptedBroker(quotas(garbage)) as broker:
            node = Node(broker.address, settings_for(broker, request_timeout_s=0.2))
            for _ in range(300):
                try:
                    await node.ask(DESCRIBE_CLIENT_QUOTAS, QUESTION)
                except ClientError as error:
                    assert_clear(error)
                if node.throttled_s:  # a random throttle time: a new node does not know of it
                    await node.close()
                    node = Node(broker.address, settings_for(broker, request_timeout_s=0.2))
            await node.close()

    run(work)


def test_a_response_without_a_request_ends_the_connection():
    """A second answer to the same request is not taken for the next one."""

    async def work():
        async with ScriptedBroker(quotas(lambda request: 2 * request.response(NOTHING))) as broker:
            node = Node(broker.address, settings_for(broker))
            await node.ask(DESCRIBE_CLIENT_QUOTAS, QUESTION)
            while broker.open_connections:
                await asyncio.sleep(0.001)
            await node.close()

    run(work)


def test_a_broker_that_never_answers():
    """The request ends after its timeout, with the API and the setting in the error."""
    error = ask(quotas(lambda request: SILENCE), request_timeout_s=0.05)
    assert isinstance(error, RequestTimeoutError)
    assert_clear(error, "DescribeClientQuotas within 0.05 s", "request.timeout.ms")


def test_a_listener_that_says_nothing_at_all():
    """A listener of another protocol often waits: the error points at security.protocol."""
    error = ask(lambda request: SILENCE, connect_timeout_s=0.5)
    assert isinstance(error, UnreachableError)
    assert_clear(error, "ApiVersions", "security.protocol")


def test_nothing_listens():
    """The error has the address and the reason of the system."""

    async def work():
        async with ScriptedBroker() as broker:
            address = broker.address
            settings = settings_for(broker)
        node = Node(address, settings)
        with pytest.raises(UnreachableError) as caught:
            await node.ask(METADATA, {})
        return caught.value

    assert_clear(run(work), "Connection refused", "check that a broker listens")


def test_a_host_without_an_address():
    """The hint is about the name: no broker could be asked."""

    async def work():
        async with ScriptedBroker() as broker:
            settings = settings_for(broker, connect_timeout_s=15.0)  # a lost packet costs the resolver 5 s
            node = Node(type(broker.address)("no-such-host.invalid", 9092), settings)
            with pytest.raises(UnreachableError) as caught:
                await node.ask(METADATA, {})
            return caught.value

    assert_clear(run(work), "no-such-host.invalid:9092", "check the host name")


@pytest.mark.parametrize("address", [("a\0b", 1), ("localhost", 70_000), ("localhost", -5), ("x" * 300, 1)])
def test_addresses_that_cannot_be(address):
    """A host or port from a broker that no connection can be made to is an error like any other."""

    async def work():
        async with ScriptedBroker() as broker:
            node = Node(type(broker.address)(*address), settings_for(broker))
            with pytest.raises(UnreachableError) as caught:
                await node.ask(METADATA, {})
            return caught.value

    assert_clear(run(work))


def test_an_old_broker_answers_api_versions_in_version_0():
    """Error 35 comes in version 0, whatever was asked for; then version 0 is asked for (KIP-511)."""

    def script(request):
        if request.api_key != API_VERSIONS:
            return NOTHING
        if request.api_version:
            return request.response({"error_code": 35, "api_keys": []}, version=0)
        return versions()

    assert ask(script) == NOTHING


def test_error_35_twice_is_an_error():
    """A broker that speaks no version of ApiVersions is not asked for ever."""
    error = ask(lambda request: request.response({"error_code": 35, "api_keys": []}, version=0))
    assert isinstance(error, BrokerError)
    assert_clear(error, "UNSUPPORTED_VERSION")


@pytest.mark.parametrize("theirs", [(5, 9), (-5, -2)])
def test_versions_that_do_not_overlap(theirs):
    """The error names the API and both ranges."""
    error = ask(lambda request: versions(DescribeClientQuotas=theirs))
    assert isinstance(error, UnsupportedApiError)
    assert_clear(error, "DescribeClientQuotas", "expected one of 0 to 1", "2.8 and later")


@pytest.mark.parametrize("theirs", [(0, -1), (3, 2)])
def test_an_api_without_a_version(theirs):
    """The error names the API, and the hint the versions of Kafka that have it."""
    error = ask(lambda request: versions(DescribeClientQuotas=theirs))
    assert isinstance(error, UnsupportedApiError)
    assert_clear(error, "does not support DescribeClientQuotas", "Kafka 2.6 or later")


def test_the_newest_common_version_is_spoken():
    """A broker of an older version is asked in its newest version."""

    async def work():
        script = lambda request: (  # noqa: E731
            versions(DescribeClientQuotas=(0, 0)) if request.api_key == API_VERSIONS else NOTHING
        )
        async with ScriptedBroker(script) as broker:
            node = Node(broker.address, settings_for(broker))
            assert (await node.ask(DESCRIBE_CLIENT_QUOTAS, QUESTION)).api_version == 0
            await node.close()

    run(work)


def test_a_message_that_cannot_be_written():
    """A mistake of the caller is an error of the client, and frees the slot."""
    error = ask(lambda request: None, message={"components": [{"entity_type": "x" * 40_000}], "strict": 3})
    assert isinstance(error, ClientError)
    assert_clear(error, "DescribeClientQuotas")


def test_a_text_of_a_broker_is_shown_as_one_line():
    """Control characters and a long text of a broker do not reach a terminal."""
    text = "no\n\x1b[2Jway" + "x" * 30_000
    answer = {**NOTHING, "error_code": 42, "error_message": text, "entries": None}

    async def work():
        from tidegate.client import Admin

        async with (
            ScriptedBroker(quotas(lambda request: answer)) as broker,
            Admin(settings_for(broker)) as admin,
        ):
            with pytest.raises(BrokerError) as caught:
                await admin.describe_client_quotas()
            return caught.value

    assert_clear(run(work), "no  [2Jway")


# --- logins ---------------------------------------------------------------------------------------------------------


def scram_broker(password, *, mechanism="SCRAM-SHA-256", change_first=bytes, change_final=bytes):
    """Return the script of a broker that knows a password of alice, and changes what it sends."""
    details = SCRAM_MECHANISMS[mechanism]
    credential = details.credential(password.encode(), salt=b"salt", iterations=4096)
    server = ScramServer(details, {"alice": credential}.get)
    changes = [change_first, change_final]

    def script(request):
        if request.api_key == SASL_HANDSHAKE:
            return {"error_code": 0, "mechanisms": [mechanism]}
        if request.api_key == SASL_AUTHENTICATE:
            token = changes.pop(0)(server.respond(request.message["auth_bytes"]))
            return {"error_code": 0, "error_message": None, "auth_bytes": token, "session_lifetime_ms": 0}
        return NOTHING if request.api_key == DESCRIBE_CLIENT_QUOTAS else None

    return script


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_scram_login(mechanism):
    """Both sides prove that they know the password, then requests are answered."""
    assert ask(scram_broker(SECRET, mechanism=mechanism), mechanism=mechanism, **LOGIN) == NOTHING


def test_a_server_that_cannot_prove_that_it_knows_the_password():
    """A server in the broker's place is refused: nothing is sent to it after the login."""
    wrong = lambda token: b"v=" + b"A" * 43 + b"="  # noqa: E731
    error = ask(scram_broker(SECRET, change_final=wrong), mechanism="SCRAM-SHA-256", **LOGIN)
    assert isinstance(error, LoginError)
    assert_clear(error, "could not prove", "'alice'")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda token: b"", "malformed"),
        (lambda token: token.replace(b"r=", b"r=x"), "malformed"),
        (lambda token: token.replace(b"i=4096", b"i=999999999"), "999999999 iterations"),
        (lambda token: token.replace(b"i=4096", b"i=1"), "1 iterations"),
        (lambda token: token.replace(b"i=4096", b"i=" + b"9" * 4000), "malformed"),
    ],
    ids=["empty", "nonce", "many", "few", "digits"],
)
def test_a_scram_server_that_asks_for_what_it_may_not(change, words):
    """Messages without the client's nonce, and work without end, are refused before any work."""
    error = ask(scram_broker(SECRET, change_first=change), mechanism="SCRAM-SHA-256", **LOGIN)
    assert isinstance(error, LoginError)
    assert_clear(error, words)


def test_a_refused_login_shows_no_password():
    """Also where the server sends the password back in its text."""

    def script(request):
        if request.api_key == SASL_HANDSHAKE:
            return {"error_code": 0, "mechanisms": ["PLAIN"]}
        if request.api_key == SASL_AUTHENTICATE:
            text = f"bad {request.message['auth_bytes']!r}"
            return {"error_code": 58, "error_message": text, "auth_bytes": b"", "session_lifetime_ms": 0}
        return None

    error = ask(script, mechanism="PLAIN", **LOGIN)
    assert isinstance(error, LoginError)
    assert_clear(error, "[password]", "sasl.jaas.config")


@pytest.mark.parametrize(
    ("code", "words"),
    [(33, "it supports GSSAPI"), (34, "set security.protocol"), (-1, "UNKNOWN_SERVER_ERROR")],
    ids=["mechanism", "no login", "unknown"],
)
def test_a_listener_that_expects_another_login(code, words):
    """The error says what to set."""
    answer = {"error_code": code, "mechanisms": ["GSSAPI"]}
    error = ask(
        lambda request: answer if request.api_key == SASL_HANDSHAKE else None, mechanism="PLAIN", **LOGIN
    )
    assert isinstance(error, ClientError)
    assert_clear(error, words)


def test_a_session_that_ends_is_renewed_by_a_new_connection():
    """Before the lifetime of a login is over the client logs in again, on another connection (KIP-368).

    The first connection stays open until its responses have come.
    """

    def script(request):
        if request.api_key == SASL_HANDSHAKE:
            return {"error_code": 0, "mechanisms": ["PLAIN"]}
        if request.api_key == SASL_AUTHENTICATE:
            return {"error_code": 0, "error_message": None, "auth_bytes": b"", "session_lifetime_ms": 1_000}
        return late(request) if request.api_key == DESCRIBE_CLIENT_QUOTAS else None

    def late(request):
        if request.connection:
            return NOTHING
        (writer,) = broker._writers
        asyncio.get_running_loop().call_later(0.8, writer.write, request.response(NOTHING))
        return SILENCE

    async def work():
        async with broker:
            node = Node(broker.address, settings_for(broker, mechanism="PLAIN", **LOGIN))
            first = asyncio.create_task(node.ask(DESCRIBE_CLIENT_QUOTAS, QUESTION))
            await asyncio.sleep(0.6)
            second = await node.ask(DESCRIBE_CLIENT_QUOTAS, QUESTION)
            assert (first.done(), (await first).message, second.message) == (True, NOTHING, NOTHING)
            assert broker.connections == 2
            await node.close()

    broker = ScriptedBroker(script)

    run(work)


def test_settings_show_no_password():
    """The representation of settings, of a node and of a cluster has no secret."""

    async def work():
        async with ScriptedBroker() as broker:
            settings = replace(settings_for(broker), mechanism="PLAIN", user="alice", password=SECRET)
            return repr(settings) + repr(Node(broker.address, settings))

    assert SECRET not in run(work)


def test_a_closed_connection_fails_all_requests_in_flight():
    """Each of them has the same error, at once."""

    async def work():
        asked = []

        def script(request):
            if request.api_key != DESCRIBE_CLIENT_QUOTAS:
                return None
            asked.append(request)
            return CLOSE if len(asked) == 3 else SILENCE

        async with ScriptedBroker(script) as broker:
            node = Node(broker.address, settings_for(broker))
            results = await asyncio.gather(
                *(node.ask(DESCRIBE_CLIENT_QUOTAS, QUESTION) for _ in range(3)), return_exceptions=True
            )
            await node.close()
        assert [type(result) for result in results] == [ConnectionLostError] * 3

    run(work)
