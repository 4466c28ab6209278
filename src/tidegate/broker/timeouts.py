"""Requests to the controller whose timeout is over before they begin: they get error 7 and change nothing.

Kafka's controller decides a request in an event that has the request's deadline. A timeout of 0 ms or less is over
before the event runs, so that nothing is checked, charged or changed. A longer one is never reached here: what a
request changes is changed when it is handled. Follows: Kafka `QuorumController`, `ControllerRequestContext`.
"""

from tidegate.server.requests.handler import Message

__all__ = ["has_timed_out"]


def has_timed_out(body: Message) -> bool:
    """Return whether the timeout of a request, `timeout_ms`, is over when it begins.

    >>> has_timed_out({"timeout_ms": 0}), has_timed_out({"timeout_ms": 1})
    (True, False)
    """
    return bool(body["timeout_ms"] <= 0)
