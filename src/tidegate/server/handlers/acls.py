"""DescribeAcls (key 29), CreateAcls (key 30) and DeleteAcls (key 31), v1-3. KIP-140, KIP-290.

Describing needs DESCRIBE on the cluster, changing ALTER, as in Kafka; without an authorizer all get error 54
(SECURITY_DISABLED). What is created or deleted holds when it is answered. Of a request that deletes, every filter finds
what was there before. A request with a number that stands for "unknown" closes the connection; one that creates an ACL
for "any" type, pattern, operation or permission fails as a whole with error -1. As in Kafka.

Memory: at most 150 bytes for each byte of the request (an ACL of 12 bytes becomes a dict and a tuple); the ACLs found
are those that are kept, and become parts of the answer one by one. An answer has at most `MAX_FOUND`.
"""

from collections.abc import Generator, Iterable, Iterator
from functools import partial
from typing import Literal

from tidegate import error_codes
from tidegate.acl import Acl, AclFilter, Authorizer, codes, known_code
from tidegate.error_codes import Problem
from tidegate.in_slices import batched, map_in_slices, release
from tidegate.server.administration.acl_administration import AclAdministration
from tidegate.server.audit import Audit
from tidegate.server.requests.handler import Message, Request, Work
from tidegate.server.requests.late_messages import LateMessages
from tidegate.wire import ProtocolError

__all__ = ["MAX_FOUND", "handle_create_acls", "handle_delete_acls", "handle_describe_acls"]

MAX_FOUND = 200_000
"""ACLs in an answer, each as often as a filter finds it; a filter with which there would be more gets error 44."""
MAX_LOOKED_AT = 20_000_000
"""ACLs that the filters of one request look at: some 10 s of slices. One past it gets error 44."""
_NO_AUTHORIZER = "No Authorizer is configured."
_TOO_MUCH: Problem = (
    error_codes.POLICY_VIOLATION,
    f"The filters of a request may match at most {MAX_FOUND} ACLs and search at most {MAX_LOOKED_AT}.",
)
_UNKNOWN_PATTERN: Problem = error_codes.INVALID_REQUEST, "Unknown patternFilter."
_UNKNOWN_ENTRY: Problem = error_codes.INVALID_REQUEST, "Unknown entryFilter."
_UNFORESEEN: Problem = error_codes.UNKNOWN_SERVER_ERROR, None
_Pattern = tuple[int, str, int]


def handle_describe_acls(acls: AclAdministration | None, request: Request) -> Work:
    """Describe ACLs."""
    body = request.body()
    wanted = _filter(request, body)
    problem: Problem | None = None
    found: list[Acl] = []
    if not request.authorized(codes.DESCRIBE, codes.CLUSTER):
        problem = error_codes.CLUSTER_AUTHORIZATION_FAILED, request.refusal(codes.DESCRIBE)
    elif acls is None:
        problem = error_codes.SECURITY_DISABLED, f"{_NO_AUTHORIZER[:-1]} on the broker"
    else:
        found = yield from acls.authorizer.matching_in_slices(wanted)
    by_pattern: dict[_Pattern, list[Acl]] = {}
    for some in batched(found):
        for acl in some:
            by_pattern.setdefault(acl[:3], []).append(acl)
        yield
    message = {
        "throttle_time_ms": 0,
        "error_code": error_codes.NONE if problem is None else problem[0],
        "error_message": "" if problem is None else problem[1],
        "resources": LateMessages(by_pattern.items(), _resource),
    }
    answer = yield from request.answer_in_slices(message)
    yield from release(found, by_pattern)
    return answer


def handle_create_acls(acls: AclAdministration | None, request: Request) -> Work:
    """Create ACLs."""
    body = yield from request.body_in_slices()
    wanted = yield from map_in_slices(partial(_acl, request), body["creations"])
    is_of_any = any((yield from map_in_slices(_is_of_any, wanted)))
    yield from request.release_body(body)
    results: list[Problem | None]
    with Audit(request.connection) as audit:
        problem = _refused(request, acls, audit, "create")
        if problem is None and is_of_any:
            problem = _UNFORESEEN
        if acls is None or problem is not None:
            results = [problem] * len(wanted)
        else:
            results = yield from acls.create_in_slices(wanted, audit)
    message = {"throttle_time_ms": 0, "results": LateMessages(results, _result)}
    answer = yield from request.answer_in_slices(message)
    yield from release(wanted, results)
    return answer


def handle_delete_acls(acls: AclAdministration | None, request: Request) -> Work:
    """Delete ACLs."""
    body = yield from request.body_in_slices()
    filters = yield from map_in_slices(partial(_filter, request), body["filters"])
    yield from request.release_body(body)
    found: list[list[Acl] | Problem] = []
    failed: dict[Acl, Problem] = {}
    with Audit(request.connection) as audit:
        problem = _refused(request, acls, audit, "delete")
        if acls is None or problem is not None:
            assert problem is not None
            found += [problem] * len(filters)
        else:
            yield from _find(acls.authorizer, filters, found)
            for deleted in found:
                if isinstance(deleted, list):
                    failed |= yield from acls.delete_in_slices(deleted, audit)
                yield
    results = LateMessages(found, lambda one: _filter_result(one, failed))
    answer = yield from request.answer_in_slices({"throttle_time_ms": 0, "filter_results": results})
    for some_acls in found:
        if isinstance(some_acls, list):
            yield from release(some_acls)
        yield
    yield from release(filters, found)
    return answer


