"""Names that a topic may have, and names of internal topics. Follows: Kafka `Topic`."""

import re

__all__ = [
    "CLUSTER_METADATA_TOPIC",
    "INTERNAL_TOPICS",
    "MAX_NAME_LENGTH",
    "may_append_to_internal",
    "name_problem",
]

INTERNAL_TOPICS = frozenset(("__consumer_offsets", "__share_group_state", "__transaction_state"))
"""Topics that Kafka's coordinators keep their data in. Here a topic of such a name holds none of it."""
CLUSTER_METADATA_TOPIC = "__cluster_metadata"
"""The log of Kafka's controllers, which is no topic: no topic of this name can be created."""
_ADMIN_CLIENT_ID = "__admin_client"  # Kafka `AdminUtils.ADMIN_CLIENT_ID`

MAX_NAME_LENGTH = 249  # so that `<name>-<partition>` stays a file name
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def may_append_to_internal(client_id: str | None) -> bool:
    """Return whether a client may produce to internal topics. Follows: Kafka `KafkaApis.handleProduceRequest`."""
    return client_id == _ADMIN_CLIENT_ID


def name_problem(name: str | None) -> str | None:
    """Return what Kafka says is wrong with a topic's name, None where nothing is.

    >>> name_problem("..")
    "'..' is not allowed"
    """
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > MAX_NAME_LENGTH:
        return f"the length of '{name}' is longer than the max allowed length {MAX_NAME_LENGTH}"
    if _LEGAL.fullmatch(name) is None:
        return f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    return None
