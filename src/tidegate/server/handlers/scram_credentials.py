"""DescribeUserScramCredentials (key 50) and AlterUserScramCredentials (key 51), v0. KIP-554.

Describing needs DESCRIBE on the cluster, altering ALTER (error 31). Translates between messages and `ScramCredentials`,
which holds every other rule. Salted passwords come in and never go out.
"""

from collections.abc import Generator, Sequence
from operator import itemgetter

from tidegate import error_codes
from tidegate.acl import codes
from tidegate.in_slices import batched, map_in_slices, release, release_messages
from tidegate.server.audit import Audit
from tidegate.server.authentication.scram_credentials import (
    MAX_SECRET_BYTES,
    Deletion,
    Described,
    ScramCredentials,
    Upsertion,
    UserResult,
)
from tidegate.server.requests.handler import Message, Request, Work

__all__ = ["handle_alter_user_scram_credentials", "handle_describe_user_scram_credentials"]


def handle_describe_user_scram_credentials(credentials: ScramCredentials, request: Request) -> Work:
    """Describe `credentials`."""
    body = yield from request.body_in_slices()
    if not request.authorized(codes.DESCRIBE, codes.CLUSTER):
        return (yield from _refuse(request, body))
    names: list[str] = yield from map_in_slices(itemgetter("name"), body["users"] or ())
    found = yield from credentials.describe_in_slices(names)
    results = yield from map_in_slices(_described, found)
    message = {
        "throttle_time_ms": 0,
        "error_code": error_codes.NONE,
        "error_message": "",
        "results": results,
    }
    answer = yield from request.answer_in_slices(message)
    yield from request.release_body(body)
    yield from release(names, found)
    yield from release_messages(results)
    return answer


def handle_alter_user_scram_credentials(credentials: ScramCredentials, request: Request) -> Work:
    """Alter `credentials`."""
    body = yield from request.body_in_slices()
    deletions = yield from map_in_slices(
        lambda part: Deletion(part["name"], part["mechanism"]), body["deletions"]
    )
    upsertions = yield from map_in_slices(_upsertion, body["upsertions"])
    with Audit(request.connection) as audit:
        if request.authorized(codes.ALTER, codes.CLUSTER):
            changed = yield from credentials.alter_in_slices(deletions, upsertions, audit)
        else:
            audit.refused("alter", "SCRAM credential")
            changed = yield from _refused(request, deletions, upsertions)
    results = yield from map_in_slices(_altered, changed)
    message = {"throttle_time_ms": 0, "results": results}
    answer = yield from request.answer_in_slices(message)
    yield from request.release_body(body)
    yield from release(deletions, upsertions, changed, results)
    return answer


def _refuse(request: Request, body: Message) -> Work:
    """Refuse to describe credentials, with a result for each named user. For all users, Kafka sends no answer.

    Follows: Kafka `DescribeUserScramCredentialsRequest.getErrorResponse`.
    """
    results = yield from map_in_slices(_unauthorized, body["users"] or ())
    message = {
        "throttle_time_ms": 0,
        "error_code": error_codes.CLUSTER_AUTHORIZATION_FAILED,
        "error_message": None,
        "results": results,
    }
    answer = yield from request.answer_in_slices(message)
    yield from request.release_body(body)
    yield from release_messages(results)
    return answer


def _unauthorized(_: Message) -> Message:
    code = error_codes.CLUSTER_AUTHORIZATION_FAILED
    return {"user": "", "error_code": code, "error_message": None, "credential_infos": []}


def _refused(
    request: Request, deletions: Sequence[Deletion], upsertions: Sequence[Upsertion]
) -> Generator[None, None, list[UserResult]]:
    """Return a result for each user whose credentials the client may not alter."""
    users: dict[str, None] = {}
    lists: tuple[Sequence[Deletion | Upsertion], ...] = (deletions, upsertions)
    for alterations in lists:
        for some in batched(alterations):
            users |= dict.fromkeys(each.user for each in some)
            yield
    text = request.refusal(codes.ALTER)
    results = yield from map_in_slices(
        lambda user: UserResult(user, error_codes.CLUSTER_AUTHORIZATION_FAILED, text), list(users)
    )
    yield from release(users)
    return results


def _upsertion(part: Message) -> Upsertion:
    return Upsertion(
        user=part["name"],
        mechanism=part["mechanism"],
        iterations=part["iterations"],
        salt=_secret(part["salt"]),
        salted_password=_secret(part["salted_password"]),
    )


def _secret(value: bytes | memoryview) -> bytes:
    """Return what is given, or so much of it that it is too long."""
    return bytes(value[: MAX_SECRET_BYTES + 1])


def _described(found: Described) -> Message:
    return {
        "user": found.user,
        "error_code": found.error_code,
        "error_message": found.error_message,
        "credential_infos": [
            {"mechanism": mechanism, "iterations": iterations} for mechanism, iterations in found.credentials
        ],
    }


def _altered(result: UserResult) -> Message:
    return {"user": result.user, "error_code": result.error_code, "error_message": result.error_message}
