"""InitProducerId (key 22), versions 0-5 (6 is unstable in Kafka 4.3). KIP-98, KIP-360.

A producer without a transactional id gets a new number, with epoch 0: what an idempotent producer
needs. Not implemented: transactions. A transactional id is refused with error 53, which every client takes as final
instead of trying for ever; an empty one or too long a timeout with Kafka's own errors. An id without an epoch, or the
reverse, is error 42.
Needs IDEMPOTENT_WRITE on the cluster, or WRITE on any topic, else error 31 (KIP-679).
Memory: the request's own bytes.
"""

import logging
from collections.abc import Generator

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.server.requests.handler import Message, Request, Work
from tidegate.storage.errors import StorageError
from tidegate.storage.storage import Storage

__all__ = ["MAX_TRANSACTION_TIMEOUT_MS", "handle_init_producer_id"]

MAX_TRANSACTION_TIMEOUT_MS = 900_000  # Kafka's `transaction.max.timeout.ms`
_NONE = -1
_logger = logging.getLogger(__name__)


def handle_init_producer_id(storage: Storage, request: Request) -> Work:
    """Allocate a producer id of `storage`."""
    body = request.body()
    transactional_id = body["transactional_id"]
    if transactional_id is not None:
        if request.authorized(acl.WRITE, acl.TRANSACTIONAL_ID, transactional_id):
            error_code = _problem(body)
        else:
            error_code = error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    elif (yield from _may_produce(request)):
        error_code = _problem(body)
    else:
        error_code = error_codes.CLUSTER_AUTHORIZATION_FAILED
    producer_id = _NONE
    if error_code == error_codes.NONE:
        try:
            producer_id = storage.take_producer_id()
        except StorageError as error:
            _logger.error("cannot allocate a producer id: %s", error, extra={"repeats": "producer id"})
            error_code = error_codes.COORDINATOR_NOT_AVAILABLE
    return request.answer(
        {
            "throttle_time_ms": 0,
            "error_code": error_code,
            "producer_id": producer_id,
            "producer_epoch": 0 if error_code == error_codes.NONE else _NONE,
        }
    )


def _may_produce(request: Request) -> Generator[None, None, bool]:
    """Return whether the client may be an idempotent producer."""
    connection = request.connection
    authorizer = connection.authorizer
    if authorizer is None or request.authorized(acl.IDEMPOTENT_WRITE, acl.CLUSTER):
        return True
    return (
        yield from authorizer.authorized_by_type_in_slices(
            connection.user, connection.client_host, acl.WRITE, acl.TOPIC
        )
    )


def _problem(body: Message) -> int:
    if (body.get("producer_id", _NONE) == _NONE) != (body.get("producer_epoch", _NONE) == _NONE):
        return error_codes.INVALID_REQUEST
    transactional_id = body["transactional_id"]
    if transactional_id is None:
        return error_codes.NONE
    if not transactional_id:
        return error_codes.INVALID_REQUEST
    if not 0 < body["transaction_timeout_ms"] <= MAX_TRANSACTION_TIMEOUT_MS:
        return error_codes.INVALID_TRANSACTION_TIMEOUT
    return error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