def _is_of_any(acl: Acl) -> bool:
    return codes.ANY in (acl.resource_type, acl.operation, acl.permission) or acl.pattern_type in (
        codes.ANY,
        codes.MATCH,
    )


def _refused(
    request: Request, acls: AclAdministration | None, audit: Audit, action: Literal["create", "delete"]
) -> Problem | None:
    """Return why nothing can be changed, None where it can."""
    if not request.authorized(codes.ALTER, codes.CLUSTER):
        audit.refused(action, "ACL")
        return error_codes.CLUSTER_AUTHORIZATION_FAILED, request.refusal(codes.ALTER)
    return (error_codes.SECURITY_DISABLED, _NO_AUTHORIZER) if acls is None else None


def _find(
    authorizer: Authorizer, filters: Iterable[AclFilter], found: list[list[Acl] | Problem]
) -> Generator[None, None, None]:
    """Add what each filter finds, or what is wrong with it."""
    left, left_to_look_at = MAX_FOUND, MAX_LOOKED_AT
    for wanted in filters:
        problem = _filter_problem(wanted)
        left_to_look_at -= 1 if wanted.exact else len(authorizer)
        if problem is None and left_to_look_at < 0:
            problem = _TOO_MUCH
        if problem is None:
            acls = yield from authorizer.matching_in_slices(wanted)
            if len(acls) <= left:
                left -= len(acls)
                found.append(acls)
            else:
                problem = _TOO_MUCH
        if problem is not None:
            found.append(problem)
        yield


def _filter_problem(wanted: AclFilter) -> Problem | None:
    if codes.UNKNOWN in (wanted.resource_type, wanted.pattern_type):
        return _UNKNOWN_PATTERN
    if codes.UNKNOWN in (wanted.operation, wanted.permission):
        return _UNKNOWN_ENTRY
    return None


def _filter(request: Request, part: Message) -> AclFilter:
    """Return the filter that a message has. Raises `ProtocolError` where one of its numbers is 0."""
    resource_type, pattern_type, operation, permission = _numbers(
        request, part, "resource_type_filter", "pattern_type_filter"
    )
    return AclFilter(
        resource_type,
        part["resource_name_filter"],
        pattern_type,
        part["principal_filter"],
        part["host_filter"],
        operation,
        permission,
    )


def _acl(request: Request, part: Message) -> Acl:
    """Return the ACL that a message has. Raises `ProtocolError` where one of its numbers is 0."""
    resource_type, pattern_type, operation, permission = _numbers(
        request, part, "resource_type", "resource_pattern_type"
    )
    return Acl(
        resource_type,
        part["resource_name"],
        pattern_type,
        part["principal"],
        part["host"],
        operation,
        permission,
    )


def _numbers(request: Request, part: Message, *types: str) -> Iterator[int]:
    """Return resource type, pattern type, operation and permission; numbers that Kafka has no name for as unknown."""
    numbers = [part[name] for name in (*types, "operation", "permission_type")]
    if codes.UNKNOWN in numbers:
        api = request.header.api_key
        raise ProtocolError(
            f"request with api key {api} has an ACL field that is 0, expected resource type, pattern type,"
            " operation and permission above 0"
        )
    names = (codes.RESOURCE_TYPES, codes.PATTERN_TYPES, codes.OPERATIONS, codes.PERMISSIONS)
    return map(known_code, numbers, names)


def _resource(found: tuple[_Pattern, list[Acl]]) -> Message:
    (resource_type, name, pattern_type), acls = found
    return {
        "resource_type": resource_type,
        "resource_name": name,
        "pattern_type": pattern_type,
        "acls": LateMessages(acls, _entry),
    }


def _entry(acl: Acl) -> Message:
    return {
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation,
        "permission_type": acl.permission,
    }


def _result(problem: Problem | None) -> Message:
    """Return what became of an ACL: Kafka has an empty text where it was created."""
    code, text = problem or (error_codes.NONE, "")
    return {"error_code": code, "error_message": text}


def _filter_result(found: list[Acl] | Problem, failed: dict[Acl, Problem]) -> Message:
    if not isinstance(found, list):
        return {"error_code": found[0], "error_message": found[1], "matching_acls": ()}

    def matching(acl: Acl) -> Message:
        code, text = failed.get(acl, (error_codes.NONE, None))
        return {
            "error_code": code,
            "error_message": text,
            "resource_type": acl.resource_type,
            "resource_name": acl.resource_name,
            "pattern_type": acl.pattern_type,
            **_entry(acl),
        }

    return {
        "error_code": error_codes.NONE,
        "error_message": None,
        "matching_acls": LateMessages(found, matching),
    }
