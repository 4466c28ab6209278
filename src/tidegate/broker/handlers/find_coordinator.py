"""FindCoordinator (key 10), versions 0-6. KIP-699 (several keys, from 4).

A group's coordinator is a broker that its name says, as in Kafka: there its members join, and offsets are committed.
Not implemented: transactions (error 53, which clients take as final);
share groups (error 42).
Needs DESCRIBE on each group, else error 30.
A key that is named several times is answered as often, as by Kafka.
Memory: at most 420 bytes for each byte of the request (a key of one byte becomes a dict), and the answer, in which
each key has its address.
"""

import logging

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.broker.answering import answer_and_release
from tidegate.broker.cluster import ClusterView
from tidegate.config.values import cut
from tidegate.server.repeated_lines import repeats
from tidegate.server.requests.handler import Message, Request, Work

__all__ = ["handle_find_coordinator"]

GROUP, TRANSACTION, SHARE_GROUP = 0, 1, 2
_NO_TRANSACTIONS_TEXT = "This server does not support transactions."
_NO_NODE = -1
_logger = logging.getLogger(__name__)


def handle_find_coordinator(cluster: ClusterView, request: Request) -> Work:
    """Answer the coordinators of groups."""
    body = yield from request.body_in_slices()
    kind = body.get("key_type", GROUP)
    if "coordinator_keys" not in body:
        found = _one_coordinator(cluster, request, kind, body["key"])
        return request.answer({"throttle_time_ms": 0, **found})
    coordinators: list[Message] = []
    for key in body["coordinator_keys"]:
        coordinators.append({"key": key, **_coordinator(cluster, request, kind, key, text_of_none="")})
        yield
    message = {"throttle_time_ms": 0, "coordinators": coordinators}
    return (yield from answer_and_release(request, message, coordinators, body["coordinator_keys"]))


def _one_coordinator(cluster: ClusterView, request: Request, kind: int, key: str) -> Message:
    """Return the coordinator as versions before 4 have it: every error has its text."""
    found = _coordinator(cluster, request, kind, key, text_of_none="NONE")
    return {
        **found,
        "error_message": found["error_message"] or error_codes.TEXTS[error_codes.INVALID_REQUEST],
    }


def _coordinator(
    cluster: ClusterView, request: Request, kind: int, key: str, *, text_of_none: str
) -> Message:
    if kind == GROUP and request.authorized(acl.DESCRIBE, acl.GROUP, key):
        node_id, host, port = cluster.broker(cluster.coordinator(key), request.connection)
        error_code, text = error_codes.NONE, text_of_none
    else:
        host, port, node_id = "", _NO_NODE, _NO_NODE
        if kind == GROUP:
            error_code = error_codes.GROUP_AUTHORIZATION_FAILED
            text = text_of_none and error_codes.TEXTS[error_code]
        elif kind == TRANSACTION:
            error_code, text = error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, _NO_TRANSACTIONS_TEXT
            _log_transaction(request, key)
        else:
            error_code, text = (
                error_codes.INVALID_REQUEST,
                "" if kind == SHARE_GROUP else error_codes.TEXTS[error_codes.INVALID_REQUEST],
            )
    return {"error_code": error_code, "error_message": text, "node_id": node_id, "host": host, "port": port}


def _log_transaction(request: Request, transactional_id: str) -> None:
    """Log what the application misses: its own error says only that its transactional id is not authorized."""
    client_host = request.connection.client_host
    _logger.warning(
        "refused transactional id %r of a client from %s: the broker has no transactions; hint: set "
        "processing.guarantee=at_least_once in Kafka Streams, exactly.once.source.support=disabled in Kafka Connect, "
        "and no transactional.id in producers (docs/kafka-differences.md, row L6)",
        cut(transactional_id),
        client_host,
        extra=repeats("transaction", client_host),
    )
